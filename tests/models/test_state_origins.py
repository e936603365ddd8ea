"""Whose a state is: it goes on in its own model, whatever that has learned since, and in no other."""

from __future__ import annotations

import copy
import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from block_models import SIZES
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_models import recurrent, tokens

from onward import BlockRecurrentConfig, BlockRecurrentForCausalLM, BlockState, WindowState
from onward.models.fingerprints import Fingerprint, origin_of

OTHERS = "other weights or another vocabulary"
STATES = {"window": WindowState, "block": BlockState}


def made(system: str, seed: int = 0, **fields: Any) -> Any:
    if system == "window":
        return recurrent("gpt2", window=6, seed=seed, backbone=fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = BlockRecurrentConfig.preset("Rec:fixed:skip", **{**SIZES, **fields})
        return BlockRecurrentForCausalLM(config).eval()


@pytest.fixture(params=STATES)
def system(request: pytest.FixtureRequest) -> str:
    return request.param


@torch.no_grad()
def state_of(model: Any, length: int = 9) -> Any:
    return model(tokens(2, length)).state


@torch.no_grad()
def goes_on(model: Any, state: Any) -> torch.Tensor:
    return model(tokens(2, 5, seed=1), state=state).logits


def through_a_file(state: Any, folder: Path) -> Any:
    state.save(folder / "state")
    return type(state).load(folder / "state")


@pytest.mark.parametrize("from_file", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_a_state_of_other_weights_is_refused(system: str, from_file: bool, training: bool, tmp_path: Path) -> None:
    one, other = made(system), made(system, seed=1)
    state = state_of(one.train(training))
    state = through_a_file(state, tmp_path) if from_file else state
    with pytest.raises(ValueError, match=OTHERS):
        goes_on(other.train(training), state)
    goes_on(one, state)


@pytest.mark.parametrize("from_file", [False, True])
def test_a_state_of_another_vocabulary_is_refused(system: str, from_file: bool, tmp_path: Path) -> None:
    one, other = made(system), made(system, vocab_size=111)
    state = state_of(one)
    with pytest.raises(ValueError, match=OTHERS):
        goes_on(other, through_a_file(state, tmp_path) if from_file else state)


def test_one_weight_that_differs_is_enough(system: str) -> None:
    one = made(system)
    other = copy.deepcopy(one)
    state = state_of(one)
    assert torch.equal(goes_on(other, state), goes_on(one, state)), "a copy has the same weights"
    list(other.base_model.parameters())[3].data.view(-1)[0] += 1e-3
    with pytest.raises(ValueError, match=OTHERS):
        goes_on(other, state)


def test_training_goes_on_with_states_of_older_weights(system: str, tmp_path: Path) -> None:
    model = made(system).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = None
    for step in range(3):
        output = model(tokens(2, 9, seed=step), labels=tokens(2, 9, seed=step), state=state)
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        state = output.state.detach()
    # In a file it is the state of the model beside which it is saved.
    loaded = through_a_file(state, tmp_path)
    model.save_pretrained(tmp_path / "model")
    again = type(model).from_pretrained(tmp_path / "model")
    torch.testing.assert_close(goes_on(again.eval(), loaded), goes_on(model.eval(), state))


def test_a_model_that_has_loaded_other_weights_is_another(system: str) -> None:
    model, other = made(system), made(system, seed=1)
    state = state_of(model)
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    goes_on(model, state)  # the same ones
    model.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match=OTHERS):
        goes_on(model, state)
    goes_on(model, state_of(model))


def test_a_state_outlives_its_model(system: str) -> None:
    state = state_of(made(system))
    gc.collect()
    goes_on(made(system), state)
    with pytest.raises(ValueError, match=OTHERS):
        goes_on(made(system, seed=1), state)


def test_a_state_goes_on_in_another_precision(system: str, tmp_path: Path) -> None:
    model = made(system)
    state = through_a_file(state_of(model), tmp_path).to(torch.bfloat16)
    half = copy.deepcopy(model).to(torch.bfloat16)
    assert goes_on(half, state).dtype == torch.bfloat16
    with pytest.raises(ValueError, match=OTHERS):
        goes_on(made(system, seed=1).to(torch.bfloat16), state)


def test_files_of_before_and_states_without_weights_are_taken(system: str, tmp_path: Path) -> None:
    """Version 0.1 wrote no fingerprint: such a state fits every model of its form."""
    model = made(system)
    state_of(model).save(tmp_path / "state")
    with safe_open(tmp_path / "state", "pt") as file:
        facts = json.loads(file.metadata()["onward_state"])
    del facts["weights"], facts["sha256"]
    save_file(load_file(tmp_path / "state"), tmp_path / "state", metadata={"onward_state": json.dumps(facts)})
    state = STATES[system].load(tmp_path / "state")
    assert state.weights is None
    goes_on(model, state)
    goes_on(made(system, seed=1), state)


def test_copies_keep_whose_it_is(system: str) -> None:
    model, other = made(system), made(system, seed=1)
    state = copy.deepcopy(state_of(model))  # as it is sent to another process
    goes_on(model, state)
    with pytest.raises(ValueError, match=OTHERS):
        goes_on(other, state)


def test_verbs_keep_whose_it_is(system: str) -> None:
    model = made(system)
    state = state_of(model)
    changed = [state.detach(), state.select([1, 0]), state.reset([True, False]), state.to(torch.float32)]
    assert all(each.weights is state.weights for each in changed)
    if system == "block":
        assert BlockState.join([state.select([0]), state.select([1])]).weights is state.weights
        with pytest.raises(ValueError, match=OTHERS):
            BlockState.join([state, state_of(made(system, seed=1))])


def test_weights_are_looked_at_once_and_not_in_every_call(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    of = Fingerprint.of
    monkeypatch.setattr(Fingerprint, "of", staticmethod(lambda *modules: looks.append(1) or of(*modules)))
    model, state = made(system), None
    for _ in range(4):
        state = model(tokens(2, 5), state=state).state
    model.generate(tokens(2, 3), state=state, max_new_tokens=4)
    assert len(looks) == 1


def test_parameters_that_are_not_here_have_no_fingerprint() -> None:
    layer = torch.nn.Linear(2, 2, device="meta")
    assert Fingerprint.of(layer) is None and origin_of(layer, layer).fingerprint is None
    assert Fingerprint.of(torch.nn.Module()) is None


def trained_further(model: Any) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))


def test_a_state_is_of_the_weights_that_made_it_not_of_the_models_first(system: str, tmp_path: Path) -> None:
    model, untrained = made(system), made(system)
    state_of(model)
    trained_further(model)
    state = state_of(model)
    model.save_pretrained(tmp_path / "model")
    expected = goes_on(model, state)
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    assert torch.equal(goes_on(model, state), expected), "it has loaded the weights that it had"
    kind = type(model)
    del model
    gc.collect()
    with pytest.raises(ValueError, match=OTHERS):
        goes_on(untrained, state)
    trained = kind.from_pretrained(tmp_path / "model").eval()
    for one in (state, through_a_file(state, tmp_path)):
        torch.testing.assert_close(goes_on(trained, one), expected)


def test_a_copied_state_is_the_models_own(system: str) -> None:
    model = made(system)
    state = state_of(model)
    copied = copy.deepcopy(state)
    trained_further(model)
    assert torch.equal(goes_on(model, copied), goes_on(model, state))


def test_words_that_differ_are_enough(system: str) -> None:
    one = made(system)
    other = copy.deepcopy(one)
    state = state_of(one)
    with torch.no_grad():
        other.get_input_embeddings().weight[5:] += 1
    with pytest.raises(ValueError, match=OTHERS):
        goes_on(other, state)
