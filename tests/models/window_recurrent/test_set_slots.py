"""One model serves memories of any size: its slots can be changed, and what was learned about them stays."""

from __future__ import annotations

import pytest
import torch
from tiny_models import assert_same, moved, randomise, recurrent_variant, tokens
from transformers import AutoModelForCausalLM

from onward.models.window_recurrent import CARRIERS
from onward.utils.fields import FieldError

LEARNING = ["recent", "selected", "matched"]  # their parameters do not depend on the number of slots
SLOTS = [*LEARNING, "received", "constant slots"]
IDS = tokens(2, 23)


def test_every_carrier_of_slots_is_tested():
    assert set(LEARNING) == {name for name, carrier in CARRIERS.items() if carrier.takes_slots}


@pytest.mark.parametrize("variant", LEARNING)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_model_with_other_slots_is_the_one_made_with_them(family, variant):
    """5 slots, then 3 or 9: fewer and more."""
    model = recurrent_variant(family, variant)
    for slots in (3, 9, 5):
        made = recurrent_variant(family, variant, fields={"slots": slots})
        made.carrier.load_state_dict(model.carrier.state_dict())
        model.set_slots(slots)
        ours, theirs = model(IDS), made(IDS)
        assert_same(ours.logits, theirs.logits, model)
        assert model.state_name == made.state_name and model.config.slots == model.config.vector_count == slots
        assert ours.state.memory[0].shape[2] == slots


def test_sizes_differ():
    model = recurrent_variant("llama", "selected")
    few = model(IDS).logits
    model.set_slots(9)
    assert not torch.allclose(few, model(IDS).logits)


def test_the_carriers_own_number():
    model = recurrent_variant("gpt2", "recent")
    model.set_slots(None)
    assert model.config.slots is None and model.carrier.count == model.config.vector_count == 127
    assert model(IDS).state.memory[0].shape[2] == 127


def test_a_constant_uses_the_last_of_its_slots(tmp_path):
    model = recurrent_variant("llama", "constant slots")
    all_five = model(IDS).logits
    model.set_slots(3)
    three = model(IDS)
    assert three.state.memory[0].shape[2] == 3
    last = recurrent_variant("llama", "constant slots", fields={"slots": 3})
    for ours, theirs in zip(last.carrier.parameters(), model.carrier.parameters(), strict=True):
        ours.data = theirs.data[:, -3:].clone()
    assert_same(three.logits, last(IDS).logits, model)
    model.save_pretrained(tmp_path)
    assert_same(moved(AutoModelForCausalLM.from_pretrained(tmp_path).eval())(IDS).logits, three.logits, model)
    model.set_slots(5)
    assert_same(model(IDS).logits, all_five, model)
    model.save_pretrained(tmp_path)
    for load in (AutoModelForCausalLM, type(model)):
        loaded = moved(load.from_pretrained(tmp_path, slots=3).eval())
        assert_same(loaded(IDS).logits, three.logits, model)
        loaded.set_slots(5)
        assert_same(loaded(IDS).logits, all_five, model)
        with pytest.raises(FieldError, match="slots=6: carrier='constant' has learned 5"):
            load.from_pretrained(tmp_path, slots=6)
    with pytest.raises(FieldError, match="slots=6: carrier='constant' has learned 5; choose at most 5"):
        model.set_slots(6)
    assert model.carrier.count == model.config.slots == 5


@pytest.mark.parametrize("variant", LEARNING)
def test_trained_corrections_are_loaded_with_other_slots(tmp_path, variant):
    model = recurrent_variant("llama", variant, fields={"rank": 4})
    randomise(model.carrier)
    model.save_pretrained(tmp_path)
    for load in (AutoModelForCausalLM, type(model)):
        loaded = moved(load.from_pretrained(tmp_path, slots=9).eval())
        assert loaded.config.slots == loaded.carrier.count == 9
        model.set_slots(9)
        assert loaded.carrier.adapts and loaded.state_name == model.state_name
        assert_same(loaded(IDS).logits, model(IDS).logits, model)


@pytest.mark.parametrize("variant", SLOTS)
def test_states_of_another_size_are_refused(variant):
    model = recurrent_variant("gpt2", variant)
    state, slots = model(IDS).state, model.config.slots
    model.set_slots(4)
    with pytest.raises(ValueError, match=f"{slots} slots and the model 4: call set_slots\\({slots}\\)"):
        model(IDS, state=state)
    model.set_slots(slots)
    model(IDS, state=state)


def test_misspelt_fields_are_refused_when_a_model_is_loaded(tmp_path):
    recurrent_variant("gpt2", "recent").save_pretrained(tmp_path)
    for load in (AutoModelForCausalLM, type(recurrent_variant("gpt2", "recent"))):
        with pytest.raises(ValueError, match="has no field 'slot' .* did you mean 'slots'"):
            load.from_pretrained(tmp_path, slot=3)


@pytest.mark.parametrize("variant", ["pooled", "paper", "spans", "constant", "none"])
def test_memories_without_slots_keep_their_size(variant):
    model = recurrent_variant("gpt2", variant)
    with pytest.raises(FieldError, match="slots=4: carrier="):
        model.set_slots(4)


@pytest.mark.parametrize(("slots", "problem"), [(1, "at least 2"), (0, "of at least 1"), (2.5, "a whole number")])
def test_too_few_slots_are_refused_and_change_nothing(slots, problem):
    model = recurrent_variant("gpt2", "selected")
    before = model(IDS).logits
    with pytest.raises(FieldError, match=problem):
        model.set_slots(slots)
    assert model.config.slots == 5 and torch.equal(model(IDS).logits, before)


def test_states_with_other_sinks_are_refused():
    made, other = (recurrent_variant("llama", "selected", fields={"sinks": sinks}) for sinks in (2, 1))
    with torch.no_grad(), pytest.raises(ValueError, match="selected \\(by received\\), 2 sinks"):
        other(tokens(2, 9), state=made(tokens(2, 9)).state)
