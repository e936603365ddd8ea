"""The memory of one layer as keys and values: what carriers choose from when a window closes, and what they keep.

Shapes: B rows, H key-value heads, G query heads of each, S slots, n tokens of a window, m queries, D features of a key,
E of a value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from .turning import Turning

NEVER = -math.inf


class Slots(NamedTuple):
    """S keys and values of each head, the oldest first. Slots that are not used yet stand before all others."""

    keys: Tensor  # [B, H, S, D], as they are at position 0
    values: Tensor  # [B, H, S, E]
    weights: Tensor  # [B, H, S]: added to a slot's score, the logarithm of how many tokens it stands for
    marks: Tensor  # [B, H, S]: what a carrier notes about a slot, such as the attention it has received
    ages: Tensor  # [B, H, S] int32: how many tokens before the next window it was read; 0 if the slot is not used

    @property
    def used(self) -> Tensor:
        """[B, S] bool: the same for all heads."""
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
        return Slots(*(part.masked_fill(rows.view(-1, *[1] * (part.dim() - 1)), 0) for part in self))


def grouped(slots: tuple[Tensor, ...]) -> tuple[Slots, ...]:
    """A state's flat tensors, layer by layer."""
    each = len(Slots._fields)
    return tuple(Slots(*slots[i : i + each]) for i in range(0, len(slots), each))


@dataclass(frozen=True)
class ReadWindow:
    """A window that has been read, as one layer saw it: S columns of memory, then its n tokens, the oldest first."""

    slots: Slots  # all columns: [B, H, S + n, ..], ages as seen from the next window
    turned: Tensor  # [B, H, S + n, D]: keys as they were attended to
    added: Tensor  # [B, H, S + n]: to scores, as the window saw it
    queries: Tensor  # [B, H, G, m, D], of the window's tokens, where they stood
    visible: Tensor  # [B, m, S + n] bool: what each query saw; nothing if it is padding
    kept: Tensor  # [B, S + n] bool: what the next memory may hold; of the window, what the next one does not repeat
    later: Tensor  # [B, H, G, m, D]: the queries, as they stand in the next window
    near: Tensor | None  # [B, m, S + n] bool: what they are near enough to see from there; None for all
    turning: Turning  # of keys
    scaling: float  # of scores
    size: int  # S

    # -- what the next window will ask

    @cached_property
    @torch.no_grad()
    def outlook(self) -> tuple[Tensor, Tensor]:
        """How much the next window would attend to each column [B, H, G, m, S + n], if it asked what this one asks; and
        the logarithm of what all its scores sum up to [B, H, G, m]. Padding asks nothing.

        Its queries see all columns, from one window further on, beside tokens of their own: these give them the scores
        that this window's tokens gave.
        """
        width, first = self.turned.shape[2], self.size
        columns = self._scores(self.later, self.turned, self.added.masked_fill(~self.kept[:, None], NEVER))
        if self.near is not None:
            columns.masked_fill_(~self.near[:, None, None], NEVER)
        own = self._scores(self.queries, self.turned[:, :, first:], self.added[:, :, first:])
        own.masked_fill_(~self.visible[:, None, None, :, first:], NEVER)
        scores = torch.cat([columns, own], -1)
        attention = scores.softmax(-1)
        normaliser = scores.amax(-1) - attention.amax(-1).log()
        return attention[..., :width].masked_fill_(~self.asked[..., None], 0.0), normaliser

    def _scores(self, queries: Tensor, keys: Tensor, added: Tensor) -> Tensor:
        scores = (queries @ keys[:, :, None].transpose(-1, -2)).to(torch.promote_types(queries.dtype, torch.float32))
        return scores.mul_(self.scaling).add_(added[:, :, None, None])

    @property
    def asked(self) -> Tensor:
        """[B, 1, 1, m] bool: the queries that are not padding."""
        return self.visible.any(-1)[:, None, None]

    def mean_over_queries(self, x: Tensor) -> Tensor:
        """[B, H, ..], of [B, H, G, m, ..], in which padding has zeros."""
        asked = self.asked.sum((2, 3)) * x.shape[2]
        return x.sum((2, 3)) / asked.clamp(min=1).view(-1, *[1] * (x.dim() - 3))

    # -- what is kept

    def rank(self) -> Tensor:
        """[B, S + n]: the place of each column among those that may be kept, from 0, the oldest first."""
        return self.kept.cumsum(1) - 1

    def best(self, priority: Tensor, count: int) -> Tensor:
        """[B, H, count]: the columns of each head with the highest priority [B, H, S + n], unused ones first and then
        the oldest first."""
        kept = self.kept[:, None].expand(priority.shape)
        # Stable and from the last column: of equals, the newest. Layers with local attention give many the same score.
        order = priority.masked_fill(~kept, NEVER).flip(-1).sort(dim=-1, descending=True, stable=True).indices
        width = priority.shape[-1]
        chosen = width - 1 - order[..., :count]
        # A column that may not be kept is only chosen where there are too few: it becomes an unused slot.
        place = chosen + width * kept.gather(-1, chosen)
        return place.sort(-1).values % width

    def take(self, columns: Tensor) -> Slots:
        """The slots of some columns [B, H, count]."""
        wide = columns[..., None]
        keys, values, weights, marks, ages = self.slots
        used = self.kept[:, None].expand(ages.shape).gather(-1, columns)
        return Slots(
            keys.gather(2, wide.expand(*columns.shape, keys.shape[-1])).masked_fill(~used[..., None], 0),
            values.gather(2, wide.expand(*columns.shape, values.shape[-1])).masked_fill(~used[..., None], 0),
            weights.gather(2, columns).masked_fill(~used, 0),
            marks.gather(2, columns).masked_fill(~used, 0),
            ages.gather(2, columns).masked_fill(~used, 0),
        )
