"""The tokens that each head needs most, and a few slots that stand for all the others.

Shapes: B rows, H key-value heads, S slots, n tokens of a window, M merged slots, N columns that are dropped.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from ....ops.modes import full_precision
from ..outlook import NEVER
from ..slots import ReadWindow, Slots
from .base import carrier
from .selected import Selected

MOST_MERGED = 4
LEAST_WEIGHT = -100.0  # hides a slot, and is a number
NEXT_TO_NOTHING = 1e-30  # attention, where layers with local attention have none at all


@carrier("matched")
class Matched(Selected):
    """Like `selected`, but what is dropped is not lost: it is merged into the first few slots of its head.

    Each column that is dropped joins the merged slot whose key is most like its own. A merged slot's key and value are
    means of what it stands for, each with as much weight as it would get attention. The slot's own weight is matched:
    in the mean over queries, it gets the attention that all it stands for would have got; but no more than as many
    tokens as all slots and a window hold, since what is passed on from window to window could grow for ever. Weights
    and shares are constants for the gradient, which goes through the keys and values.
    """

    weighs = True

    @property
    def merged(self) -> int:
        """How many slots stand for more than one token; small memories have none."""
        return min(MOST_MERGED, (self.count - self.sinks) // 8)

    def next(self, window: ReadWindow, layer: int) -> Slots:
        score = self.score_of(window)
        ranked, count = self.ranked(window, score, start=self.merged), self.count - self.merged
        kept = self.chosen(window, score, ranked[..., :count])
        if not self.merged:
            return kept
        merged = self.merge(window, window.oldest_first(ranked[..., count:]))
        return Slots(*(torch.cat(parts, 2) for parts in zip(merged, kept, strict=True)))

    def merge(self, window: ReadWindow, dropped: Tensor) -> Slots:
        """The merged slots, after the columns `dropped` [B, H, N] have joined them."""
        before, joining = window.first(self.merged), window.take(dropped)
        with torch.no_grad():
            members = self.members(before, joining, window.full)
            attention = window.outlook.mean + NEXT_TO_NOTHING
            mass = members * attention.gather(-1, dropped)[:, :, None]
            stays = attention[..., : self.merged] * window.kept[:, None, : self.merged]
            total = stays + mass.sum(-1)
            some = total.clamp(min=NEXT_TO_NOTHING)[..., None]
            stays, mass = (part.to(before.keys) for part in (stays[..., None] / some, mass / some))
        key = stays * before.keys + mass @ joining.keys
        weights = self.weights(window, key, total)
        oldest = torch.maximum(before.ages, torch.where(members > 0, joining.ages[:, :, None], 0).amax(-1))
        value = stays.to(before.values) * before.values + mass.to(before.values) @ joining.values
        return Slots(key, value, weights.to(before.weights), torch.zeros_like(before.marks), oldest)

    def members(self, before: Slots, joining: Slots, full: bool) -> Tensor:
        """[B, H, M, N]: 1 where a column joins a merged slot, the one whose key is most like its own."""
        homes, joins = (slots.keys.to(full_precision(slots.keys.dtype)) for slots in (before, joining))
        number = torch.arange(self.merged, device=homes.device)[:, None]
        if full:
            return (likeness(homes, joins).argmax(2, keepdim=True) == number).to(homes.dtype)
        # Slots that are not used yet begin with a column that is dropped. These are taken evenly from all that are
        # dropped, and the last slots are used first.
        used, real = before.ages > 0, joining.ages > 0
        total = real.sum(-1, keepdim=True)  # [B, H, 1]
        part = 2 * number[:, 0].flip(0) + 1
        newer = (part * total.clamp(min=self.merged)).div(2 * self.merged, rounding_mode="floor")
        begins = ~used & (newer < total)  # [B, H, M]
        founder = (real.shape[-1] - 1 - newer).clamp(min=0)
        there = (used | begins)[..., None]
        homes = torch.where(begins[..., None], joins.gather(2, founder[..., None].expand_as(homes)), homes)
        like = likeness(homes, joins).masked_fill(~there, NEVER)
        founds = begins[..., None] & (founder[..., None] == torch.arange(real.shape[-1], device=homes.device))
        follows = (like.argmax(2, keepdim=True) == number) & there & real[:, :, None]
        return torch.where(founds.any(2, keepdim=True), founds, follows).to(homes.dtype)

    @torch.no_grad()
    def weights(self, window: ReadWindow, key: Tensor, mass: Tensor) -> Tensor:
        """[B, H, M]: added to the scores of merged keys [B, H, M, D], they get the attention `mass` [B, H, M]."""
        alone = window.outlook.mean_beside(window.turn(key)) + NEXT_TO_NOTHING
        weights = (mass.log() - alone.log()).clamp(LEAST_WEIGHT, math.log(self.count + self.window))
        return weights if window.full else weights.masked_fill(mass == 0, 0.0)


def likeness(homes: Tensor, keys: Tensor) -> Tensor:
    """[B, H, M, N]: cosines, up to the length of each key."""
    return F.normalize(homes, dim=-1) @ keys.transpose(-1, -2)
