"""Gates: how a state takes in what was computed for it. A gate is one class here, and its name."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

CONFIGURATIONS = ("dual", "single", "skip")
TANHS = ("lstm", "single")


KEPT_DEVIATION = 0.8796256610342398  # of a normal distribution, when what lies beyond two deviations is cut off


def cut_normal(variance: float) -> dict[str, Any]:
    """For `trunc_normal_`: cut at two deviations, and as much wider that the variance is right after the cut."""
    deviation = math.sqrt(variance) / KEPT_DEVIATION
    return {"std": deviation, "a": -2 * deviation, "b": 2 * deviation}


class GateKernel(nn.Linear):
    """Makes the new state z and, after it, what `gates` decide by. Gates begin small but not at zero: Adafactor's steps
    are as large as the parameter, and zeros would stay zeros. z begins as every other kernel does."""

    def __init__(self, fan_in: int, width: int, gates: int = 0):
        super().__init__(fan_in, (1 + gates) * width)
        self.width = width

    def initialize(self) -> None:
        start = torch.empty_like(self.weight)
        nn.init.trunc_normal_(start[: self.width], **cut_normal(1 / self.in_features))
        nn.init.trunc_normal_(start[self.width :], **cut_normal(0.1 / self.in_features))
        init.copy_(self.weight, start)  # as a whole: only so does transformers know a weight that was loaded
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
        self.kernel = GateKernel(fan_in, width, gates=2)
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
