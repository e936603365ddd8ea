"""The carried state: what each of its verbs does, and what a file of it can and cannot be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import recurrent, tokens

from onward import WindowState
from onward.models.window_recurrent.state import OpenWindow

CARRIERS: dict[str, dict[str, Any]] = {
    "residual": {},
    "paper": {"residual": False, "pooling": "attention"},
    "spans": {"carrier": "spans", "vectors": 3},
    "slots": {"carrier": "selected", "score": "received", "slots": 4},
    "constant": {"carrier": "constant"},
    "none": {"carrier": "none"},
}
WINDOW = 6


@pytest.fixture(scope="module", params=CARRIERS)
def model(request: pytest.FixtureRequest) -> Any:
    return recurrent("gpt2", window=WINDOW, overlap=2, **CARRIERS[request.param])


@pytest.fixture(scope="module")
def pooled() -> Any:
    return recurrent("gpt2", window=WINDOW, overlap=2)


@torch.no_grad()
def state_of(model: Any, rows: int = 3, length: int = 12, **kwargs: Any) -> WindowState:
    """After 12 tokens the third window is open, and holds four."""
    return model(tokens(rows, length), **kwargs).state


@torch.no_grad()
def goes_on(model: Any, state: WindowState, ids: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    return model(ids, state=state, **kwargs).logits


def all_tensors(state: WindowState) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    state._map(lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found


def assert_same(one: WindowState, other: WindowState) -> None:
    for name in ("model", "has_memory", "prefix_fill"):
        assert getattr(one, name) == getattr(other, name)
    assert (one.open.fill, one.open.cached) == (other.open.fill, other.open.cached)
    assert (one.open.inserted or {}).keys() == (other.open.inserted or {}).keys()
    ours, theirs = all_tensors(one), all_tensors(other)
    assert len(ours) == len(theirs)
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_detach_cuts_every_tensor_off_the_graph_and_keeps_its_value(pooled: Any) -> None:
    state = pooled(tokens(2, 15), use_cache=True).state
    assert state.open.cache is not None and any(t.requires_grad for t in all_tensors(state))
    cut = state.detach()
    assert not any(t.requires_grad for t in all_tensors(cut))
    assert_same(cut, state)
    assert any(t.requires_grad for t in all_tensors(state)), "the state itself must not change"


@pytest.mark.parametrize("order", [[2, 0, 1], [1, 1, 0, 2, 2], [1], torch.tensor([2, 1])])
def test_select_reorders_repeats_and_drops_rows(model: Any, order: Any) -> None:
    state, ids = state_of(model), tokens(3, 9, seed=1)
    rows = torch.as_tensor(order)
    picked = state.select(order)
    assert picked.batch_size == len(order)
    expected = goes_on(model, state, ids)[rows]
    torch.testing.assert_close(goes_on(model, picked, ids[rows]), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("rows", [[0], [1], [2, 0]])
@torch.no_grad()
def test_a_row_selected_out_of_a_ragged_batch_goes_on_as_if_alone(model: Any, rows: list[int]) -> None:
    lengths, ids, more = [3, 5, 11], tokens(3, 11), tokens(3, 8, seed=1)
    mask = torch.arange(11) < torch.tensor(lengths)[:, None]
    state = model(ids, attention_mask=mask).state.select(rows)
    ours = goes_on(model, state, more[rows])
    for place, row in enumerate(rows):
        alone = model(torch.cat([ids[row, : lengths[row]], more[row]])[None]).logits[0, lengths[row] :]
        torch.testing.assert_close(ours[place], alone, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("order", [[0, 3], [-1], [7]])
def test_select_refuses_rows_that_are_not_there(pooled: Any, order: list[int]) -> None:
    with pytest.raises(IndexError, match="of a state of 3 rows"):
        state_of(pooled).select(order)


@pytest.mark.parametrize("marks", [[True, True, True], [False, True, False], torch.tensor([True, False, True])])
@pytest.mark.parametrize("length", [4, 6, 12])
def test_reset_rows_begin_anew_and_the_others_go_on(model: Any, marks: Any, length: int) -> None:
    state, ids = state_of(model, length=length), tokens(3, 9, seed=1)
    ours = goes_on(model, state.reset(marks), ids)
    torch.testing.assert_close(goes_on(model, state, ids, starts_document=marks), ours, rtol=0, atol=0)
    fresh, going = goes_on(model, None, ids), goes_on(model, state, ids)
    expected = torch.where(torch.as_tensor(marks)[:, None, None], fresh, going)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-4)
    assert (fresh - going).abs().max() > 1e-2


def test_reset_refuses_the_wrong_number_of_marks(pooled: Any) -> None:
    with pytest.raises(ValueError, match="starts_document, or marks to reset, has 2 values for 3 rows"):
        state_of(pooled).reset([True, False])


def test_swap_memories_leaves_tokens_alone(pooled: Any) -> None:
    state = state_of(pooled, length=10)  # two windows, just closed
    swapped = state.swap_memories([1, 2, 0])
    assert torch.equal(swapped.open.ids, state.open.ids)
    assert all(torch.equal(a, b[[1, 2, 0]]) for a, b in zip(swapped.memory, state.memory, strict=True))
    ids = tokens(3, 5, seed=1)
    assert (goes_on(pooled, swapped, ids) - goes_on(pooled, state, ids)).abs().max() > 1e-3
    assert_same(swapped.swap_memories([2, 0, 1]), state)


def test_swap_memories_changes_nothing_where_there_is_no_content() -> None:
    constant = recurrent("gpt2", window=WINDOW, overlap=2, carrier="constant")
    state, ids = state_of(constant, length=10), tokens(3, 5, seed=1)
    assert torch.equal(goes_on(constant, state.swap_memories([1, 2, 0]), ids), goes_on(constant, state, ids))


def test_swap_memories_is_refused_inside_a_window_and_for_rows_that_do_not_fit(pooled: Any) -> None:
    with pytest.raises(ValueError, match="only be swapped between windows"):
        state_of(pooled, length=12).swap_memories([1, 2, 0])
    with pytest.raises(ValueError, match="2 memories for a state of 3 rows"):
        state_of(pooled, length=10).swap_memories([1, 0])
    with pytest.raises(IndexError, match="of a state of 3 rows"):
        state_of(pooled, length=10).swap_memories([1, 0, 5])


def test_to_moves_every_tensor_and_casts_only_numbers_with_a_point(model: Any) -> None:
    state = state_of(model)
    assert {t.device.type for t in all_tensors(state.to("meta"))} == {"meta"}
    cast = state.to(torch.float64)
    for before, after in zip(all_tensors(state), all_tensors(cast), strict=True):
        assert after.dtype == (torch.float64 if before.is_floating_point() else before.dtype)


@pytest.mark.parametrize("length", [3, 6, 12])  # in the first window, at an edge, inside a later window
@pytest.mark.parametrize("use_cache", [False, True])
def test_a_saved_state_goes_on_like_the_live_one(model: Any, tmp_path: Path, length: int, use_cache: bool) -> None:
    state = state_of(model, length=length, use_cache=use_cache)
    assert (state.open.cache is not None) == (use_cache and length != 6)
    state.save(tmp_path / "state.safetensors")
    loaded = WindowState.load(tmp_path / "state.safetensors")
    assert_same(loaded, state)
    ids = tokens(3, 11, seed=1)
    assert torch.equal(goes_on(model, loaded, ids), goes_on(model, state, ids))


@pytest.mark.parametrize("rows", [1, 2])
@torch.no_grad()
def test_a_state_with_a_prefix_is_saved_too(pooled: Any, tmp_path: Path, rows: int) -> None:
    state = pooled(tokens(rows, 9), prefix_length=2).state
    state.save(tmp_path / "state")
    loaded = WindowState.load(tmp_path / "state")
    assert_same(loaded, state)
    ids = tokens(rows, 11, seed=1)
    assert torch.equal(goes_on(pooled, loaded, ids), goes_on(pooled, state, ids))


def test_a_state_with_a_graph_is_saved_without_it(pooled: Any, tmp_path: Path) -> None:
    pooled(tokens(1, 15)).state.save(tmp_path / "state")
    assert not any(t.requires_grad for t in all_tensors(WindowState.load(tmp_path / "state")))


def test_files_that_are_no_states_are_refused(pooled: Any, tmp_path: Path) -> None:
    path = tmp_path / "state"
    state_of(pooled).save(path)
    whole = path.read_bytes()
    for kept in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:kept])
        with pytest.raises(ValueError, match="not a readable state file"):
            WindowState.load(path)
    save_file({"weight": torch.ones(2)}, path)
    with pytest.raises(ValueError, match="not a state saved by onward"):
        WindowState.load(path)
    with pytest.raises(ValueError, match="missing is not a readable state file"):
        WindowState.load(tmp_path / "missing")


def test_states_that_do_not_fit_are_refused(pooled: Any) -> None:
    ids = tokens(3, 4)
    other = recurrent("gpt2", window=WINDOW + 1, overlap=2)
    with pytest.raises(ValueError, match="comes from another model"):
        pooled(ids, state=state_of(other))
    with pytest.raises(ValueError, match="the state has 3 rows, and the input 2"):
        pooled(ids[:2], state=state_of(pooled))
    for wrong in ("a path", (torch.zeros(3, 32),), {"memory": None}):
        with pytest.raises(TypeError, match="state must be a WindowState"):
            pooled(ids, state=wrong)


def test_a_state_is_never_changed_by_going_on(model: Any) -> None:
    state = state_of(model)
    before = state._map(torch.clone)
    goes_on(model, state, tokens(3, 9, seed=1))
    goes_on(model, state.reset([True, False, True]), tokens(3, 3, seed=2))
    assert_same(state, before)


def test_trimming_drops_what_no_row_holds() -> None:
    key = torch.arange(5.0).view(1, 1, 5, 1).expand(2, 1, 5, 1)
    window = OpenWindow(ids=torch.arange(5).expand(2, 5), fill=(3, 2), cached=(2, 0), cache=((key, key),))
    trimmed = window.trimmed()
    assert trimmed.ids[0].tolist() == [2, 3, 4] and trimmed.cache is not None
    assert trimmed.cache[0][0][0, 0, :, 0].tolist() == [3, 4]
    emptied = replace(window, fill=(0, 0), cached=(0, 0)).trimmed()
    assert emptied.cache is None and emptied.ids.shape == (2, 0)
