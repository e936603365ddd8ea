"""What the next window would attend to: the outlook by which carriers choose what they keep.

The next window is not known. So it is taken to ask what the window that was just read asks, one window further on. Its
queries see all columns, the slots and the window's tokens, and beside these tokens of their own, which get the scores
that the window's tokens got.

What queries ask of tokens needs no memory: it is computed for all windows of a run at once.

Shapes: B rows, R windows of each, H key-value heads, G query heads of each, S slots, n tokens of a window, Q = G n
queries, D features of a key.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...ops.modes import full_precision

NEVER = -torch.inf


@dataclass(frozen=True)
class Asked:
    """What the queries of a run's windows ask, one window further on, of these windows' own tokens."""

    queries: Tensor  # [B, R, H, Q, D], where they stood, times the scaling of scores
    later: Tensor  # [B, R, H, Q, D], as far from what was read as the next window is
    attention: Tensor  # [B, R, H, Q, n]: what each token would get if there were no slots, beside the next window's own
    total: Tensor  # [B, R, H, Q]: the logarithm of what the scores of all of these sum up to
    shares: Tensor  # [B, R, 1, 1, Q]: of each query in a mean over queries; padding asks nothing
    near: Tensor | None  # [B, R, 1, Q, S] bool: what queries are near enough to see of the slots; None for all

    @staticmethod
    @torch.no_grad()
    def of(queries: Tensor, later: Tensor, keys: Tensor, facts: Facts, scaling: float) -> Asked:
        """queries, later: [B, R, H, G, n, D]. keys: [B, R, H, n, D]"""
        group, exact = queries.shape[3], full_precision(queries.dtype)
        asks, keys = facts.asks[:, :, None].repeat(1, 1, 1, group), keys.to(exact)  # [B, R, 1, Q]
        queries, later = ((x.to(exact) * scaling).flatten(3, 4) for x in (queries, later))

        def scores_of(asking: Tensor, seen: Tensor | None) -> Tensor:
            scores = asking @ keys.transpose(-1, -2)
            if seen is not None:
                scores.unflatten(3, (group, -1)).masked_fill_(~seen[:, :, None, None], NEVER)
            return scores

        attention = scores_of(later, facts.later)
        total = torch.logaddexp(attention.logsumexp(-1), scores_of(queries, facts.visible).logsumexp(-1))
        attention.sub_(total[..., None]).exp_()
        if not facts.all_ask:
            queries, later, attention = (x.masked_fill(~asks[..., None], 0) for x in (queries, later, attention))
            total = total.masked_fill(~asks, 0)
        near = facts.near
        return Asked(
            queries=queries,
            later=later,
            attention=attention,
            total=total,
            shares=(asks.to(exact) / asks.sum(-1, keepdim=True).clamp(min=1))[:, :, :, None],
            near=None if near is None else near.repeat(1, 1, group, 1)[:, :, None],
        )

    @torch.no_grad()
    def beside(self, number: int, keys: Tensor, added: Tensor) -> Outlook:
        """Of one window, with its slots: keys [B, H, S, D] as they were attended to, and what was added to their scores
        [B, H, S], NEVER where there is none."""
        later, total = self.later[:, number], self.total[:, number]
        slots = self.scores(later, keys, added)
        if self.near is not None:
            slots = slots.masked_fill_(~self.near[:, number], NEVER)
        scores = torch.cat([slots, total[..., None]], -1)  # all tokens together are one more column
        return Outlook(self, number, scores, scores.softmax(-1))

    def scores(self, queries: Tensor, keys: Tensor, added: Tensor | None) -> Tensor:
        """[B, H, Q, S]"""
        queries, keys = queries.flatten(0, 1), keys.to(queries.dtype).flatten(0, 1).transpose(-1, -2)
        start = queries.new_zeros(1) if added is None else added.to(queries.dtype).flatten(0, 1)[:, None]
        return torch.baddbmm(start, queries, keys).unflatten(0, self.queries.shape[:1] + self.queries.shape[2:3])


@dataclass(frozen=True)
class Facts:
    """What the windows of a run have in common at all layers of a kind."""

    asks: Tensor  # [B, R, n] bool: not padding, which asks nothing
    all_ask: bool
    visible: Tensor  # [B, R, n, n] bool: what each token saw of its window
    later: Tensor | None  # [B, R, n, n] bool: what it would see of it from the next window, of what may be kept
    near: Tensor | None  # [B, R, n, S] bool: the same of the slots


@dataclass(frozen=True)
class Outlook:
    """How much the next window would attend to each column: slots, then tokens."""

    asked: Asked
    number: int  # of the window
    scores: Tensor  # [B, H, Q, S + 1]: of each slot, and of all tokens together
    attention: Tensor  # [B, H, Q, S + 1]

    @cached_property
    @torch.no_grad()
    def mean(self) -> Tensor:
        """[B, H, S + n]: the mean over queries."""
        return self._mean(self.attention, self.asked.attention[:, self.number])

    @cached_property
    @torch.no_grad()
    def mean_square(self) -> Tensor:
        """[B, H, S + n]: the mean of squares, in which a few strong ones count most."""
        return self._mean(self.attention.square(), self.asked.attention[:, self.number].square())

    def _mean(self, attention: Tensor, of_tokens: Tensor) -> Tensor:
        slots, tokens = attention[..., :-1], attention[..., -1:]
        return torch.cat([self._shares @ slots, (self._shares * tokens.transpose(-1, -2)) @ of_tokens], -1)[:, :, 0]

    @torch.no_grad()
    def mean_beside(self, keys: Tensor) -> Tensor:
        """[B, H, M]: what each of other keys [B, H, M, D] would get beside all columns. They are turned to where slots
        stand, and asked from inside the window: slots keep their places, while tokens move away."""
        normaliser = self.scores.amax(-1, keepdim=True) - self.attention.amax(-1, keepdim=True).log()
        attention = (self.asked.scores(self.asked.queries[:, self.number], keys, None) - normaliser).exp()
        attention = attention.masked_fill(self._shares.transpose(-1, -2) == 0, 0.0)
        return (self._shares @ attention)[:, :, 0]

    @property
    def _shares(self) -> Tensor:
        """[B, 1, 1, Q]"""
        return self.asked.shares[:, self.number]
