"""Memories of keys and values against the plain reference: outputs, memories and every gradient, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from exact import Exact
from tiny_models import recurrent_variant, tokens
from torch import Tensor

from onward.models.window_recurrent.reference import BERT, GPT2, LLAMA, Kept, read_document
from onward.models.window_recurrent.slots import Slots, grouped

CASES: dict[str, dict[str, Any]] = {
    "recent": {"carrier": "recent"},
    "recent without sinks": {"carrier": "recent", "sinks": 0},
    "attention": {"carrier": "selected", "score": "attention"},
    "received": {"carrier": "selected", "score": "received", "sinks": 3},
    "matched": {"carrier": "matched", "slots": 18},  # two of which are merged
    "matched by attention": {"carrier": "matched", "score": "attention", "slots": 9, "insert_at": [2]},
    "matched without sinks": {"carrier": "matched", "sinks": 0, "slots": 7},  # too few for merged ones
    "key difference": {"carrier": "selected", "score": "key_difference", "insert_at": [2]},
    "constant": {"carrier": "constant", "stands_for": "selected"},
}
FAMILIES = {"gpt2": GPT2, "llama": LLAMA, "mistral": LLAMA, "bert": BERT}
WINDOW, SLOTS, LENGTH = 5, 4, 13  # three windows, or four that overlap by two; the last is not full


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    with Exact():
        yield


@cache
def build(family: str, case: str, overlap: int) -> tuple[Any, Any]:
    fields = {"slots": SLOTS, "rank": 3, **CASES[case]}
    head = "model" if family == "bert" else None
    model = recurrent_variant(family, "recent", head, window=WINDOW, overlap=overlap, fields=fields)
    return model, FAMILIES[family](model.backbone)


def initial_memory(model: Any) -> tuple[Tensor, ...]:
    """Of one row, random, with one unused slot; in place of a constant, what a constant leaves."""
    constant = model.config.carrier == "constant"
    generator = torch.Generator().manual_seed(5)
    parts: list[Tensor] = []
    for slots in grouped(model.reader.empty(1)):
        if constant:
            parts += slots._replace(ages=torch.ones_like(slots.ages))
            continue
        count = slots.ages.shape[-1]
        ages = torch.tensor([0, *range(3 * count, 3, -3)], dtype=torch.int32).expand_as(slots.ages)
        keys, values = (
            torch.randn(part.shape, generator=generator, dtype=part.dtype) * (ages > 0)[..., None]
            for part in (slots.keys, slots.values)
        )
        weights, marks = torch.rand(2, *ages.shape, generator=generator, dtype=keys.dtype) * (ages > 0)
        leaves = (part.requires_grad_() for part in (keys, values, weights))
        parts += Slots(*leaves, marks, ages)
    return tuple(parts)


def listed(model: Any, memory: tuple[Tensor, ...]) -> list[list[list[Kept]]]:
    """A memory of the fast model as the reference has it: without slots that are not used."""
    layers, merged = [], getattr(model.carrier, "merged", 0)
    for slots in grouped(memory):
        _, heads, count = slots.ages.shape
        columns = [
            [
                Kept(*(part[0, head, s] for part in slots[:4]), age=int(slots.ages[0, head, s]), merged=s < merged)
                for s in range(count)
            ]
            for head in range(heads)
        ]
        layers.append([[column for column in head if column.age] for head in columns])
    return layers


def state_with(model: Any, ids: Tensor, memory: tuple[Tensor, ...]) -> Any:
    return replace(model.reader.fresh(ids), memory=memory, has_memory=(True,) * len(ids))


def read_fast(model: Any, ids: Tensor, state: Any = None, **kwargs: Any) -> tuple[Tensor, Any]:
    output = model(ids, state=state, **kwargs)
    return output.last_hidden_state if output.logits is None else output.logits, output.state


def read_slowly(model: Any, reference: Any, ids: Tensor, memory: Any = None) -> tuple[Tensor, Any]:
    hidden, logits, memory = read_document(reference, model.carrier, model.config, ids, memory)
    return hidden if logits is None else logits, memory


def assert_close(ours: Tensor, theirs: Tensor, what: str) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9, msg=lambda text: f"{what}: {text}")


def assert_same_memory(ours: list[list[list[Kept]]], theirs: list[list[list[Kept]]]) -> None:
    assert len(ours) == len(theirs)
    for layer, (mine, other) in enumerate(zip(ours, theirs, strict=True), 1):
        for head, (my_slots, their_slots) in enumerate(zip(mine, other, strict=True)):
            where = f"layer {layer}, head {head}"
            assert [slot.age for slot in my_slots] == [slot.age for slot in their_slots], where
            for a, b in zip(my_slots, their_slots, strict=True):
                for name in ("key", "value", "weight", "mark"):
                    assert_close(getattr(a, name), getattr(b, name), f"{name} at {where}")


def score(*parts: Tensor) -> Tensor:
    """A loss in which every number counts, each with another weight."""
    generator = torch.Generator().manual_seed(9)
    return sum((p * torch.randn(p.shape, generator=generator, dtype=p.dtype)).sum() for p in parts)


def carried(memory: list[list[list[Kept]]]) -> list[Tensor]:
    return [x for layer in memory for head in layer for slot in head for x in (slot.key, slot.value, slot.weight)]


def assert_same_gradients(model: Any, memory: Any, ours: Tensor, theirs: Tensor) -> None:
    leaves = {name: p for name, p in model.named_parameters() if p.requires_grad}
    leaves |= {f"initial memory {i}": part for i, part in enumerate(memory) if part.requires_grad}
    found, expected = (
        torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        for loss in (ours, theirs)
    )
    for name, mine, other in zip(leaves, found, expected, strict=True):
        assert_close(mine, other, f"gradient of {name}")
        assert other.abs().max() > 1e-6 or any(part in name for part in IDLE), f"{name} is not tested"


IDLE = ("pooler", "key.bias")
"""Parameters without a gradient: BERT's pooler, and a bias of all keys where no slot has another one."""


@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_memory_and_all_gradients(family: str, case: str, overlap: int) -> None:
    model, reference = build(family, case, overlap)
    ids, memory = tokens(1, LENGTH), initial_memory(model)
    ours, state = read_fast(model, ids, state_with(model, ids, memory))
    theirs, left = read_slowly(model, reference, ids[0], listed(model, memory))
    assert_close(ours[0], theirs, "outputs")
    mine = listed(model, state.memory)
    if case == "constant":
        for before, after in zip(initial_memory(model), state.memory, strict=True):
            assert torch.equal(before, after), "what was read leaves nothing"
        mine = left
    assert_same_memory(mine, left)
    assert_same_gradients(model, memory, score(ours[0], *carried(mine)), score(theirs, *carried(left)))


@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("case", ["recent", "received", "constant"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_first_window_of_a_document_runs_unmodified(family: str, case: str, overlap: int) -> None:
    model, reference = build(family, case, overlap)
    ids = tokens(1, LENGTH)
    ours, state = read_fast(model, ids)
    theirs, left = read_slowly(model, reference, ids[0])
    assert_close(ours[0], theirs, "outputs")
    if case != "constant":
        assert_same_memory(listed(model, state.memory), left)
    plain = model.backbone(ids[:, :WINDOW])
    assert_close(ours[:, :WINDOW], plain[0], "first window")
    assert (ours[:, WINDOW:] - model.backbone(ids)[0][:, WINDOW:]).abs().max() > 1e-3


@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("case", ["recent", "received", "matched", "constant"])
@pytest.mark.parametrize("family", ["gpt2", "mistral"])
def test_pieces_with_and_without_cache_have_the_gradients_of_the_whole(
    family: str, case: str, overlap: int, use_cache: bool
) -> None:
    model, reference = build(family, case, overlap)
    ids, memory = tokens(1, LENGTH), initial_memory(model)
    state, pieces = state_with(model, ids, memory), []
    for piece in ids.split([1, 2, 2, 6, 1, 1], dim=1):
        output, state = read_fast(model, piece, state, use_cache=use_cache)
        pieces.append(output[0])
    ours = torch.cat(pieces)
    theirs, left = read_slowly(model, reference, ids[0], listed(model, memory))
    assert_close(ours, theirs, "outputs")
    mine = left if case == "constant" else listed(model, state.memory)
    assert_same_memory(mine, left)
    assert_same_gradients(model, memory, score(ours, *carried(mine)), score(theirs, *carried(left)))


@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("case", ["recent", "received", "key difference", "matched by attention"])
@pytest.mark.parametrize(("family", "use_cache"), [("gpt2", True), ("mistral", False), ("bert", False)])
@torch.no_grad()
def test_rows_of_different_length_are_each_read_as_if_alone(
    family: str, case: str, overlap: int, use_cache: bool
) -> None:
    model, reference = build(family, case, overlap)
    lengths = (2 * WINDOW - overlap, 11, 1, 0, 3)
    ids = tokens(len(lengths), max(lengths))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids, mask = ids.flip(1), mask.flip(1)  # padding at the left
    ours, state = read_fast(model, ids, attention_mask=mask, use_cache=use_cache)
    goes_on = tokens(len(lengths), 9, seed=1)  # past the end of every open window
    after, last = read_fast(model, goes_on, state, use_cache=use_cache)
    for row, length in enumerate(lengths):
        mine = ids[row, mask[row]]
        if length:
            theirs, left = read_slowly(model, reference, mine)
            assert_close(ours[row, mask[row]], theirs, f"row {row}")
            if left is not None:
                assert_same_memory(listed(model, state.select([row]).memory), left)
        if family != "bert":
            theirs, left = read_slowly(model, reference, torch.cat([mine, goes_on[row]]))
            assert_close(after[row], theirs[length:], f"row {row} going on")
            assert_same_memory(listed(model, last.select([row]).memory), left)


@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_merged_slots_from_the_start_of_a_document(family: str, overlap: int) -> None:
    """They are filled when the other slots are, and take in what is dropped from then on."""
    model, reference = build(family, "matched", overlap)
    ids = torch.arange(40, 74)[None]  # no token comes twice: merged slots could not tell which one it is most like
    ours, state = read_fast(model, ids)
    theirs, left = read_slowly(model, reference, ids[0])
    assert_close(ours[0], theirs, "outputs")
    assert_same_memory(listed(model, state.memory), left)
    assert [column.merged for column in left[0][0]] == [True] * 2 + [False] * 16
