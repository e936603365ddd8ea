"""The tokens that each head needs most, chosen by a score."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..slots import ReadWindow, Slots
from .base import SlotCarrier, carrier

if TYPE_CHECKING:
    from ..configuration_window_recurrent import WindowRecurrenceConfig


def attention(window: ReadWindow) -> Tensor:
    """The mean square of the attention that the next window would give it: a few strong ones count most."""
    return window.outlook.mean_square


def received(window: ReadWindow) -> Tensor:
    """The same, in the mean of all windows since it was read: each counts half as much as the one after it."""
    now = attention(window)
    of_slots = (now[..., : window.size] + window.slots.marks[..., : window.size].to(now.dtype)) / 2
    return torch.cat([of_slots, now[..., window.size :]], -1)


def key_difference(window: ReadWindow) -> Tensor:
    """How little a key is like the mean of all keys: tokens that stand for something of their own."""
    keys, kept = window.slots.keys, window.kept[:, None, :, None]
    keys = torch.nn.functional.normalize(keys.float(), dim=-1) * kept
    mean = keys.sum(2, keepdim=True) / kept.sum(2, keepdim=True).clamp(min=1)
    return 1 - torch.nn.functional.cosine_similarity(keys, mean, dim=-1)


SCORES: dict[str, Callable[[ReadWindow], Tensor]] = {
    "received": received,
    "attention": attention,
    "key_difference": key_difference,
}
"""By name: a score of each column, [B, H, S + n]. What is kept has it as its mark when the next window ends."""


@carrier("selected")
class Selected(SlotCarrier):
    """Keeps, for each head, the tokens with the highest score, beside the first ones and the last `recent`."""

    def __init__(self, config: WindowRecurrenceConfig):
        super().__init__(config)
        self.score = SCORES[config.score]

    @property
    def recent(self) -> int:
        """How many of the last tokens stay, whatever their score."""
        return min(math.ceil((self.count - self.sinks) / 2), MOST_RECENT)

    def next(self, window: ReadWindow, layer: int) -> Slots:
        score = self.score_of(window)
        return self.chosen(window, score, self.ranked(window, score)[..., : self.count])

    @torch.no_grad()
    def score_of(self, window: ReadWindow) -> Tensor:
        return self.score(window)

    def ranked(self, window: ReadWindow, score: Tensor, start: int = 0) -> Tensor:
        """[B, H, S + n - start]: the columns from `start` on, by how much each head needs them."""
        rank = window.rank(start)
        protected = (rank < self.sinks) | (rank >= rank[:, -1:] + 1 - self.recent)
        return window.ranked(score[..., start:].masked_fill(protected[:, None], math.inf), start)

    def chosen(self, window: ReadWindow, score: Tensor, columns: Tensor) -> Slots:
        columns = window.oldest_first(columns)
        kept = window.take(columns)
        return kept._replace(marks=(score.gather(-1, columns) * (kept.ages > 0)).to(kept.marks.dtype))


MOST_RECENT = 32
