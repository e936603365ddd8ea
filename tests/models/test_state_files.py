"""A file of a state may hold anything: it is read as it was written, or refused by its name."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from block_models import SIZES
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_models import recurrent, tokens

from onward import BlockRecurrentConfig, BlockRecurrentForCausalLM, BlockState, WindowState
from onward.utils.files import DamagedFile

STATES = {"window": WindowState, "block": BlockState}
WINDOW_FACTS: list[dict[str, Any]] = [
    {"fill": [-1, 3]},
    {"fill": [3]},
    {"fill": [3, 3, 3]},
    {"fill": [3, 2.5]},
    {"fill": [3, True]},
    {"fill": "33"},
    {"fill": None},
    {"fill": [3, 10**9]},
    {"cached": [3, -3]},
    {"cached": [0, 0]},
    {"cached": [2, 2]},
    {"cached": [7, 7]},
    {"has_memory": [1, 0]},
    {"has_memory": [True]},
    {"prefix_fill": [9, 9]},
    {"prefix_fill": [-1, 0]},
    {"prefix_fill": [1]},
    {"prefix_fill": []},
    {"model": 3},
    {"weights": []},
    {"weights": {"shapes": "", "dtype": "int8", "values": ""}},
    {"weights": {"shapes": "", "dtype": "float32", "values": "!"}},
    {"weights": {"shapes": "", "dtype": "float32", "values": "YQ=="}},
]
BLOCK_FACTS: list[dict[str, Any]] = [
    {"tokens": [-1, 3]},
    {"tokens": [11]},
    {"tokens": [11, 11, 11]},
    {"tokens": [11, "11"]},
    {"tokens": 11},
    {"layers": 2},
    {"layers": 4},
    {"layers": -1},
    {"layers": 10**12},
    {"layers": True},
    {"model": None},
    {"weights": 7},
]


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    torch.manual_seed(0)
    block = BlockRecurrentForCausalLM(BlockRecurrentConfig.preset("Rec:fixed:skip", **SIZES)).eval()
    return {"window": recurrent("gpt2", window=6, overlap=1), "block": block}


@torch.no_grad()
def save(model: Any, system: str, path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    more = {"prefix_length": 2} if system == "window" else {}
    model(tokens(2, 11), **more).state.save(path)
    return load_file(path), facts_of(path)


def facts_of(path: Path) -> dict[str, Any]:
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()["onward_state"])


def rewrite(path: Path, held: dict[str, torch.Tensor], facts: dict[str, Any]) -> None:
    """As files without a checksum are, which must stand by what they say."""
    facts = {name: value for name, value in facts.items() if name != "sha256"}
    save_file({name: t.contiguous() for name, t in held.items()}, path, metadata={"onward_state": json.dumps(facts)})


@pytest.mark.parametrize(
    ("system", "change"),
    [*(("window", change) for change in WINDOW_FACTS), *(("block", change) for change in BLOCK_FACTS)],
    ids=str,
)
def test_facts_that_cannot_be_are_refused(
    models: dict[str, Any], system: str, change: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "state"
    held, facts = save(models[system], system, path)
    rewrite(path, held, facts | change)
    with pytest.raises(DamagedFile, match=f"{path} is a damaged state file"):
        STATES[system].load(path)
    missing = {name: value for name, value in facts.items() if name != next(iter(change))}
    rewrite(path, held, missing)
    if "weights" not in change:
        with pytest.raises(DamagedFile, match=f"{path} is a damaged state file: {next(iter(change))} is missing"):
            STATES[system].load(path)


@pytest.mark.parametrize("system", STATES)
def test_tensors_that_do_not_fit_each_other_are_refused(models: dict[str, Any], system: str, tmp_path: Path) -> None:
    """Each tensor lost, cut, of another kind; and one more."""
    path = tmp_path / "state"
    held, facts = save(models[system], system, path)
    for name, tensor in held.items():
        others = {
            "lost": None,
            "without a row": tensor[:1],
            "flat": tensor.flatten(),
            "of another kind": tensor.float() if not tensor.is_floating_point() else tensor.long(),
        }
        if tensor.dim() > 2:
            others["without a column"] = tensor[..., :-1, :]
        for what, other in others.items():
            if what == "of another kind" and name.startswith(("memory", "open.summary", "open.inserted")):
                continue  # what carriers gather is their own
            rewrite(path, {k: v for k, v in {**held, name: other}.items() if v is not None}, facts)
            with pytest.raises(ValueError, match="state"):
                _read_on(models[system], STATES[system].load(path))
    rewrite(path, held | {"more": torch.ones(2)}, facts)
    with pytest.raises(DamagedFile, match="it has other tensors than the state it describes: more"):
        STATES[system].load(path)


def _read_on(model: Any, state: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(tokens(2, 4, seed=1), state=state).logits


def test_ids_outside_the_vocabulary_and_windows_too_full_are_refused(models: dict[str, Any], tmp_path: Path) -> None:
    path, model = tmp_path / "state", models["window"]
    held, facts = save(model, "window", path)
    for name in ("open.ids", "prefix"):
        for wrong in (99, 2**32 + 5, 2**39):
            ids = held[name].clone()
            ids[0, 0] = wrong
            rewrite(path, held | {name: ids}, facts)
            with pytest.raises(ValueError, match=f"the state has the id {wrong}"):
                _read_on(model, WindowState.load(path))
    wide = {"open.ids": torch.ones(2, 9, dtype=torch.long)}
    without = {name: t for name, t in held.items() if "cache" not in name}
    rewrite(path, without | wide, facts | {"fill": [9, 9], "cached": [0, 0]})
    with pytest.raises(ValueError, match="window holds 9 tokens, and this model's 6"):
        _read_on(model, WindowState.load(path))


@torch.no_grad()
def test_types_of_tokens_are_saved_beside_their_ids_and_older_files_hold_both_in_one_number(tmp_path: Path) -> None:
    path, ids, later = tmp_path / "state", tokens(2, 11), tokens(2, 5, seed=1)
    model = recurrent("bert", "masked-lm", window=6, overlap=1)
    state = model(ids, token_type_ids=ids % 2, prefix_length=2).state
    state.save(path)
    held, facts = load_file(path), facts_of(path)
    assert facts["version"] == 2 and torch.equal(held["prefix_types"], ids[:, :2] % 2)
    older = {name: tensor for name, tensor in held.items() if not name.endswith("types")}
    for name, types in (("prefix", "prefix_types"), ("open.ids", "open.types")):
        older[name] = held[name] + (held[types] << 40)
    rewrite(tmp_path / "older", older, {name: value for name, value in facts.items() if name != "version"})
    expected = model(later, token_type_ids=later % 2, state=state).logits
    for file in ("state", "older"):
        loaded = WindowState.load(tmp_path / file)
        assert torch.equal(loaded.open.ids, state.open.ids) and torch.equal(loaded.prefix, state.prefix)
        assert torch.equal(model(later, token_type_ids=later % 2, state=loaded).logits, expected)
    rewrite(tmp_path / "newer", held, facts | {"version": 3})
    with pytest.raises(ValueError, match="newer was written by a later version of onward"):
        WindowState.load(tmp_path / "newer")


@pytest.mark.parametrize("system", STATES)
def test_every_flipped_bit_is_found(models: dict[str, Any], system: str, tmp_path: Path) -> None:
    path, chance = tmp_path / "state", random.Random(0)
    save(models[system], system, path)
    whole = path.read_bytes()
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[chance.randrange(8, len(whole))] ^= 1 << chance.randrange(8)
        path.write_bytes(bytes(damaged))
        with pytest.raises(ValueError, match=f"{path} "):
            STATES[system].load(path)


@pytest.mark.parametrize("system", STATES)
def test_damage_to_a_file_without_a_checksum_ends_in_a_sentence(
    models: dict[str, Any], system: str, tmp_path: Path
) -> None:
    """Bits flipped in the part of a file that says what it holds."""
    path, chance = tmp_path / "state", random.Random(0)
    rewrite(path, *save(models[system], system, path))
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 1, 3))):
            damaged[chance.randrange(header)] ^= 1 << chance.randrange(8)
        path.write_bytes(bytes(damaged))
        try:
            _read_on(models[system], STATES[system].load(path))
        except ValueError as error:
            assert "state" in str(error)
