"""The memory of one layer as keys and values: what carriers choose from when a window closes, and what they keep.

Shapes: B rows, H key-value heads, S slots, n tokens of a window, D features of a key, E of a value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from .outlook import NEVER, Outlook


class Slots(NamedTuple):
    """S keys and values of each head, the oldest first. Slots that are not used yet stand before all others."""

    keys: Tensor  # [B, H, S, D], as they are at position 0
    values: Tensor  # [B, H, S, E]
    weights: Tensor  # [B, H, S]: added to a slot's score, the logarithm of how many tokens it stands for
    marks: Tensor  # [B, H, S]: what a carrier notes about a slot, such as the attention it has received
    ages: Tensor  # [B, H, S] int32: how many tokens before the next window it was read; 0 if the slot is not used

    @property
    def used(self) -> Tensor:
        """[B, S] bool: the same for all heads, and all layers; a carrier decides by place, not by content."""
        return self.ages[:, 0] > 0

    @staticmethod
    def empty(rows: int, heads: int, slots: int, key: int, value: int, like: Tensor) -> Slots:
        shape = (rows, heads, slots)
        return Slots(
            like.new_zeros(*shape, key),
            like.new_zeros(*shape, value),
            like.new_zeros(shape),
            like.new_zeros(shape),
            torch.zeros(shape, dtype=torch.int32, device=like.device),
        )

    def forgotten(self, rows: Tensor) -> Slots:
        """Without what the marked rows [B] remember."""
        return self.only(~rows[:, None, None])

    def only(self, used: Tensor) -> Slots:
        """Without the slots that are not used [B, H or 1, S or 1]."""
        return Slots(*(part.masked_fill(~(used[..., None] if part.dim() == 4 else used), 0) for part in self))


def grouped(slots: tuple[Tensor, ...]) -> tuple[Slots, ...]:
    """A state's flat tensors, layer by layer."""
    each = len(Slots._fields)
    return tuple(Slots(*slots[i : i + each]) for i in range(0, len(slots), each))


@dataclass(frozen=True)
class ReadWindow:
    """A window that has been read, as one layer saw it: S columns of memory, then its n tokens, the oldest first."""

    slots: Slots  # all columns: [B, H, S + n, ..], ages as seen from the next window
    kept: Tensor  # [B, S + n] bool: what the next memory may hold; of the window, what the next one does not repeat
    full: bool  # whether all of it may be kept, in every row
    size: int  # S
    look: Callable[[], Outlook]
    turn: Callable[[Tensor], Tensor]  # keys [B, H, M, D] to where the first M slots will stand

    @cached_property
    def outlook(self) -> Outlook:
        """What the next window would attend to."""
        return self.look()

    # -- what is kept

    def rank(self, start: int = 0) -> Tensor:
        """[B, S + n - start]: the place of each column from `start` on among those that may be kept, from 0, the oldest
        first."""
        return self.kept[:, start:].cumsum(1) - 1

    def best(self, priority: Tensor, count: int) -> Tensor:
        """[B, H, count]: the columns of each head with the highest priority [B, H, S + n], unused ones first and then
        the oldest first."""
        return self.oldest_first(self.ranked(priority)[..., :count])

    def ranked(self, priority: Tensor, start: int = 0) -> Tensor:
        """The columns from `start` on, by their priority [B, H, S + n - start]; those that may not be kept are last."""
        if not self.full:
            priority = priority.masked_fill(~self.kept[:, None, start:], NEVER)
        # Stable and from the last column: of equals, the newest. Layers with local attention give many the same score.
        from_last = priority.flip(-1).sort(dim=-1, descending=True, stable=True).indices
        return self.kept.shape[1] - 1 - from_last

    def oldest_first(self, columns: Tensor) -> Tensor:
        """Unused columns first, and then the oldest first."""
        if self.full:
            return columns.sort(-1).values
        # A column that may not be kept is only chosen where there are too few: it becomes an unused slot.
        width = self.kept.shape[1]
        place = columns + width * self._kept(columns)
        return place.sort(-1).values % width

    def take(self, columns: Tensor) -> Slots:
        """The slots of some columns [B, H, count]."""
        wide = columns[..., None]
        found = Slots(
            *(part.gather(2, wide.expand(*columns.shape, part.shape[-1])) for part in self.slots[:2]),
            *(part.gather(2, columns) for part in self.slots[2:]),
        )
        return found if self.full else found.only(self._kept(columns))

    def first(self, count: int) -> Slots:
        """The slots of the first columns."""
        found = Slots(*(part[:, :, :count] for part in self.slots))
        return found if self.full else found.only(self.kept[:, None, :count])

    def _kept(self, columns: Tensor) -> Tensor:
        """[B, H, count] bool"""
        return self.kept[:, None].expand(-1, columns.shape[1], -1).gather(-1, columns)
