"""Carriers, a file each: what a window leaves to the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import CARRIERS, Carrier, Defaults, SlotCarrier, Tensors, VectorCarrier, carrier
from .constant import ConstantSlots
from .matched import Matched
from .pooled import Pooled
from .pooling import POOLINGS, Pooling
from .recent import Recent
from .selected import SCORES, Selected
from .spans import Spans

if TYPE_CHECKING:
    from ..configuration_window_recurrent import WindowRecurrenceConfig

__all__ = [
    "CARRIERS",
    "POOLINGS",
    "SCORES",
    "Carrier",
    "Defaults",
    "Matched",
    "Pooled",
    "Pooling",
    "Recent",
    "Selected",
    "SlotCarrier",
    "Spans",
    "Tensors",
    "VectorCarrier",
    "carrier",
    "make_carrier",
]


def make_carrier(config: WindowRecurrenceConfig) -> Carrier:
    """The carrier that a configuration names; a constant is of the kind that it stands for."""
    kind = CARRIERS[config.carrier]
    if config.carrier == "constant" and CARRIERS[config.stands_for].takes_slots:
        kind = ConstantSlots
    return kind(config)
