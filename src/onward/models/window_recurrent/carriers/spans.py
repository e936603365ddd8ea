"""The means of spans of a window, fewer of older windows: a memory for backbones whose keys cannot be turned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .base import Defaults, Tensors, VectorCarrier, carrier, first_of_document, summable

if TYPE_CHECKING:
    from ..configuration_window_recurrent import WindowRecurrenceConfig


def coarser(means: Tensor, seen: Tensor, spans: int) -> Tensors:
    """Averages nearly equal groups of neighbours that are `seen` [B, n]. means: [B, I, n, k] -> [B, I, spans, k]"""
    n = seen.shape[1]
    if n == spans:
        return means, seen
    group = torch.arange(n, device=seen.device) * spans // n
    member = (group == torch.arange(spans, device=seen.device)[:, None]) & seen[:, None]  # [B, spans, n]
    sums, count = member[:, None].to(summable(means).dtype) @ summable(means), member.sum(-1)
    return (sums / count.clamp(min=1)[:, None, :, None]).to(means.dtype), count > 0


@carrier("spans")
class Spans(VectorCarrier):
    """At every layer, the means of a few spans of the inputs of its attention, plus a learned correction.

    Inserted into the same attention, a span's key and value are the means of its tokens' keys and values, before any
    training. The first vector is the document's first token (see `first_of_document`). The corrections start at zero.
    With `history`, the spans of several windows are inserted, the last window nearest; each new window drops the
    oldest. If older windows have fewer spans, neighbours are averaged: the further back, the coarser.
    """

    def __init__(self, config: WindowRecurrenceConfig):
        super().__init__(config)
        self.by_age: list[int] = config.spans_by_age  # the last window's first
        self.spans = self.by_age[0]
        self.down = nn.Parameter(torch.randn(len(self.layers), self.width, config.rank) / math.sqrt(self.width))
        self.up = nn.Parameter(torch.zeros(len(self.layers), config.rank, self.width))

    @classmethod
    def defaults(cls, config: WindowRecurrenceConfig) -> Defaults:
        windows, each = config.history or 1, min(15, max(1, config.window - 1))
        spans, least = (sum(windows),) * 2 if isinstance(windows, list) else (each * windows, windows)
        return Defaults(space="attention", insert_at="all", vectors=1 + spans, at_least=1 + least)

    def summarise(self, hidden: Sequence[Tensor], keep: Tensor, index: Tensor) -> Tensors:
        # Which of the vectors each position belongs to: the first token to 0, the others to spans 1, 2, ...
        place = (index * self.spans).div(self.window, rounding_mode="floor") + 1
        place = place.masked_fill(index == 0, 0)  # [B, t]
        vector = torch.arange(1 + self.spans, device=index.device)
        member = (place[:, None, :] == vector[:, None]) & keep[:, None, :]
        member = member.to(summable(hidden[0]).dtype)
        sums = torch.stack([member @ summable(hidden[layer - 1]) for layer in self.layers], dim=1)
        return sums, member.sum(-1)  # [B, I, 1 + spans, k], [B, 1 + spans]

    def merge(self, earlier: Tensors, later: Tensors) -> Tensors:
        return earlier[0] + later[0], earlier[1] + later[1]

    def carry(self, summary: Tensors, previous: Tensors, has_previous: Tensor) -> Tensors:
        sums, counts = summary
        means, seen = (sums / counts.clamp(min=1)[:, None, :, None]).to(previous[0].dtype), counts > 0
        first = first_of_document(means[:, :, 0], previous[0][:, :, 0], has_previous)
        older, older_seen = self.aged(previous[0][:, :, 1:], previous[1][:, 1:] & has_previous[:, None])
        means = torch.cat([first[:, :, None], older, means[:, :, 1:]], dim=2)
        return means, torch.cat([seen[:, :1], older_seen, seen[:, 1:]], dim=1)

    def aged(self, means: Tensor, seen: Tensor) -> Tensors:
        """The spans of all windows except the oldest, as they are one window later. means: [B, I, V - 1, k] and
        seen: [B, V - 1], the oldest window first."""
        windows = zip(means.split(self.by_age[::-1], 2), seen.split(self.by_age[::-1], 1), strict=True)
        _, *older = windows
        aged = [coarser(*window, spans) for window, spans in zip(older, self.by_age[:0:-1], strict=True)]
        if not aged:
            return means[:, :, :0], seen[:, :0]
        return torch.cat([means for means, _ in aged], dim=2), torch.cat([seen for _, seen in aged], dim=1)

    def empty(self, batch_size: int, like: Tensor) -> Tensors:
        means = like.new_zeros(batch_size, len(self.layers), self.count, self.width)
        return means, like.new_zeros(batch_size, self.count).bool()

    def vectors(self, state: Tensors) -> dict[int, Tensor]:
        means = state[0]
        corrected = means + (means @ self.down) @ self.up
        return {layer: corrected[:, i] for i, layer in enumerate(self.layers)}

    def visible(self, state: Tensors) -> Tensor | None:
        return state[1]
