"""What a block-recurrent model starts from: the variances that the docs name, and nothing of what was loaded."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from onward import BlockRecurrentConfig, BlockRecurrentForCausalLM
from onward.models.block_recurrent.gates import KEPT_DEVIATION, FixedGate, GateKernel, LSTMGate


def model(name: str) -> BlockRecurrentForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "window": 4, "vocab_size": 99}
    return BlockRecurrentForCausalLM(BlockRecurrentConfig.preset(name, **sizes))


def variance_by_fan_in(weight: Tensor) -> float:
    return float(weight.detach().var() * weight.shape[1])


@pytest.mark.parametrize("name", ["Rec:fixed:dual", "Rec:lstm:dual", "Rec:fixed:single", "Rec:lstm:skip", "Slide:12L"])
def test_kernels_start_with_variance_one_by_fan_in_after_the_cut(name: str) -> None:
    kernels = [m for m in model(name).modules() if isinstance(m, nn.Linear) and not isinstance(m, GateKernel)]
    kernels = [m for m in kernels if m.weight.numel() > 10_000 and m.out_features != 99]  # embeddings are tied to it
    assert len(kernels) >= 4 * 2
    for kernel in kernels:
        assert variance_by_fan_in(kernel.weight) == pytest.approx(1, rel=0.05)
        furthest = kernel.weight.detach().abs().max() * kernel.in_features**0.5
        assert 2 < furthest <= 2 / KEPT_DEVIATION + 1e-6  # two deviations of what was wider before the cut


@pytest.mark.parametrize("form", ["dual", "single", "skip"])
def test_new_states_start_as_kernels_do_and_gates_small(form: str) -> None:
    fixed = [m for m in model(f"Rec:fixed:{form}").modules() if isinstance(m, FixedGate)]
    lstm = [m for m in model(f"Rec:lstm:{form}").modules() if isinstance(m, LSTMGate)]
    assert len(fixed) == len(lstm) == (2 if form == "dual" else 1)
    for gate in fixed:
        assert variance_by_fan_in(gate.kernel.weight) == pytest.approx(1, rel=0.05)
    for gate in lstm:
        new, taken_in, kept = gate.kernel.weight.chunk(3)
        assert variance_by_fan_in(new) == pytest.approx(1, rel=0.05)
        for small in (taken_in, kept):
            assert variance_by_fan_in(small) == pytest.approx(0.1, rel=0.05)


def test_what_started_otherwise_loads_as_it_was_saved(tmp_path) -> None:
    """Also with kernels that started as they did before, which were narrower."""
    saved = model("Rec:lstm:dual")
    with torch.no_grad():
        for module in saved.modules():
            if isinstance(module, GateKernel):
                module.weight.mul_(0.5)
    saved.save_pretrained(tmp_path)
    loaded = BlockRecurrentForCausalLM.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in saved.state_dict().items())
