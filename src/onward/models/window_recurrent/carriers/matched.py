"""The tokens that each head needs most, and a few slots that stand for all the others.

Shapes: B rows, H key-value heads, G query heads of each, m queries, S slots, n tokens of a window, M merged slots.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ..slots import NEVER, ReadWindow, Slots
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
        after_merged = torch.arange(score.shape[-1], device=score.device) >= self.merged
        tokens = replace(window, kept=window.kept & after_merged)
        columns = self.columns(tokens, score, self.count - self.merged)
        kept = self.chosen(tokens, score, columns)
        if not self.merged:
            return kept
        dropped = tokens.kept[:, None].expand(score.shape).scatter(-1, columns, False)
        merged = self.merge(window, dropped)
        return Slots(*(torch.cat(parts, 2) for parts in zip(merged, kept, strict=True)))

    def merge(self, window: ReadWindow, dropped: Tensor) -> Slots:
        """The merged slots, after the columns in `dropped` [B, H, S + n] have joined them."""
        keys, values, *_, ages = window.slots
        shares, mass = self.shares(window, dropped)
        used = shares.sum(-1) > 0  # [B, H, M]
        key = shares.to(keys.dtype) @ keys
        weights = torch.where(used, self.weights(window, key, mass), 0.0)
        oldest = (ages[:, :, None] * (shares > 0)).amax(-1)
        return Slots(
            key, shares.to(values.dtype) @ values, weights.to(keys.dtype), torch.zeros_like(key[..., 0]), oldest
        )

    @torch.no_grad()
    def shares(self, window: ReadWindow, dropped: Tensor) -> tuple[Tensor, Tensor]:
        """Of each column in each merged slot [B, H, M, S + n], and the attention to all they stand for [B, H, M]."""
        homes = self.homes(window, dropped)
        like = F.normalize(window.slots.keys.to(homes.dtype), dim=-1)
        likeness = (homes @ like @ like.transpose(-1, -2)).masked_fill(~homes.any(-1, keepdim=True), NEVER)
        joins = F.one_hot(likeness.argmax(2), self.merged).transpose(-1, -2) * dropped[:, :, None]
        members = torch.where(homes.any(2, keepdim=True), homes, joins.to(homes.dtype))
        attention = window.mean_over_queries(window.outlook[0])
        mass = members * (attention[:, :, None] + NEXT_TO_NOTHING)
        total = mass.sum(-1)
        return mass / total.clamp(min=NEXT_TO_NOTHING)[..., None], total

    def homes(self, window: ReadWindow, dropped: Tensor) -> Tensor:
        """The column that each merged slot continues [B, H, M, S + n], 0 or 1: its own, or if it is not used yet, one
        that is dropped. Those are taken evenly from all that are dropped, and the last slots are used first."""
        count, width = self.merged, dropped.shape[-1]
        number = torch.arange(count, device=dropped.device)
        own = number[:, None] == torch.arange(width, device=dropped.device)  # [M, S + n]
        used = window.kept[:, None, :count, None]  # [B, 1, M, 1]
        total = dropped.sum(-1, keepdim=True)  # [B, H, 1]
        wanted = ((2 * number.flip(0) + 1) * total.clamp(min=count)).div(2 * count, rounding_mode="floor")  # [B, H, M]
        newer = (total - dropped.cumsum(-1))[:, :, None]  # how many of those that are dropped are newer
        first = dropped[:, :, None] & (newer == wanted[..., None])
        return torch.where(used, own, first).to(torch.promote_types(window.slots.keys.dtype, torch.float32))

    @torch.no_grad()
    def weights(self, window: ReadWindow, key: Tensor, mass: Tensor) -> Tensor:
        """[B, H, M]: added to the scores of merged keys [B, H, M, D], they get the attention `mass` [B, H, M]."""
        places = torch.arange(-self.count, self.merged - self.count, device=key.device)
        turned = window.turning.turn(key, window.turning.table(places, key))
        scores = (window.queries @ turned[:, :, None].transpose(-1, -2)).to(mass.dtype) * window.scaling
        without = (scores - window.outlook[1][..., None]).exp().masked_fill(~window.asked[..., None], 0.0)
        weights = mass.log() - (window.mean_over_queries(without) + NEXT_TO_NOTHING).log()
        return weights.clamp(LEAST_WEIGHT, math.log(self.count + self.window))
