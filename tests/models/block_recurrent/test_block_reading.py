"""The central promise: a document cut anywhere, in any company of other rows, is read as it is whole and alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from block_models import CASES, PRESETS, build, tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import tokens
from torch import Tensor, nn

from onward import BlockRecurrentForCausalLM, BlockState

RECURRENT = [case for case in CASES if tiny(case).recurrent_layers]
REMEMBERING = [case for case in CASES if tiny(case).memory_size]
A_FEW = settings(max_examples=3, deadline=None, derandomize=True)


shared = cache(build)


def close(ours: Any, theirs: Any, what: str = "") -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12, msg=lambda text: f"{what}: {text}")


def read(model: Any, ids: Tensor, sizes: list[int], state: BlockState | None = None) -> tuple[Tensor, BlockState]:
    """The logits of all pieces, and the state after the last."""
    logits = []
    for piece in ids.split(sizes, dim=1):
        output = model(piece, state=state)
        logits.append(output.logits)
        state = output.state
    assert state is not None
    return torch.cat(logits, 1), state


def carried(model: Any, state: BlockState, row: int = 0) -> dict[str, Tensor]:
    """All of a row's state that may be looked at, by name: the rest is filling."""
    window, limit, count = model.config.window, model.config.memory_size, state.tokens[row]
    found = {}
    for number, layer in enumerate(state.layers, start=1):
        sizes = {"recent": min(count, window), "memory": min(count // window * window, limit)}
        for part, size in sizes.items():
            for name, x in (getattr(layer, part) or layer.recent)._asdict().items():
                assert part == "recent" or layer.memory is None or x.shape[2] >= size
                if size:
                    found[f"{number}.{part}.{name}"] = x[row, :, -size:]
        if layer.memory is None:
            found = {name: x for name, x in found.items() if not name.startswith(f"{number}.memory")}
        if layer.cell is not None and count:
            found[f"{number}.vectors"] = layer.cell.vectors[row]
            if count % window:
                found |= {f"{number}.{name}": x[row] for name, x in layer.cell.opened._asdict().items()}
    return found


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in nested tuples."""
    if isinstance(value, Tensor):
        yield value
    elif value is not None:
        for item in value:
            yield from tensors(item)


@st.composite
def cuts(draw: Any, window: int) -> list[int]:
    """Sizes of one to six pieces, shorter and longer than a window."""
    longest = 2 * window + 3 if window < 10 else window + 3
    return draw(st.lists(st.integers(1, longest), min_size=1, max_size=6 if window < 10 else 3))


# -- pieces


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_any_pieces_are_the_whole(case: str) -> None:
    model = shared(case)

    @A_FEW
    @given(cuts(model.config.window))
    def check(sizes: list[int]) -> None:
        ids = tokens(2, sum(sizes))
        whole = model(ids)
        logits, state = read(model, ids, sizes)
        close(logits, whole.logits, "logits")
        assert state.tokens == whole.state.tokens == (sum(sizes),) * 2
        for row in (0, 1):
            close(carried(model, state, row), carried(model, whole.state, row), f"row {row}")
        ours, theirs = list(tensors(state.layers)), list(tensors(whole.state.layers))
        assert [x.shape for x in ours] == [x.shape for x in theirs]

    check()


@pytest.mark.parametrize("case", PRESETS)
def test_pieces_have_all_gradients_of_the_whole(case: str) -> None:
    model = build(case).train()
    window = model.config.window
    ids = tokens(2, 2 * window + 7)
    following = nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
    count = ids.shape[0] * (ids.shape[1] - 1)
    parameters = dict(model.named_parameters())
    whole = model(ids, labels=ids).loss
    expected = torch.autograd.grad(whole, list(parameters.values()))

    losses, state = [], None
    sizes = [1, 4, window, window - 3, 5]
    for piece, labels in zip(ids.split(sizes, 1), following.split(sizes, 1), strict=True):
        output = model(piece, shift_labels=labels, state=state, num_items_in_batch=count)
        losses.append(output.loss)
        state = output.state
    ours = torch.stack(losses).sum()
    close(ours, whole, "loss")
    for name, mine, theirs in zip(parameters, torch.autograd.grad(ours, parameters.values()), expected, strict=True):
        close(mine, theirs, name)


@pytest.mark.parametrize("case", PRESETS)
def test_a_piece_gets_gradients_from_the_next_unless_the_state_is_detached(case: str) -> None:
    model = shared(case)
    first = model.model.embed_tokens(tokens(1, 11)).detach().requires_grad_()
    state = model(inputs_embeds=first).state
    second = tokens(1, 6, seed=1)
    loss = model(second, labels=second, state=state).loss
    (gradient,) = torch.autograd.grad(loss, first, retain_graph=True)
    assert (gradient[0].abs().amax(1) > 1e-9)[-7:].all(), "a window of tokens lies right before the next piece"
    cut = model(second, labels=second, state=state.detach()).loss
    close(cut, loss)
    assert torch.autograd.grad(cut, first, allow_unused=True) == (None,)


@pytest.mark.parametrize("case", CASES)
def test_only_states_bring_gradients_from_beyond_the_windows_and_memory_brings_none(case: str) -> None:
    config = tiny(case)
    model = shared(case)
    reach = config.num_hidden_layers * config.window  # what a stack of windows can see
    far = model.model.embed_tokens(tokens(1, config.window)).detach().requires_grad_()
    between = model.model.embed_tokens(tokens(1, reach, seed=1)).detach()
    question = model.model.embed_tokens(tokens(1, 3, seed=2)).detach()
    answer = model(inputs_embeds=torch.cat([far, between, question], 1), logits_to_keep=3).logits
    weights = torch.randn(answer.shape, generator=torch.Generator().manual_seed(0), dtype=answer.dtype)
    (gradient,) = torch.autograd.grad((answer * weights).sum(), far, allow_unused=True)
    gradient = torch.zeros_like(far) if gradient is None else gradient
    assert bool(gradient.abs().max() > 1e-12) == bool(config.recurrent_layers)

    if config.memory_size >= reach + config.window and not config.recurrent_layers:
        with torch.no_grad():
            other = model(inputs_embeds=torch.cat([-far, between, question], 1), logits_to_keep=3).logits
        assert (other - answer).abs().max() > 1e-6, "what is remembered matters all the same"


@pytest.mark.parametrize("case", REMEMBERING)
def test_remembered_keys_and_values_are_cut_off_at_once(case: str) -> None:
    model = shared(case)
    state = model(tokens(2, 2 * model.config.window + 3)).state
    (layer,) = (layer for layer in state.layers if layer.memory is not None)
    assert not any(x.requires_grad for x in layer.memory)
    assert all(x.requires_grad for x in layer.recent)


# -- documents that start


def as_it_is(state: BlockState, _: Path) -> BlockState:
    return state


def selected(state: BlockState, _: Path) -> BlockState:
    return state.select([2, 0, 1]).select([1, 2, 0])


def joined(state: BlockState, _: Path) -> BlockState:
    return BlockState.join([state.select([0]), state.select([1, 2])])


def saved_and_loaded(state: BlockState, folder: Path) -> BlockState:
    state.save(folder / "state.safetensors")
    return BlockState.load(folder / "state.safetensors")


@pytest.mark.parametrize("inside", [0, 3], ids=["between two blocks", "inside a block"])
@pytest.mark.parametrize("case", PRESETS)
@torch.no_grad()
def test_a_row_that_starts_a_document_is_read_afresh_and_the_others_go_on(
    case: str, inside: int, tmp_path: Path
) -> None:
    model = shared(case)
    window = model.config.window
    state = model(tokens(3, 2 * window + inside)).state
    ids = tokens(3, window + 5, seed=1)
    going, fresh = model(ids, state=state), model(ids)
    assert (going.logits - fresh.logits).abs().max() > 1e-3
    for starts, way in (
        ([False, True, False], as_it_is),
        (torch.tensor([True, False, True]), selected),
        ([True, True, True], joined),
        (torch.tensor([False, False, True]), saved_and_loaded),
    ):
        ours = model(ids, state=way(state, tmp_path), starts_document=starts)
        for row, starting in enumerate(starts):
            expected = fresh if starting else going
            close(ours.logits[row], expected.logits[row], f"row {row}, {way.__name__}, {starts}")
            close(carried(model, ours.state, row), carried(model, expected.state, row))


@pytest.mark.parametrize("case", PRESETS)
@torch.no_grad()
def test_a_document_may_start_without_any_token(case: str) -> None:
    model = shared(case)
    state = model(tokens(2, 11)).state
    mask = torch.tensor([[1] * 4, [0] * 4])
    after = model(tokens(2, 4, seed=1), attention_mask=mask, state=state, starts_document=[False, True]).state
    assert after.tokens == (15, 0)
    ids = tokens(2, 9, seed=2)
    close(model(ids, state=after).logits[1], model(ids).logits[1])


@pytest.mark.parametrize("case", ["Slide:12L", "Rec:fixed:skip", "Feedback:lstm:single", "little memory"])
@torch.no_grad()
def test_a_document_gone_wrong_does_not_spoil_the_next(case: str) -> None:
    """In half precision a row can overflow; what follows its end must not."""
    model = shared(case)
    state = model(tokens(2, 19)).state
    state = state._map(lambda t: t.index_fill(0, torch.tensor([1]), torch.nan))
    ids = tokens(2, 12, seed=1)
    close(model(ids, state=state, starts_document=[False, True]).logits[1], model(ids).logits[1])


# -- rows that are not in step, and padding


def in_place(rows: list[Tensor], side: str) -> tuple[Tensor, Tensor]:
    """Rows of any lengths as one batch, with its mask."""
    width = max(1, max(len(row) for row in rows))
    ids, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.long)
    for number, row in enumerate(rows):
        spare = width - len(row)
        start = {"left": spare, "right": 0, "both": spare // 2}[side]
        ids[number, start : start + len(row)] = row
        mask[number, start : start + len(row)] = 1
    return ids, mask


def check_rows_are_read_as_if_alone(model: Any, alone: Any, calls: list[list[int]], side: str) -> None:
    """calls: for each call the number of new tokens of every row."""
    rows = len(calls[0])
    documents: list[list[Tensor]] = [[] for _ in range(rows)]
    logits: list[list[Tensor]] = [[] for _ in range(rows)]
    state = None
    for number, counts in enumerate(calls):
        new = [tokens(count, seed=97 * number + row) for row, count in enumerate(counts)]
        ids, mask = in_place(new, side)
        output = model(ids, attention_mask=mask, state=state)
        state = output.state
        for row in range(rows):
            documents[row].append(new[row])
            logits[row].append(output.logits[row, mask[row].bool()])
    for row in range(rows):
        ids = torch.cat(documents[row])
        assert state is not None and state.tokens[row] == len(ids)
        if len(ids):
            expected = alone(ids[None])
            close(torch.cat(logits[row]), expected.logits[0], f"row {row} of {calls}")
            close(carried(model, state, row), carried(model, expected.state), f"row {row} of {calls}")


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_rows_out_of_step_are_read_as_if_alone(case: str) -> None:
    model = shared(case)
    window = model.config.window
    longest = 2 * window + 2 if window < 10 else window + 5

    @A_FEW
    @given(
        st.integers(1, 3).flatmap(
            lambda rows: st.lists(
                st.lists(st.integers(0, longest), min_size=rows, max_size=rows), min_size=2, max_size=2
            )
        ),
        st.sampled_from(["left", "right", "both"]),
    )
    def check(calls: list[list[int]], side: str) -> None:
        check_rows_are_read_as_if_alone(model, model, calls, side)

    check()


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("case", PRESETS)
@torch.no_grad()
def test_a_row_that_is_out_of_step_and_shorter(case: str, checkpointing: bool) -> None:
    """Read block by block, as with feedback or checkpointing, its pieces lie elsewhere than the longest row's."""
    model = build(case)
    if checkpointing:
        model.gradient_checkpointing_enable()
        model.train()
    window = model.config.window
    check_rows_are_read_as_if_alone(model, shared(case), [[0, 3, 5], [2 * window, window - 1, 1]], "right")


@pytest.mark.parametrize("case", PRESETS)
@torch.no_grad()
def test_an_entirely_padded_row_stays_as_it_was_bit_for_bit(case: str) -> None:
    model = shared(case)
    window = model.config.window
    before, mask = in_place([tokens(2 * window), tokens(window + 3), tokens(2)], "left")
    state = model(before, attention_mask=mask).state
    for idle in range(3):
        ids = tokens(3, window + 2, seed=1)
        mask = torch.ones_like(ids)
        mask[idle] = 0
        after = model(ids, attention_mask=mask, state=state).state
        assert after.tokens[idle] == state.tokens[idle]
        ours, theirs = carried(model, after, idle), carried(model, state, idle)
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    untouched = model(ids, attention_mask=torch.zeros_like(ids), state=state).state
    assert untouched.tokens == state.tokens
    assert all(torch.equal(a, b) for a, b in zip(tensors(untouched.layers), tensors(state.layers), strict=True))


@pytest.mark.parametrize("case", PRESETS)
def test_nothing_but_padding_has_no_loss_and_no_gradient(case: str) -> None:
    model = build(case).train()
    ids = tokens(2, 5)
    output = model(ids, attention_mask=torch.zeros_like(ids), labels=ids)
    output.loss.backward()
    assert output.loss == 0 and output.state.tokens == (0, 0)
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize(
    ("case", "side"), [*((preset, "left") for preset in PRESETS), ("Rec:lstm:dual", "right"), ("Slide:12L", "both")]
)
def test_the_loss_and_gradients_of_a_padded_batch_are_those_of_its_rows(case: str, side: str) -> None:
    model = build(case).train()
    parameters = list(model.parameters())
    rows = [tokens(model.config.window + 3), tokens(5, seed=1), tokens(1, seed=2)]
    ids, mask = in_place(rows, side)
    ids = ids.masked_fill(mask == 0, 7)  # a real word: neither a number nor a label may show that it is padding
    together = model(ids, attention_mask=mask, labels=ids).loss
    count = sum(len(row) - 1 for row in rows)
    each = [model(row[None], labels=row[None], num_items_in_batch=count).loss for row in rows]
    close(together, torch.stack(each).sum())
    ours = torch.autograd.grad(together, parameters, allow_unused=True)
    theirs = torch.autograd.grad(torch.stack(each).sum(), parameters, allow_unused=True)
    for (name, _), mine, other in zip(model.named_parameters(), ours, theirs, strict=True):
        assert (mine is None) == (other is None), name
        if mine is not None:
            close(mine, other, name)


@pytest.mark.parametrize("side", ["left", "right"])
def test_shift_labels_at_padding_do_not_count(side: str) -> None:
    model = shared("Rec:fixed:skip")
    rows = [tokens(11), tokens(6, seed=1)]
    ids, mask = in_place(rows, side)
    loss = model(ids, attention_mask=mask, shift_labels=ids).loss
    each = [model(row[None], shift_labels=row[None], num_items_in_batch=17).loss for row in rows]
    close(loss, torch.stack(each).sum())


# -- what else a call may not do


@pytest.mark.parametrize("case", [*PRESETS, "memory and feedback", "two recurrent layers", "blocks of three tokens"])
@torch.no_grad()
def test_the_state_that_is_given_is_never_changed(case: str) -> None:
    model = shared(case)
    before, mask = in_place([tokens(2 * model.config.window), tokens(3), tokens(11)], "right")
    state = model(before, attention_mask=mask).state
    copy = state._map(torch.clone)
    ids = tokens(3, 2 * model.config.window + 1, seed=1)
    model(ids, state=state)
    model(ids, state=state, starts_document=[True, False, True])
    model(ids, state=state, attention_mask=in_place([ids[0], ids[1, :3], ids[2, :0]], "left")[1])
    model.generate(ids[:, :2], state=state, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert state.tokens == copy.tokens
    assert all(torch.equal(a, b) for a, b in zip(tensors(state.layers), tensors(copy.layers), strict=True))


@pytest.mark.parametrize("case", PRESETS)
def test_hidden_states_are_those_of_each_layer_and_of_any_pieces(case: str) -> None:
    model = shared(case).model
    ids = tokens(2, 2 * model.config.window + 3)
    whole = model(ids, output_hidden_states=True)
    assert len(whole.hidden_states) == model.config.num_hidden_layers + 1
    assert torch.equal(whole.hidden_states[0], model.embed_tokens(ids))
    assert torch.equal(whole.hidden_states[-1], whole.last_hidden_state)
    first = model(ids[:, :11], output_hidden_states=True)
    second = model(ids[:, 11:], output_hidden_states=True, state=first.state)
    for ours, theirs in zip(
        zip(first.hidden_states, second.hidden_states, strict=True), whole.hidden_states, strict=True
    ):
        close(torch.cat(ours, 1), theirs)


def test_reading_without_gradients_first_does_not_spoil_training() -> None:
    """Nothing that a call keeps for later ones may be bound to its inference mode, or to its device."""
    model = build("Rec:fixed:skip", relative_attention_max_distance=61)  # a table of distances of its own
    ids = tokens(1, 9)
    with torch.inference_mode():
        model(ids)
    model.train()(ids, labels=ids).loss.backward()

    fields = {"relative_attention_max_distance": 67}
    with torch.device("meta"):
        BlockRecurrentForCausalLM(tiny("Rec:fixed:skip", **fields))(torch.zeros(1, 9, dtype=torch.long))
    assert build("Rec:fixed:skip", **fields)(ids).logits.isfinite().all()
