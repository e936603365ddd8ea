"""Gates: how a state takes in what was computed for it. A gate is one class here, and its name."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from transformers import initialization as init

CONFIGURATIONS = ("dual", "single", "skip")
TANHS = ("lstm", "single")


class GateKernel(nn.Linear):
    """Begins small but not at zero: Adafactor's steps are as large as the parameter, and zeros would stay zeros."""

    def initialize(self) -> None:
        deviation = math.sqrt(0.1 / self.in_features)
        init.trunc_normal_(self.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
        init.normal_(self.bias, std=0.1)


class FixedGate(nn.Module):
    """A moving average over blocks, at a speed that each channel learns: g c + (1 - g) z."""

    always_tanh = False

    def __init__(self, width: int, fan_in: int, tanh: bool):
        super().__init__()
        self.kernel = GateKernel(fan_in, width)
        self.forget = nn.Parameter(torch.empty(width))
        self.tanh = tanh

    def forward(self, state: Tensor, given: Tensor) -> Tensor:
        """state: [..., S, d]; given: [..., S, fan_in]."""
        new = self.kernel(given).to(state.dtype)  # which autocast would lower
        return torch.lerp(new.tanh() if self.tanh else new, state, self.forget.sigmoid())

    def values(self, given: Tensor) -> dict[str, Tensor]:
        """What the gate lets through, for looking at: of the old state, and of the new."""
        kept = self.forget.sigmoid()
        return {"kept": kept, "taken in": 1 - kept}


class LSTMGate(nn.Module):
    """Forgets and takes in by what it is given. The constants lean to remembering, without making the biases, and
    so Adafactor's steps, large."""

    always_tanh = True

    def __init__(self, width: int, fan_in: int, tanh: bool):
        super().__init__()
        self.kernel = GateKernel(fan_in, 3 * width)
        self.tanh = tanh

    def forward(self, state: Tensor, given: Tensor) -> Tensor:
        new, taken_in, kept = self.kernel(given).chunk(3, -1)
        return state * (kept + 1).sigmoid() + (new.tanh() if self.tanh else new) * (taken_in - 1).sigmoid()

    def values(self, given: Tensor) -> dict[str, Tensor]:
        _, taken_in, kept = self.kernel(given).chunk(3, -1)
        return {"kept": (kept + 1).sigmoid(), "taken in": (taken_in - 1).sigmoid()}


GATES: dict[str, type[FixedGate] | type[LSTMGate]] = {"fixed": FixedGate, "lstm": LSTMGate}


def make_gate(name: str, configuration: str, gate_tanh: str, width: int, fan_in: int) -> FixedGate | LSTMGate:
    kind = GATES[name]
    tanh = kind.always_tanh if gate_tanh == "lstm" else configuration == "single"
    return kind(width, fan_in, tanh)
