"""The tokens that each head needs most, adjusted so that they stand for all that is dropped."""

from __future__ import annotations

from ..slots import ReadWindow, Slots
from .base import carrier
from .selected import Selected


@carrier("matched")
class Matched(Selected):
    """Like `selected`; then each kept key gets a weight, and each kept value is changed, so that the window's queries
    would get from the kept slots what they got from everything."""

    weighs = True

    def next(self, window: ReadWindow, layer: int) -> Slots:
        return super().next(window, layer)
