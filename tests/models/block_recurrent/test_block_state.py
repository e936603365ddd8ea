"""BlockState: what each of its verbs does, what a file of it can and cannot be, and whose it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import block_models
import pytest
import torch
from block_models import PRESETS
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_models import recurrent, tokens
from torch import Tensor

from onward import BlockState, WindowState

OPTIONS = ["one state", "two recurrent layers", "memory and states", "memory and feedback", "blocks of one token"]
SOME = ["Slide:12L", "Rec:lstm:dual", "Feedback:fixed:skip", "memory and states", "two recurrent layers"]


build = cache(block_models.build)


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif value is not None:
        for item in value:
            yield from tensors(item)


def assert_same(one: BlockState, other: BlockState) -> None:
    assert (one.model, one.tokens) == (other.model, other.tokens)
    ours, theirs = list(tensors(one.layers)), list(tensors(other.layers))
    assert len(ours) == len(theirs)
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@torch.no_grad()
def state_of(model: Any, lengths: list[int]) -> BlockState:
    """One row for each length."""
    mask = torch.arange(max(1, *lengths)) < torch.tensor(lengths)[:, None]
    return model(tokens(*mask.shape), attention_mask=mask).state


@torch.no_grad()
def goes_on(model: Any, state: BlockState | None, ids: Tensor) -> Tensor:
    return model(ids, state=state).logits


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


# -- its verbs


@pytest.mark.parametrize("case", PRESETS)
def test_detach_cuts_every_tensor_off_the_graph_and_keeps_its_value(case: str) -> None:
    state = build(case)(tokens(2, 2 * build(case).config.window + 3)).state
    cut = state.detach()
    assert not any(t.requires_grad for t in tensors(cut.layers))
    assert_same(cut, state)
    assert any(t.requires_grad for t in tensors(state.layers)), "the state itself must not change"


@pytest.mark.parametrize("case", SOME)
def test_to_moves_and_casts_every_tensor_and_the_cast_state_is_read_on(case: str) -> None:
    model = build(case)
    state = state_of(model, [19, 8, 3])
    assert {t.device.type for t in tensors(state.to("meta").layers)} == {"meta"}
    single = state.to(torch.float32)
    assert {t.dtype for t in tensors(single.layers)} == {torch.float32} and single.tokens == state.tokens
    assert {t.dtype for t in tensors(state.layers)} == {torch.float64}, "the state itself must not change"
    ids = tokens(3, 11, seed=1)
    back = goes_on(model, single.to(torch.float64), ids)
    torch.testing.assert_close(back, goes_on(model, state, ids), rtol=0, atol=1e-4)
    assert_same(state.to(torch.float64), state)


@pytest.mark.parametrize("case", SOME)
@pytest.mark.parametrize("lengths", [[19, 8, 3], [24, 8, 16]])
def test_a_state_of_another_dtype_is_read_on_in_the_models_own(case: str, lengths: list[int]) -> None:
    """As when a model is loaded in half precision, and its state is not."""
    model = build(case)
    ids = tokens(3, 11, seed=1)
    state = state_of(model, lengths)
    ours = goes_on(model, state.to(torch.float32), ids)
    assert ours.dtype == torch.float64
    torch.testing.assert_close(ours, goes_on(model, state, ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize("order", [[2, 0, 1], [1, 1, 0, 2, 2], [1], torch.tensor([2, 1])])
@pytest.mark.parametrize("case", SOME)
def test_select_reorders_repeats_and_drops_rows(case: str, order: Any) -> None:
    model = build(case)
    state, ids = state_of(model, [19, 8, 3]), tokens(3, 9, seed=1)
    picked = state.select(order)
    assert picked.batch_size == len(order) and picked.tokens == tuple([19, 8, 3][row] for row in order)
    close(goes_on(model, picked, ids[torch.as_tensor(order)]), goes_on(model, state, ids)[torch.as_tensor(order)])


@pytest.mark.parametrize("order", [[0, 3], [-1], [7]])
def test_select_refuses_rows_that_are_not_there(order: list[int]) -> None:
    with pytest.raises(IndexError, match=r"rows .* of a state of 3 rows"):
        state_of(build("Rec:fixed:skip"), [19, 8, 3]).select(order)


@pytest.mark.parametrize("marks", [[True] * 3, [False, True, False], torch.tensor([True, False, True])])
@pytest.mark.parametrize("case", SOME)
def test_reset_rows_begin_anew_and_the_others_go_on(case: str, marks: Any) -> None:
    model = build(case)
    state, ids = state_of(model, [19, 8, 3]), tokens(3, 9, seed=1)
    emptied = state.reset(marks)
    assert emptied.tokens == tuple(0 if mark else n for mark, n in zip(marks, [19, 8, 3], strict=True))
    expected = torch.where(torch.as_tensor(marks)[:, None, None], goes_on(model, None, ids), goes_on(model, state, ids))
    close(goes_on(model, emptied, ids), expected)
    assert state.tokens == (19, 8, 3)


@pytest.mark.parametrize(
    "marks",
    [[True, False], [0, 1, 1], torch.tensor([0, 1, 1]), torch.tensor([[True]] * 3), True, torch.tensor(True)],
)
def test_reset_marks_that_do_not_fit_are_refused(marks: Any) -> None:
    """Also a column of marks, every one of which would pass for True."""
    model = build("Rec:fixed:skip")
    state = state_of(model, [19, 8, 3])
    with pytest.raises((TypeError, ValueError), match="marks|starts_document"):
        state.reset(marks)
    with pytest.raises((TypeError, ValueError), match="marks|starts_document"):
        model(tokens(3, 2), state=state, starts_document=marks)


@pytest.mark.parametrize("rows", [[True, False, True], torch.tensor([True, False, True])], ids=str)
def test_rows_are_selected_by_their_numbers(rows: Any) -> None:
    with pytest.raises(TypeError, match="rows must be row numbers.*reset"):
        state_of(build("Rec:fixed:skip"), [19, 8, 3]).select(rows)


@pytest.mark.parametrize("lengths", [[19, 8], [0, 11]], ids=str)
@pytest.mark.parametrize("case", PRESETS)
def test_joined_rows_go_on_as_they_would_alone(case: str, lengths: list[int]) -> None:
    """Also of rows inside a block with rows between two, of which nothing is opened."""
    model = build(case)
    states = [state_of(model, [n]) for n in lengths]
    together = BlockState.join(states)
    assert together.tokens == tuple(lengths) and together.model == states[0].model
    ids = tokens(2, 13, seed=1)
    ours = goes_on(model, together, ids)
    for row, state in enumerate(states):
        close(ours[row], goes_on(model, state, ids[row : row + 1])[0])


@pytest.mark.parametrize("case", SOME)
def test_rows_taken_apart_and_joined_are_the_state_again(case: str) -> None:
    model = build(case)
    state, ids = state_of(model, [19, 8, 3]), tokens(3, 9, seed=1)
    again = BlockState.join([state.select([0]), state.select([1, 2])])
    assert_same(again, state)
    close(goes_on(model, again, ids), goes_on(model, state, ids))


@pytest.mark.parametrize(
    "others", [("Slide:12L", {}), ("Rec:fixed:skip", {"window": 4}), ("Rec:lstm:skip", {}), ("Slide:13L", {})]
)
def test_states_of_different_models_do_not_join(others: tuple[str, dict[str, Any]]) -> None:
    states = [state_of(build("Rec:fixed:skip"), [8]), state_of(build(others[0], **others[1]), [8])]
    for pair in (states, states[::-1]):
        with pytest.raises(ValueError, match="model"):
            BlockState.join(pair)


def test_no_states_do_not_join() -> None:
    with pytest.raises(ValueError, match="no state|nothing|at least one"):
        BlockState.join([])


@pytest.mark.parametrize("case", [*PRESETS, *OPTIONS])
def test_no_verb_changes_the_state_itself(case: str, tmp_path: Path) -> None:
    state = state_of(build(case), [16, 16, 16])
    before = state._map(torch.clone)
    state.detach(), state.to(torch.float32), state.select([1]), state.reset([True, False, True])
    BlockState.join([state, state]), state.save(tmp_path / "state")
    assert_same(state, before)


# -- files


@pytest.mark.parametrize("lengths", [[0, 0], [8, 8], [19, 8]], ids=str)
@pytest.mark.parametrize("case", [*PRESETS, *OPTIONS])
def test_a_saved_state_comes_back_bit_for_bit(case: str, lengths: list[int], tmp_path: Path) -> None:
    model = build(case)
    state = state_of(model, lengths)
    state.save(tmp_path / "state.safetensors")
    loaded = BlockState.load(str(tmp_path / "state.safetensors"))
    assert_same(loaded, state)
    assert type(loaded.layers[0]) is type(state.layers[0])
    ids = tokens(2, 11, seed=1)
    assert torch.equal(goes_on(model, loaded, ids), goes_on(model, state, ids))


def test_one_row_with_a_graph_and_a_single_state_vector_is_saved_too(tmp_path: Path) -> None:
    """Then tensors lie next to each other in one storage, which a file does not take as it is."""
    state = build("one state")(tokens(1, 11)).state
    state.save(tmp_path / "state")
    loaded = BlockState.load(tmp_path / "state")
    assert not any(t.requires_grad for t in tensors(loaded.layers))
    assert_same(loaded, state.detach())


def test_a_state_in_half_precision_is_saved_in_it(tmp_path: Path) -> None:
    state = state_of(build("memory and states"), [19, 8]).to(torch.bfloat16)
    state.save(tmp_path / "state")
    assert_same(BlockState.load(tmp_path / "state"), state)


def test_files_that_are_no_states_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    state_of(build("Rec:fixed:skip"), [11]).save(path)
    whole = path.read_bytes()
    for kept in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:kept])
        with pytest.raises(ValueError, match="not a readable state file"):
            BlockState.load(path)
    save_file({"weight": torch.ones(2)}, path)
    with pytest.raises(ValueError, match="not a state saved by onward"):
        BlockState.load(path)
    with pytest.raises(ValueError, match="missing is not a readable state file"):
        BlockState.load(tmp_path / "missing")


def test_states_of_the_other_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    recurrent("gpt2", window=8)(tokens(1, 5)).state.save(path)
    with pytest.raises(ValueError, match="window-recurrent model, not of a block-recurrent"):
        BlockState.load(path)
    state_of(build("Rec:fixed:skip"), [5]).save(path)
    with pytest.raises(ValueError, match="block-recurrent model, not of a window-recurrent"):
        WindowState.load(path)


@pytest.mark.parametrize("gone", ["1.cell.opened.keys", "1.cell.vectors", "2.recent.values", "2."])
def test_a_file_with_parts_missing_is_refused(gone: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    state_of(build("Rec:fixed:skip"), [11]).save(path)
    with safe_open(path, "pt") as file:
        facts = file.metadata()
    kept = {name: t for name, t in load_file(path).items() if not name.startswith(gone)}
    save_file(kept, path, metadata=facts)
    with pytest.raises(ValueError, match=f"{path} .*({gone}|damaged|not a)"):
        BlockState.load(path)


@pytest.mark.parametrize("facts", ["hello", "[1]", '{"kind": "block"}', json.dumps({"kind": "block", "layers": "x"})])
def test_a_file_with_strange_facts_is_refused(facts: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    save_file({"0.recent.keys": torch.ones(1)}, path, metadata={"onward_state": facts})
    with pytest.raises(ValueError, match=f"{path} "):
        BlockState.load(path)


# -- whose it is

OTHERS: list[tuple[str, str, dict[str, Any]]] = [
    ("Rec:fixed:skip", "Rec:fixed:skip", {"window": 9}),
    ("Rec:fixed:skip", "Rec:fixed:skip", {"num_states": 9}),
    ("Rec:fixed:skip", "Rec:fixed:skip", {"recurrent_layers": (1,)}),
    ("Rec:fixed:skip", "Rec:fixed:skip", {"recurrent_layers": (2, 3)}),
    ("Rec:fixed:skip", "Rec:fixed:skip", {"hidden_size": 64}),
    ("Rec:fixed:skip", "Rec:fixed:skip", {"head_dim": 9}),
    ("Rec:fixed:skip", "Rec:fixed:skip", {"num_attention_heads": 2}),
    ("Rec:fixed:skip", "Rec:lstm:skip", {}),
    ("Rec:fixed:skip", "Rec:fixed:dual", {}),
    ("Rec:fixed:skip", "Feedback:fixed:skip", {}),
    ("Rec:fixed:skip", "Rec:fixed:skip", {"attends_to_itself": False}),
    ("Rec:lstm:skip", "Rec:lstm:skip", {"gate_tanh": "single"}),
    ("Slide:12L", "Slide:13L", {}),
    ("Slide:12L", "Rec:fixed:skip", {}),
    ("Slide:12L", "XL:1024", {}),
    ("Slide:12L", "little memory", {}),
    ("little memory", "little memory", {"memory_size": 24}),
    ("little memory", "memory in the first layer", {}),
]


@pytest.mark.parametrize(("case", "other", "fields"), OTHERS, ids=[f"{a} - {b} {c}" for a, b, c in OTHERS])
def test_a_state_of_another_configuration_is_refused_with_both_named(
    case: str, other: str, fields: dict[str, Any]
) -> None:
    ours, theirs = build(case), build(other, **fields)
    assert ours.state_name != theirs.state_name
    for model, foreign in ((ours, theirs), (theirs, ours)):
        with pytest.raises(ValueError) as error:
            model(tokens(2, 3), state=state_of(foreign, [19, 8]))
        assert model.state_name in str(error.value) and foreign.state_name in str(error.value)


def test_a_state_fits_the_bare_model_too() -> None:
    model = build("Rec:fixed:skip")
    state = state_of(model, [11])
    assert model.model(tokens(1, 3), state=state).state.tokens == (14,)


def test_a_state_of_other_rows_is_refused() -> None:
    model = build("Rec:fixed:skip")
    for rows in (1, 3):
        with pytest.raises(ValueError, match=f"the state has {rows} rows, and the input 2: use state.select"):
            model(tokens(2, 3), state=state_of(model, [8] * rows))


@pytest.mark.parametrize("wrong", ["state.safetensors", Path("state"), {"layers": ()}, (torch.zeros(2, 3),)])
def test_what_is_no_state_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="BlockState"):
        build("Rec:fixed:skip")(tokens(2, 3), state=wrong)
    window = recurrent("gpt2", window=8)(tokens(2, 5)).state
    with pytest.raises((TypeError, ValueError), match="BlockState|another model"):
        build("Rec:fixed:skip")(tokens(2, 3), state=window)
