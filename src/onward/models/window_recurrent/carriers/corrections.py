"""What training learns about a memory of keys and values: it starts at nothing, and serves any number of slots.

Shapes: B rows, H key-value heads, S slots, D features of a key, E of a value, r the rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from ..slots import Slots


class Correction(nn.Module):
    """Of one layer: maps of low rank for its keys and values, and a weight by a slot's key and age."""

    def __init__(self, heads: int, key: int, value: int, rank: int):
        super().__init__()
        self.key_down = nn.Parameter(torch.randn(heads, key, rank) / math.sqrt(key))
        self.key_up = nn.Parameter(torch.zeros(heads, rank, key))
        self.value_down = nn.Parameter(torch.randn(heads, value, rank) / math.sqrt(value))
        self.value_up = nn.Parameter(torch.zeros(heads, rank, value))
        self.weight = nn.Parameter(torch.zeros(heads, key))
        self.by_age = nn.Parameter(torch.zeros(heads, 2))  # of every slot, and by the logarithm of its age

    def forward(self, slots: Slots) -> Slots:
        keys, values = slots.keys, slots.values
        age = slots.ages.clamp(min=1).to(keys.dtype).log()
        weights = slots.weights + (keys @ self.weight[..., None])[..., 0]
        return slots._replace(
            keys=keys + keys @ self.key_down @ self.key_up,
            values=values + values @ self.value_down @ self.value_up,
            weights=weights + self.by_age[:, :1] + self.by_age[:, 1:] * age,
        )

    @property
    def learned(self) -> Sequence[Tensor]:
        """Zero as long as nothing was learned."""
        return self.key_up, self.value_up, self.weight, self.by_age


class Corrections(nn.ModuleList):
    """A `Correction` for each layer. As long as nothing was learned, they cost nothing: they are not applied."""

    def __init__(self, shapes: Sequence[Sequence[int]], rank: int):
        super().__init__(Correction(heads, key, value, rank) for heads, key, value in shapes)
        self._learned = False

    @property
    def matter(self) -> bool:
        """Whether something was learned, or is being learned. Optimizers may change values without a trace, so values
        are looked at until one is not zero; from then on corrections are applied, which is right for zeros, too."""
        learned = [tensor for layer in cast(Iterable[Correction], self) for tensor in layer.learned]
        if not self._learned:
            being_learned = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in learned)
            self._learned = being_learned or any(bool(tensor.any()) for tensor in learned)
        return self._learned
