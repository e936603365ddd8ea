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


def attention(window: ReadWindow, marks: Tensor) -> Tensor:
    """The mean square of the attention that the window's queries gave it: a few strong ones count most."""
    return window.mean_over_queries(window.attention().square())


def received(window: ReadWindow, marks: Tensor) -> Tensor:
    """The same, summed over all windows so far; what is long past counts less."""
    return 0.9 * marks + attention(window, marks)


def key_difference(window: ReadWindow, marks: Tensor) -> Tensor:
    """How little a key is like the mean of all keys: tokens that stand for something of their own."""
    keys, kept = window.slots.keys, window.kept[:, None, :, None]
    keys = torch.nn.functional.normalize(keys.float(), dim=-1) * kept
    mean = keys.sum(2, keepdim=True) / kept.sum(2, keepdim=True).clamp(min=1)
    return 1 - torch.nn.functional.cosine_similarity(keys, mean, dim=-1)


SCORES: dict[str, Callable[[ReadWindow, Tensor], Tensor]] = {
    "attention": attention,
    "received": received,
    "key_difference": key_difference,
}
"""By name: (window, what was noted about each column) -> a score of each column, [B, H, S + n]."""


@carrier("selected")
class Selected(SlotCarrier):
    """Keeps, for each head, the tokens with the highest score, beside the first ones and the last `recent`."""

    def __init__(self, config: WindowRecurrenceConfig):
        super().__init__(config)
        self.score = SCORES[config.score]

    @property
    def recent(self) -> int:
        """How many of the last tokens stay, whatever their score."""
        return min(math.ceil(self.count / 2), self.count - self.sinks)

    @torch.no_grad()
    def priority(self, window: ReadWindow) -> tuple[Tensor, Tensor]:
        """[B, H, S + n]: what each column is worth to each head, and what is to be noted about it."""
        noted = self.score(window, window.slots.marks.float())
        rank = window.rank()
        protected = (rank < self.sinks) | (rank >= rank[:, -1:] + 1 - self.recent)
        return noted.masked_fill(protected[:, None], math.inf), noted

    def next(self, window: ReadWindow, layer: int) -> Slots:
        priority, noted = self.priority(window)
        columns = window.best(priority)
        kept = window.take(columns)
        return kept._replace(marks=(noted.gather(-1, columns) * (kept.ages > 0)).to(kept.marks.dtype))
