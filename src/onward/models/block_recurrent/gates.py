"""Gates: how the next state is made of the old one and its update. A gate is one class, and its name in GATES."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

CONFIGURATIONS = ("dual", "single", "skip")
TANH_CHOICES = ("lstm", "single")
KEPT_DEVIATION = 0.8796256610342398  # of a normal distribution that is cut off at two standard deviations


def cut_normal(variance: float) -> dict[str, Any]:
    """Arguments of `trunc_normal_`: cut at two standard deviations, with the given variance after the cut."""
    deviation = math.sqrt(variance) / KEPT_DEVIATION
    return {"std": deviation, "a": -2 * deviation, "b": 2 * deviation}


class GateKernel(nn.Linear):
    """Computes the update z, and after it the inputs of `gates`. Gates start small but not at zero: Adafactor's steps
    are as large as the parameter, so that zeros would stay zeros. z starts as every other kernel does."""

    def __init__(self, fan_in: int, width: int, gates: int = 0):
        super().__init__(fan_in, (1 + gates) * width)
        self.width = width

    def initialize(self) -> None:
        start = torch.empty_like(self.weight)
        nn.init.trunc_normal_(start[: self.width], **cut_normal(1 / self.in_features))
        nn.init.trunc_normal_(start[self.width :], **cut_normal(0.1 / self.in_features))
        init.copy_(self.weight, start)  # in one call, which transformers skips for loaded weights
        init.normal_(self.bias, std=0.1)


class FixedGate(nn.Module):
    """A moving average over blocks, with a learned speed per channel: g c + (1 - g) z."""

    always_tanh = False

    def __init__(self, width: int, fan_in: int, tanh: bool):
        super().__init__()
        self.kernel = GateKernel(fan_in, width)
        self.forget = nn.Parameter(torch.empty(width))
        self.tanh = tanh

    def forward(self, state: Tensor, given: Tensor) -> Tensor:
        """state: [..., S, d]; given: [..., S, fan_in]."""
        new = self.kernel(given).to(state.dtype)  # autocast would lower it
        return torch.lerp(new.tanh() if self.tanh else new, state, self.forget.sigmoid())

    def values(self, given: Tensor) -> dict[str, Tensor]:
        """The shares of the old state and of the update, for inspection."""
        kept = self.forget.sigmoid()
        return {"kept": kept, "taken in": 1 - kept}


class LSTMGate(nn.Module):
    """Forgets and takes in depending on its input. The constants favour remembering without large biases, to which
    Adafactor would take large steps."""

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
