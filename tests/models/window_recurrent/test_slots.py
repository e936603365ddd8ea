"""Memories of keys and values: what they keep, and that neither cuts, nor batches, nor how many windows run at once
change anything. All in float64."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from exact import Exact
from tiny_models import DECODERS, FAMILIES, PAD, WIDTH, padded, recurrent_variant, tokens
from torch import Tensor

from onward import WindowState
from onward.models.window_recurrent.slots import ReadWindow, Slots, grouped

CARRIERS = ["recent", "selected", "received", "key_difference", "matched", "constant slots"]
SOME = ["recent", "received", "matched"]
WINDOW, SLOTS, LENGTH = 5, 5, 13
shared = cache(recurrent_variant)  # not with other tests: what is looked at once in a model, is looked at exactly here


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    with Exact():
        yield


def read(model: Any, ids: Tensor, state: Any = None, **options: Any) -> tuple[Tensor, WindowState]:
    output = model(ids, state=state, **options)
    return output.logits, output.state


def assert_close(ours: Tensor, theirs: Tensor, what: str) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9, msg=lambda text: f"{what}: {text}")


def assert_same_memory(ours: WindowState, theirs: WindowState, where: str = "") -> None:
    """The same tokens in all slots that are used, with the same keys, values, weights and marks."""
    assert ours.has_memory == theirs.has_memory
    has = torch.tensor(ours.has_memory)
    for layer, (mine, other) in enumerate(zip(grouped(ours.memory), grouped(theirs.memory), strict=True), 1):
        mine, other = mine.forgotten(~has), other.forgotten(~has)
        assert torch.equal(mine.ages, other.ages), f"other tokens at layer {layer} {where}"
        for name, a, b in zip(Slots._fields, mine[:-1], other[:-1], strict=False):
            used = mine.ages > 0
            assert_close(a[used], b[used], f"{name} at layer {layer} {where}")


# -- what is kept


def values_of_tokens(model: Any) -> Tensor:
    """[H, vocabulary, E]: in a llama's first layer, a value tells which token it is of."""
    config = model.config
    base = model.backbone.base_model
    first = base.layers[0]
    every = base.embed_tokens.weight[:, None]
    with torch.no_grad():
        values = first.self_attn.v_proj(first.input_layernorm(every))[:, 0]
    return values.unflatten(-1, (config.backbone.num_key_value_heads, -1)).transpose(0, 1)


def kept(model: Any, state: WindowState, row: int = 0, head: int = 0) -> tuple[list[int], list[int]]:
    """The ids in the used slots of layer 1, and their ages."""
    slots, of_ids = grouped(state.memory)[0], values_of_tokens(model)[head]
    used = slots.ages[row, head] > 0
    distance = torch.cdist(slots.values[row, head][used], of_ids)
    assert not used.any() or distance.amin(1).max() < 1e-6, "a slot holds something that is no token"
    return distance.argmin(1).tolist(), slots.ages[row, head][used].tolist()


def distinct(count: int) -> Tensor:
    return torch.arange(10, 10 + count)[None]


def llama(variant: str = "recent", slots: int = 4, **fields: Any) -> Any:
    overlap = fields.pop("overlap", 0)
    return recurrent_variant("llama", variant, overlap=overlap, fields={"slots": slots, **fields})


@pytest.mark.parametrize(
    ("length", "overlap", "sinks", "prefix", "expected", "ages"),
    [
        (4, 0, 1, 0, [], []),  # nothing has closed
        (5, 0, 1, 0, [0, 2, 3, 4], [5, 3, 2, 1]),
        (14, 0, 1, 0, [0, 7, 8, 9], [10, 3, 2, 1]),  # the third window is still open
        (15, 0, 0, 0, [11, 12, 13, 14], [4, 3, 2, 1]),
        (15, 0, 3, 0, [0, 1, 2, 14], [15, 14, 13, 1]),
        (5, 2, 1, 0, [0, 1, 2], [3, 2, 1]),  # 3 and 4 come again; one slot is not used
        (8, 2, 1, 0, [0, 3, 4, 5], [6, 3, 2, 1]),
        (5, 4, 2, 0, [0], [1]),  # the second token comes again, and is kept one window later
        (6, 4, 2, 0, [0, 1], [2, 1]),
        (9, 4, 2, 0, [0, 1, 3, 4], [5, 4, 2, 1]),
        (5, 0, 1, 2, [0, 2, 3, 4], [5, 3, 2, 1]),  # every window begins with 0 and 1; the first one keeps 0 as a sink
        (8, 0, 1, 2, [0, 5, 6, 7], [8, 3, 2, 1]),
        (5, 0, 0, 2, [2, 3, 4], [3, 2, 1]),
        (5, 1, 3, 2, [0, 1, 2, 3], [4, 3, 2, 1]),
        (7, 1, 3, 2, [0, 1, 2, 5], [6, 5, 4, 1]),
    ],
)
@torch.no_grad()
def test_which_tokens_are_kept_and_how_old_they_are(
    length: int, overlap: int, sinks: int, prefix: int, expected: list[int], ages: list[int]
) -> None:
    model = llama(sinks=sinks, overlap=overlap)
    _, state = read(model, distinct(length), prefix_length=prefix)
    assert kept(model, state) == ([10 + token for token in expected], ages)


@pytest.mark.parametrize("variant", ["recent", "selected", "received", "key_difference", "matched"])
@pytest.mark.parametrize("sinks", [0, 1, 2, 4])
@torch.no_grad()
def test_the_first_tokens_stay_for_ever_and_the_smallest_memory_holds_one_more(variant: str, sinks: int) -> None:
    model = llama(variant, slots=1 + sinks, sinks=sinks)
    ids = distinct(40)
    _, state = read(model, ids)
    for head in range(2):
        found, ages = kept(model, state, head=head)
        assert found[:sinks] == ids[0, :sinks].tolist() and len(found) == 1 + sinks
        assert found[-1] == 49, "beside them only the last token fits"
        assert ages == [50 - token for token in found]
    with pytest.raises(ValueError, match="slots"):
        llama(variant, slots=sinks or 1, sinks=sinks or 1)


@pytest.mark.parametrize("variant", ["selected", "received", "key_difference"])
@torch.no_grad()
def test_a_head_keeps_the_last_half_and_what_it_needs(variant: str) -> None:
    model = llama(variant, slots=6, sinks=1)
    _, state = read(model, distinct(40))
    heads = [kept(model, state, head=head)[0] for head in range(2)]
    for found in heads:
        assert found[0] == 10 and found[-3:] == [47, 48, 49] and found == sorted(set(found))
    assert heads[0] != heads[1]


@torch.no_grad()
def test_of_equal_scores_the_newest_is_chosen() -> None:
    """Layers with local attention give no attention at all to most columns."""
    may_be_kept = torch.tensor([[False, True, True, True, False]])
    nothing: dict[str, Any] = dict.fromkeys(("slots", "look", "turn"))
    window = ReadWindow(**nothing, kept=may_be_kept, full=False, size=2)
    assert window.best(torch.zeros(1, 2, 5), 2).tolist() == [[[2, 3], [2, 3]]]
    assert window.best(torch.tensor([[[9.0, 1.0, 0.0, 0.0, 9.0]]]), 2).tolist() == [[[1, 3]]]


@pytest.mark.parametrize("variant", CARRIERS)
@torch.no_grad()
def test_what_unused_slots_hold_does_not_matter(variant: str) -> None:
    model = shared("llama", variant, overlap=3)
    ids, more = tokens(2, 5), tokens(2, 9, seed=1)
    _, state = read(model, ids)
    spoilt = []
    for slots in grouped(state.memory):
        unused = slots.ages == 0
        assert unused.any() or variant == "constant slots"
        spoilt += [part + 7 * (unused if part.dim() == 3 else unused[..., None]) for part in slots[:4]] + [slots.ages]
    ours, left = read(model, more, replace(state, memory=tuple(spoilt)))
    theirs, expected = read(model, more, state)
    assert_close(ours, theirs, "outputs")
    assert_same_memory(left, expected)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@torch.no_grad()
def test_the_bytes_of_a_state_are_what_its_shapes_say(family: str) -> None:
    model = shared(family, "selected", overlap=2)
    layers, heads, features = 3, {"gpt2": 4, "llama": 2}[family], WIDTH // 4
    memory = 2 * layers * heads * SLOTS * ((features + features + 2) * 8 + 4)  # of 2 rows; ages are int32
    _, between = read(model, tokens(2, 5))
    assert between.nbytes == memory + 2 * 2 * 8  # and the tokens that come again
    _, opened = read(model, tokens(2, 7), use_cache=True)
    cached = 2 * layers * 4 * (2 * heads + 4) * features * 8  # keys, values and queries of four tokens
    inserted = 2 * layers * heads * SLOTS * 2 * features * 8
    assert opened.nbytes == memory + 2 * 4 * 8 + cached + inserted
    assert read(model, tokens(2, 206))[1].nbytes == between.nbytes


# -- cut = whole


@pytest.mark.parametrize(("use_cache", "overlap"), [(False, 2), (True, 2), (True, 0)])
@pytest.mark.parametrize("variant", CARRIERS)
@torch.no_grad()
def test_a_document_cut_anywhere_is_the_whole(variant: str, use_cache: bool, overlap: int) -> None:
    model = shared("llama", variant, overlap=overlap)
    ids = tokens(2, LENGTH)
    whole, expected = read(model, ids, use_cache=use_cache)
    for cut in range(1, LENGTH):
        first, state = read(model, ids[:, :cut], use_cache=use_cache)
        second, state = read(model, ids[:, cut:], state, use_cache=use_cache)
        assert_close(torch.cat([first, second], 1), whole, f"cut at {cut}")
        assert_same_memory(state, expected, f"cut at {cut}")
        assert state.open.fill == expected.open.fill


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_token_by_token_is_the_whole_in_every_family(family: str) -> None:
    overlap = 2
    model = shared(family, "received", overlap=overlap)
    ids = tokens(2, LENGTH)
    causal = family in DECODERS
    cuts = [1] * LENGTH if causal else [WINDOW, WINDOW - overlap, LENGTH - 2 * WINDOW + overlap]
    whole, expected = read(model, ids)
    state, parts = None, []
    for piece in ids.split(cuts, 1):
        output, state = read(model, piece, state, use_cache=causal)
        parts.append(output)
    assert_close(torch.cat(parts, 1), whole, "outputs")
    assert_same_memory(state, expected)


LENGTHS = [[3, 7, 0, 12], [4, 0, 5, 1], [5, 6, 2, 1]]  # by call and row
ROWS = len(LENGTHS[0])


@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("variant", SOME)
@pytest.mark.parametrize(("family", "side"), [("gpt2", "right"), ("gemma3_text", "left")])
@torch.no_grad()
def test_rows_of_any_lengths_are_each_read_as_if_alone(
    family: str, side: str, variant: str, overlap: int, use_cache: bool
) -> None:
    """One row's window closes while another's stays open, and a third has nothing to read."""
    model = shared(family, variant, overlap=overlap)
    documents = tokens(ROWS, 30)
    state, at, parts = None, [0] * ROWS, [[] for _ in range(ROWS)]
    for lengths in LENGTHS:
        pieces = [documents[row, at[row] : at[row] + length] for row, length in enumerate(lengths)]
        at = [place + length for place, length in zip(at, lengths, strict=True)]
        ids, mask = padded(pieces, side)
        logits, state = read(model, ids, state, attention_mask=mask, use_cache=use_cache)
        for row in range(ROWS):
            parts[row].append(logits[row, mask[row].bool()])
    for row in range(ROWS):
        whole, expected = read(model, documents[row : row + 1, : at[row]])
        assert_close(torch.cat(parts[row]), whole[0], f"row {row}")
        assert_same_memory(state.select([row]), expected, f"in row {row}")


@pytest.mark.parametrize(("variant", "use_cache"), [("recent", False), ("received", True), ("matched", True)])
@torch.no_grad()
def test_prefixes_of_any_lengths(variant: str, use_cache: bool) -> None:
    model = shared("llama", variant, overlap=1)
    ids, prefixes = tokens(3, LENGTH), [2, 0, 1]
    whole, expected = read(model, ids, prefix_length=prefixes)
    for cut in range(2, LENGTH):
        first, state = read(model, ids[:, :cut], prefix_length=prefixes, use_cache=use_cache)
        second, state = read(model, ids[:, cut:], state, use_cache=use_cache)
        assert_close(torch.cat([first, second], 1), whole, f"cut at {cut}")
        assert_same_memory(state, expected, f"cut at {cut}")
    for row, prefix in enumerate(prefixes):
        alone, left = read(model, ids[row : row + 1], prefix_length=prefix)
        assert_close(alone[0], whole[row], f"row {row}")
        assert_same_memory(expected.select([row]), left)


@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("length", [3, 5, 12])
@pytest.mark.parametrize("variant", SOME)
@torch.no_grad()
def test_a_row_that_starts_a_document_sees_nothing_of_the_one_before(
    variant: str, length: int, use_cache: bool
) -> None:
    model = shared("llama", variant, overlap=2)
    ids, more, starts = tokens(3, length), tokens(3, 9, seed=1), torch.tensor([False, True, False])
    _, state = read(model, ids, use_cache=use_cache)
    ours, left = read(model, more, state, starts_document=starts, use_cache=use_cache)
    fresh, anew = read(model, more)
    going, on = read(model, torch.cat([ids, more], 1))
    for row, start in enumerate(starts):
        expected, memory = (fresh[row], anew) if start else (going[row, length:], on)
        assert_close(ours[row], expected, f"row {row}")
        assert_same_memory(left.select([row]), memory.select([row]))


@pytest.mark.parametrize("length", [3, 5, 12])
@pytest.mark.parametrize("variant", CARRIERS)
@torch.no_grad()
def test_rows_can_be_picked_out_of_a_state_in_any_order(variant: str, length: int) -> None:
    model = shared("llama", variant, overlap=2)
    _, state = read(model, tokens(3, length), use_cache=True)
    assert (state.open.cache is None) == (length == 5)
    more, order = tokens(3, 9, seed=1), [2, 0, 2]
    whole, expected = read(model, more, state)
    picked, left = read(model, more[order], state.select(order))
    assert_close(picked, whole[order], "picked rows")
    assert_same_memory(left, expected.select(order))


@pytest.mark.parametrize("variant", CARRIERS)
@pytest.mark.parametrize("family", ["llama", "modernbert"])
@torch.no_grad()
def test_a_row_does_not_depend_on_the_others(family: str, variant: str) -> None:
    model = shared(family, variant, overlap=2)
    ids, others = tokens(3, LENGTH), tokens(3, LENGTH, seed=1)
    changed = torch.cat([others[:1], ids[1:2], others[2:]])
    ours, state = read(model, ids)
    theirs, left = read(model, changed)
    assert torch.equal(ours[1], theirs[1])
    assert all(torch.equal(a[1], b[1]) for a, b in zip(state.memory, left.memory, strict=True))
    assert not torch.equal(ours[0], theirs[0])


# -- one pass = loop


def gradients(model: Any, loss: Tensor) -> dict[str, Tensor]:
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(named, found, strict=True))


def scored(logits: Tensor, state: WindowState, mask: Tensor) -> Tensor:
    """A loss in which every output and everything carried counts."""
    generator = torch.Generator().manual_seed(9)
    parts = [logits * mask[..., None], *(x for slots in grouped(state.memory) for x in slots[:3])]
    return sum((p * torch.randn(p.shape, generator=generator, dtype=p.dtype)).sum() for p in parts if p.requires_grad)


def in_runs(model: Any, at_once: int, ids: Tensor, mask: Tensor, **options: Any) -> Any:
    """Logits, state and gradients, with so many tokens at once."""
    before, model.config.tokens_at_once = model.config.tokens_at_once, at_once
    try:
        logits, state = read(model, ids, attention_mask=mask, **options)
    finally:
        model.config.tokens_at_once = before
    return logits, state, gradients(model, scored(logits, state, mask))


def assert_one_pass_is_the_loop(model: Any, ids: Tensor, mask: Tensor, at_once: int = 10_000, **options: Any) -> None:
    ours, state, found = in_runs(model, at_once, ids, mask, **options)
    theirs, left, expected = in_runs(model, 1, ids, mask, **options)
    assert_close(ours[mask.bool()], theirs[mask.bool()], "outputs")
    assert_same_memory(state, left)
    for name in expected:
        scale = max(1.0, expected[name].abs().max().item())
        assert_close(found[name] / scale, expected[name] / scale, f"gradient of {name}")


def ragged(lengths: tuple[int, ...] = (17, 5, 9, 1)) -> tuple[Tensor, Tensor]:
    return padded([tokens(length, seed=length) for length in lengths], "right", PAD)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_pass_is_the_loop_in_every_family(family: str) -> None:
    assert_one_pass_is_the_loop(shared(family, "selected", overlap=2), *ragged())


@pytest.mark.parametrize("variant", CARRIERS)
@pytest.mark.parametrize(("family", "overlap"), [("llama", 2), ("bert", 0)])
def test_one_pass_is_the_loop_for_every_carrier(family: str, overlap: int, variant: str) -> None:
    model = shared(family, variant, overlap=overlap)
    assert_one_pass_is_the_loop(model, *ragged())
    assert_one_pass_is_the_loop(model, *ragged((13, 13)), at_once=2 * 2 * WINDOW)  # two windows at once, then the rest


@pytest.mark.parametrize("truncate_after", [None, 1, 2, 3])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_one_pass_is_the_loop_when_it_is_recomputed_or_truncated(
    checkpointing: bool, truncate_after: int | None
) -> None:
    # Exactness is lost in the backward pass, and gpt2 needs none.
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = recurrent_variant("gpt2", "matched", **no_dropout).train()
    model.config.truncate_after, model.bottleneck_checkpointing = truncate_after, checkpointing
    assert_one_pass_is_the_loop(model, *ragged((33, 20)))
    if checkpointing:
        _, _, ours = in_runs(model, 10_000, *ragged((33, 20)))
        model.bottleneck_checkpointing = False
        _, _, theirs = in_runs(model, 10_000, *ragged((33, 20)))
        for name in theirs:
            assert_close(ours[name], theirs[name], f"gradient of {name}, recomputed")


@pytest.mark.parametrize("after", [1, 2])
def test_truncation_cuts_where_a_state_detached_by_hand_would(after: int) -> None:
    model = copy.deepcopy(shared("llama", "selected"))
    ids, mask = ragged((20, 20))
    state, parts = None, []
    for piece in ids.split(after * WINDOW, 1):
        logits, state = read(model, piece, None if state is None else state.detach())
        parts.append(logits)
    expected = gradients(model, scored(torch.cat(parts, 1), state, mask))
    model.config.truncate_after = after
    _, _, found = in_runs(model, 10_000, ids, mask)
    for name in expected:
        assert_close(found[name], expected[name], f"gradient of {name}")


def test_several_windows_do_run_at_once() -> None:
    model = shared("llama", "selected")
    shapes = []
    handle = model.backbone.base_model.layers[0].register_forward_hook(lambda *call: shapes.append(call[2].shape[:2]))
    try:
        read(model, tokens(2, 23))
    finally:
        handle.remove()
    assert sum(rows for rows, _ in shapes) == 2 * 5 and len(shapes) <= 2, "five windows of each row"


# -- remembering all


ROTARY = ["gpt_neox", "llama", "mistral", "qwen3", "phi", "olmo2", "gemma3_text", "smollm3"]


@pytest.mark.parametrize(("variant", "overlap", "sinks"), [("recent", 0, 0), ("selected", 2, 1)])
@pytest.mark.parametrize("family", ROTARY)
@torch.no_grad()
def test_a_memory_of_everything_is_attention_to_everything(family: str, variant: str, overlap: int, sinks: int) -> None:
    """As one window as long as the document: keys are turned to where they stood. Layers with local attention see no
    further than they do there."""
    model = recurrent_variant(family, variant, overlap=overlap, fields={"slots": 16, "sinks": sinks})
    ids = tokens(2, 16)
    expected = model.backbone(ids).logits
    assert (read(model, ids)[0] - expected).abs().max() > 1e-3, "with random corrections"
    for parameter in model.carrier.parameters():
        parameter.zero_()
    assert_close(read(model, ids)[0], expected, "outputs")


@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("variant", CARRIERS)
@torch.no_grad()
def test_the_first_window_of_a_document_is_the_backbones_bit_for_bit(variant: str, use_cache: bool) -> None:
    model = shared("llama", variant, overlap=2)
    for length in (WINDOW - 1, WINDOW):
        ids = tokens(2, length)
        assert torch.equal(model(ids, use_cache=use_cache).logits, model.backbone(ids, use_cache=use_cache).logits)


@pytest.mark.parametrize("variant", ["recent", "matched"])
def test_what_is_learned_counts_whatever_the_optimizer(variant: str) -> None:
    """Fused optimizers change values without counting it as a change."""
    model = recurrent_variant("llama", variant).float()
    ids = tokens(1, 20)
    with torch.no_grad():
        for tensor in model.carrier.parameters():
            tensor.zero_()
        before = model(ids).logits
        assert not model.carrier.adapts
    optimizer = torch.optim.AdamW(model.carrier.parameters(), lr=0.1, fused=True)
    for tensor in model.carrier.parameters():
        tensor.grad = torch.ones_like(tensor)
    optimizer.step()
    with torch.no_grad():
        assert model.carrier.adapts and not torch.equal(model(ids).logits, before)


@pytest.mark.parametrize("variant", SOME)
def test_models_that_were_made_for_inference_alone(variant: str) -> None:
    with torch.inference_mode():
        model = recurrent_variant("llama", variant)
        ids = tokens(1, 20)
        inferred = model(ids).logits
    again = recurrent_variant("llama", variant)
    again(ids.clone(), labels=ids.clone()).loss.backward()
    assert_close(inferred.clone(), again(ids.clone()).logits, "outputs")


@pytest.mark.parametrize("variant", SOME)
@torch.no_grad()
def test_a_new_document_is_free_of_numbers_that_overflowed_in_the_old_one(variant: str) -> None:
    model = shared("llama", variant)
    ids = tokens(2, 12)
    state = model(ids).state
    spoilt = tuple(
        part.masked_fill(torch.ones_like(part) > 0, torch.nan) if part.is_floating_point() else part
        for part in state.memory
    )
    spoilt_state = replace(
        state,
        memory=tuple(
            torch.where(torch.tensor([True, False]).view(-1, *[1] * (a.dim() - 1)), b, a)
            for a, b in zip(state.memory, spoilt, strict=True)
        ),
    )
    more = tokens(2, 17, seed=1)
    ours = model(more, state=spoilt_state, starts_document=[True, False]).logits
    assert_close(ours, model(more, state=state, starts_document=[True, False]).logits, "outputs")


@pytest.mark.parametrize(("family", "use_cache"), [("llama", True), ("modernbert", False)])
@torch.no_grad()
def test_scores_far_apart_stay_finite_in_rows_of_unequal_length(family: str, use_cache: bool) -> None:
    """Slots may get so much attention that nothing is left of the window's tokens in single precision."""
    model = recurrent_variant(family, "matched", window=6, fields={"slots": 18}).float()
    for name, parameter in model.backbone.named_parameters():
        if any(part in name for part in ("q_proj", "k_proj", "Wqkv")):
            parameter *= 16
    state = None
    for step in range(8):
        ids, mask = padded([tokens((3 * row + step) % 7 + 1, seed=row + 10 * step) for row in range(6)], "right")
        output = model(ids, attention_mask=mask, state=state, use_cache=use_cache)
        state = output.state
        assert all(bool(part.isfinite().all()) for slots in grouped(state.memory) for part in slots)
        assert bool(output.logits.isfinite().all())
