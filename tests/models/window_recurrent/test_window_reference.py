"""The fast model against the plain reference: outputs, memories and every gradient, in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_models import recurrent, tokens
from torch import Tensor

from onward.models.window_recurrent.reference import BERT, GPT2, read_document

PAPER: dict[str, Any] = {"residual": False}
CASES: dict[str, dict[str, Any]] = {
    "paper": PAPER,
    "max": PAPER | {"pooling": "max"},
    "attention": PAPER | {"pooling": "attention", "pooled_positions": "before_next_window"},
    "last layer": PAPER | {"pooled_layers": "last", "hidden": ["width", "width"], "insert_at": 1},
    "all layers": PAPER | {"insert_at": "all", "hidden": [], "pooled_positions": "before_next_window"},
    "several vectors": PAPER | {"vectors": 3, "activation": "tanh", "insert_at": [3, 1]},
    "residual": {},
    "residual max": {"pooling": "max", "pooled_positions": "before_next_window"},
    "residual attention": {"pooling": "attention", "insert_at": 2},
    "residual last layer": {"pooled_layers": "last", "vectors": 4, "insert_at": [1, 3]},
    "spans": {"carrier": "spans", "vectors": 4},
    "spans before next window": {"carrier": "spans", "vectors": 5, "pooled_positions": "before_next_window"},
    "history": {"carrier": "spans", "vectors": 5, "history": 2},
    "fading": {"carrier": "spans", "history": [4, 3, 1]},
    "as many spans as tokens": {"carrier": "spans", "vectors": 5, "insert_at": [1, 3]},
    "constant": PAPER | {"carrier": "constant", "vectors": 2},
    "constant residual": {"carrier": "constant"},
    "constant spans": {"carrier": "constant", "stands_for": "spans", "vectors": 4},
    "none": {"carrier": "none"},
}
SOME = ["paper", "residual attention", "spans", "fading", "constant residual"]
FAMILIES = {"gpt2": ("causal-lm", GPT2), "bert": ("model", BERT)}
WINDOW, LENGTH = 5, 13  # three windows, or four that overlap by two; the last is not full


def build(family: str, overlap: int, **fields: Any) -> tuple[Any, Any]:
    head, reference = FAMILIES[family]
    fields = {
        "carrier": "pooled",
        "stands_for": "pooled",
        "hidden": [11, 13],
        "rank": 3,
        "window": WINDOW,
        "overlap": overlap,
        **fields,
    }
    model = recurrent(family, head, dtype=torch.float64, **fields)
    return model, reference(model.backbone)


def initial_memory(model: Any) -> tuple[Tensor, ...]:
    """Random, and of one row; one span of "spans" is empty."""
    generator = torch.Generator().manual_seed(5)
    memory: list[Tensor] = []
    parts = model.carrier.empty(1, torch.empty(0, dtype=torch.float64)) if model.carrier.takes_vectors else ()
    for part in parts:
        if part.is_floating_point():
            part = torch.randn(part.shape, generator=generator, dtype=part.dtype).requires_grad_()
        else:
            part = torch.arange(part.numel()).view(part.shape) != 1
        memory.append(part)
    return tuple(memory)


def state_with(model: Any, ids: Tensor, memory: tuple[Tensor, ...]) -> Any:
    return replace(model.reader.fresh(ids), memory=memory, has_memory=(True,) * len(ids))


def read_fast(model: Any, ids: Tensor, state: Any = None, **kwargs: Any) -> tuple[Tensor, Any]:
    output = model(ids, state=state, **kwargs)
    return output.last_hidden_state if output.logits is None else output.logits, output.state


def read_slowly(model: Any, reference: Any, ids: Tensor, memory: Any = None) -> tuple[Tensor, Any]:
    hidden, logits, memory = read_document(reference, model.carrier, model.config, ids, memory)
    return hidden if logits is None else logits, memory


def floating(memory: tuple[Tensor, ...] | None) -> list[Tensor]:
    return [part for part in memory or () if part.is_floating_point()]


def score(*parts: Tensor) -> Tensor:
    """A loss in which every number counts, each with another weight."""
    generator = torch.Generator().manual_seed(9)
    return sum((p * torch.randn(p.shape, generator=generator, dtype=p.dtype)).sum() for p in parts)


def assert_close(ours: Tensor, theirs: Tensor, what: str) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9, msg=lambda text: f"{what}: {text}")


def gradients(loss: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if gradient is None else gradient
        for (name, leaf), gradient in zip(leaves.items(), found, strict=True)
    }


def unused(name: str, fields: dict[str, Any]) -> bool:
    """Parameters without a gradient: BERT's pooler, what a constant does not pool, a bias of all keys."""
    pools = name.startswith(("carrier.inner.alpha", "carrier.inner.pooling"))
    return "pooler" in name or name.endswith("key.bias") or (fields.get("carrier") == "constant" and pools)


@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_memory_and_all_gradients(family: str, case: str, overlap: int) -> None:
    fields = CASES[case]
    model, reference = build(family, overlap, **fields)
    ids = tokens(1, LENGTH)
    memory = initial_memory(model)
    ours, state = read_fast(model, ids, state_with(model, ids, memory))
    theirs, carried = read_slowly(model, reference, ids[0], tuple(part[0] for part in memory))

    assert_close(ours[0], theirs, "outputs")
    assert len(state.memory) == len(carried)
    for mine, other in zip(state.memory, carried, strict=True):
        assert_close(mine[0], other, "memory")

    leaves = {name: p for name, p in model.named_parameters() if p.requires_grad}
    leaves |= {f"initial memory {i}": part for i, part in enumerate(floating(memory))}
    ours_by_name = gradients(score(ours[0], *(m[0] for m in floating(state.memory))), leaves)
    theirs_by_name = gradients(score(theirs, *floating(carried)), leaves)
    for name in leaves:
        assert_close(ours_by_name[name], theirs_by_name[name], f"gradient of {name}")
        assert unused(name, fields) or theirs_by_name[name].abs().max() > 1e-6, f"{name} is not tested"


@pytest.mark.parametrize("case", [*SOME, "none"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_window_of_a_document_runs_unmodified(family: str, case: str) -> None:
    model, reference = build(family, 2, **CASES[case])
    ids = tokens(1, LENGTH)
    ours, state = read_fast(model, ids)
    theirs, carried = read_slowly(model, reference, ids[0])
    assert_close(ours[0], theirs, "outputs")
    for mine, other in zip(state.memory, carried, strict=True):
        assert_close(mine[0], other, "memory")
    plain = model.backbone(ids[:, :WINDOW])
    assert_close(ours[:, :WINDOW], plain[0], "first window")
    assert (ours[:, WINDOW:] - model.backbone(ids)[0][:, WINDOW:]).abs().max() > 1e-3


@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("case", [*SOME, "residual max"])
def test_pieces_with_and_without_cache_have_the_gradients_of_the_whole(
    case: str, overlap: int, use_cache: bool
) -> None:
    model, reference = build("gpt2", overlap, **CASES[case])
    ids = tokens(1, LENGTH)
    memory = initial_memory(model)
    state, pieces = state_with(model, ids, memory), []
    for piece in ids.split([1, 2, 2, 6, 1, 1], dim=1):
        output, state = read_fast(model, piece, state, use_cache=use_cache)
        pieces.append(output[0])
    ours = torch.cat(pieces)
    theirs, carried = read_slowly(model, reference, ids[0], tuple(part[0] for part in memory))
    assert_close(ours, theirs, "outputs")

    leaves = {name: p for name, p in model.named_parameters() if p.requires_grad}
    leaves |= {f"initial memory {i}": part for i, part in enumerate(floating(memory))}
    ours_by_name = gradients(score(ours, *(m[0] for m in floating(state.memory))), leaves)
    theirs_by_name = gradients(score(theirs, *floating(carried)), leaves)
    for name in leaves:
        assert_close(ours_by_name[name], theirs_by_name[name], f"gradient of {name}")


@pytest.mark.parametrize("case", SOME)
def test_checkpointing_at_the_bottleneck_gives_the_loss_and_gradients_of_the_reference(case: str) -> None:
    no_dropout = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    model, reference = build("gpt2", 2, **CASES[case], backbone=no_dropout)
    model.train()
    model.gradient_checkpointing_enable()
    ids = tokens(1, LENGTH)
    loss = model(ids, labels=ids).loss
    logits, _ = read_slowly(model, reference, ids[0])
    expected = torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:])
    assert_close(loss, expected, "loss")
    leaves = {name: p for name, p in model.named_parameters() if p.requires_grad}
    theirs_by_name = gradients(expected, leaves)
    for name, gradient in gradients(loss, leaves).items():
        assert_close(gradient, theirs_by_name[name], f"gradient of {name}")


@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("case", SOME)
@pytest.mark.parametrize(("family", "use_cache"), [("gpt2", False), ("gpt2", True), ("bert", False)])
@torch.no_grad()
def test_rows_of_different_length_are_each_read_as_if_alone(
    family: str, case: str, overlap: int, use_cache: bool
) -> None:
    model, reference = build(family, overlap, **CASES[case])
    lengths = (WINDOW, 11, 1, 0, 2 * WINDOW - overlap)
    ids = tokens(len(lengths), max(lengths))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids, mask = ids.flip(1), mask.flip(1)  # padding at the left
    ours, state = read_fast(model, ids, attention_mask=mask, use_cache=use_cache)
    goes_on = tokens(len(lengths), 9, seed=1)  # past the end of every open window
    after, _ = read_fast(model, goes_on, state)
    for row, length in enumerate(lengths):
        mine = ids[row, mask[row]]
        if length:
            theirs, _ = read_slowly(model, reference, mine)
            assert_close(ours[row, mask[row]], theirs, f"row {row}")
        if family == "gpt2":
            theirs, _ = read_slowly(model, reference, torch.cat([mine, goes_on[row]]))
            assert_close(after[row], theirs[length:], f"row {row} going on")
