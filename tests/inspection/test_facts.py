"""Facts about a block-recurrent model, against its parameters and its own state."""

import pytest
import torch
from block_models import CASES, build, tiny
from helpers import tokens

from onward import BlockRecurrentForCausalLM
from onward.inspection import facts
from onward.inspection.facts import state_numbers
from onward.models.state import map_tensors


@pytest.mark.parametrize("case", CASES)
def test_state_numbers_are_those_of_the_state(case):
    model = BlockRecurrentForCausalLM(tiny(case)).eval()
    config, counted = model.config, []
    full = max(config.window, config.memory_size)
    with torch.no_grad():
        state = model(tokens(1, full)).state  # at a block's edge, where no block is open
    map_tensors(lambda tensor: counted.append(tensor.numel()) or tensor, state.layers)
    assert sum(state_numbers(config).values()) == sum(counted)


def test_facts_tell_what_a_model_is():
    model = build("memory and states")
    found = facts(model)
    parameters = sum(p.numel() for p in model.parameters())
    assert found["parameters"] == f"{parameters:,} ({parameters - 99 * 32:,} without embeddings)"
    assert "8 states at layer 2, gate lstm:skip" in found["carries"]
    assert "16 remembered tokens at layer 2, of which each token reads 5" in found["carries"]
    assert "window of 8 tokens" in found["reads"] and "3 of width 32, 4 heads of 8" in found["layers"]
    assert float(found["FLOPs per token"].split()[0]) > 2 * (parameters - 99 * 32)
    assert "nothing but the window" in facts(build("Slide:12L"))["carries"]
    assert "in every layer" in facts(build("Feedback:fixed:skip"))["carries"]
