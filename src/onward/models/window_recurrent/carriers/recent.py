"""The last tokens as they are: the baseline that every other memory must beat."""

from __future__ import annotations

from ..slots import ReadWindow, Slots
from .base import SlotCarrier, carrier


@carrier("recent")
class Recent(SlotCarrier):
    """Keeps the document's first tokens (`sinks`) and the last ones, like a sliding cache with attention sinks.

    It costs nothing, and is what people do without this library. At the same number of slots, whatever another carrier
    gains over it is what that carrier is worth.
    """

    needs_queries = False

    def next(self, window: ReadWindow, layer: int) -> Slots:
        rank = window.rank()
        priority = rank.masked_fill(rank < self.sinks, rank.shape[1])  # the first tokens, whatever comes after
        return window.take(window.best(priority[:, None].expand(window.slots.ages.shape).float(), self.count))
