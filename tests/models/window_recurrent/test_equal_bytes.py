"""A control has as many bytes of memory as the carrier it is the control of: kept tokens above all."""

from __future__ import annotations

import pytest
import torch
from tiny_models import VARIANTS, backbone, recurrent_variant, tokens

from onward import WindowRecurrenceConfig, add_recurrence
from onward.models.window_recurrent import CARRIERS

SLOT_CARRIERS = [name for name, carrier in CARRIERS.items() if carrier.takes_slots]
FAMILIES = ["gpt2", "llama"]  # with as many key-value heads as heads, and with fewer


def memory_bytes(model) -> int:
    """Of one document, after some windows."""
    return sum(tensor.nbytes for tensor in model(tokens(1, 23)).state.memory)


def slot_bytes(model) -> int:
    return memory_bytes(model) // model.config.slots


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("control", SLOT_CARRIERS)
@pytest.mark.parametrize("variant", [name for name in VARIANTS if name not in ("none", "constant", "constant slots")])
def test_slots_take_the_bytes_of_the_memory_they_are_the_control_of(family, dtype, control, variant):
    model = recurrent_variant(family, variant, dtype=dtype)
    kept = add_recurrence(model.backbone, model.config.with_carrier(control))
    own, of_control, least = memory_bytes(model), memory_bytes(kept), 1 + model.config.sinks
    assert kept.config.insertion_layers == model.config.insertion_layers
    if model.config.takes_slots:
        assert of_control == own
    elif own < least * slot_bytes(kept):
        assert kept.config.slots == least
    else:
        assert own - slot_bytes(kept) < of_control <= own


def test_of_many_vectors_as_many_tokens_fit_as_their_bytes_allow():
    model = recurrent_variant("llama", "spans", window=16, fields={"vectors": 15})
    # A token: 2 heads, a key and a value of 8 each, and 2 notes, in 8 bytes each; its age in 4. A vector: 32 numbers
    # and whether it is there, once for all three layers.
    assert model.config.with_carrier("recent").slots == (3 * 15 * 32 * 8 + 15) // (3 * 2 * (18 * 8 + 4)) == 12


@pytest.mark.parametrize("stands_for", ["pooled", "spans", "matched"])
def test_a_constant_is_controlled_like_what_it_stands_for(stands_for):
    model = recurrent_variant("llama", stands_for)
    constant = add_recurrence(model.backbone, model.config.with_carrier("constant"))
    assert constant.config.with_carrier("recent").slots == model.config.with_carrier("recent").slots


def test_plain_windows_are_given_the_least_that_can_be_kept():
    model = recurrent_variant("llama", "none", fields={"sinks": 2})
    assert model.config.with_carrier("recent").slots == 3


def test_bytes_of_vectors_are_unknown_without_a_backbone():
    with pytest.raises(ValueError, match="use the configuration of a model"):
        WindowRecurrenceConfig(carrier="spans").with_carrier("recent")
    assert WindowRecurrenceConfig(carrier="matched", slots=9).with_carrier("recent").slots == 9


def test_shapes_are_known_whatever_is_carried():
    for carrier in ("none", "pooled", "recent"):
        assert add_recurrence(backbone("llama"), carrier=carrier, window=5).config.slot_shapes == [[2, 8, 8]] * 3
