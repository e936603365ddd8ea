"""Sliding attention: each token sees the last W tokens, at a cost that is linear in the length.

The queries are cut into tiles of W; each tile meets 2W keys, its own and those of the W tokens before. Fewer than W
queries form one tile of their own size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from .modes import applied, full_precision


def position_buckets(distances: int, buckets: int, max_distance: int) -> Tensor:
    """T5's buckets of the distances 0, 1, ...: one for each short distance, then logarithmically wider ones."""
    exact = buckets // 2
    distance = torch.arange(distances, dtype=torch.float64)
    wide = (distance.clamp(min=1) / exact).log() / math.log(max_distance / exact) * (buckets - exact)
    return torch.where(distance < exact, distance, (exact + wide.floor()).clamp(max=buckets - 1)).long()


def sliding_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_key: Tensor,
    past_value: Tensor,
    bias: Tensor,
    seen: Sequence[int],
    *,
    window: int,
    sees_itself: bool = True,
    dropout: float = 0.0,
) -> Tensor:
    """Attention of N new tokens to themselves and to the P <= W tokens before them.

    query, key, value: [B, H, N, D], queries already scaled. past_key, past_value: [B, H, P, D], the last tokens
    before the new ones, aligned at the right; row r has `seen[r]` of them, and the rest is masked.
    bias: [H, W + 1], added to the score by the distance between query and key.
    """
    batch, heads, count, width = query.shape
    tile = min(count, window)
    tiles = -(-count // tile)
    past = past_key.shape[2]
    if tiles > 1:
        ahead, behind, past = window - past, tiles * tile - count, window
        query = _blocks(_padded(query, 0, behind), tile)
        # Blocks of past and new tokens together: tile n meets the blocks n and n + 1.
        key, value = (
            _blocks(torch.cat([_padded(old, ahead, 0), _padded(new, 0, behind)], 2), tile)
            for old, new in ((past_key, key), (past_value, value))
        )
    else:
        query = query[None]
        key, value = torch.cat([past_key, key], 2)[None], torch.cat([past_value, value], 2)[None]
    scores = _tile_of(bias, tile, past + tile, window, sees_itself)
    unseen = _unseen(seen, past, query.device)
    alone = None if sees_itself or all(seen) else torch.tensor([not n for n in seen], device=query.device)
    out = applied(_TiledAttention, query, key, value, scores, unseen, alone, dropout)
    return out.permute(1, 2, 0, 3, 4).reshape(batch, heads, tiles * tile, width)[:, :, :count]


def attention_of_one(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, seen: Sequence[int]) -> Tensor:
    """Sliding attention of a single token, for generation: no tiles.

    query: [B, H, 1, D], already scaled. key, value: [B, H, n, D], of the last n tokens, the token itself included;
    row r has `seen[r]` of them. bias: [n, H].
    """
    scores = query @ key.mT + bias.mT[:, None]
    unseen = _unseen(seen, key.shape[2], query.device)
    if unseen is not None:
        scores = scores.masked_fill(unseen[:, None, None], -torch.inf)
    return scores.softmax(-1, dtype=full_precision(scores.dtype)).to(value.dtype) @ value


def full_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(q k') v, every query seeing every key; queries already scaled. [B, H, n, D] each.

    Large batched products are faster than torch's fused attention on CPUs, above all its gradient.
    """
    return applied(_TiledAttention, query[None], key[None], value[None], None, None, None, 0.0)[0]


def _padded(x: Tensor, ahead: int, behind: int) -> Tensor:
    return F.pad(x, (0, 0, ahead, behind)) if ahead or behind else x


def _blocks(x: Tensor, size: int) -> Tensor:
    """[B, H, n * size, D] -> [n, B, H, size, D]: neighbouring blocks are then slices, without a copy."""
    batch, heads, length, width = x.shape
    return x.view(batch, heads, length // size, size, width).permute(2, 0, 1, 3, 4)


def _tile_of(bias: Tensor, queries: int, keys: int, window: int, sees_itself: bool) -> Tensor:
    """The bias of a tile whose last key stands where its last query stands; -inf outside the window.
    [H, queries, keys]"""
    first, last = (0, window) if sees_itself else (1, window + 1)
    # Distances are constant along diagonals, from keys - 1 in one corner to 1 - queries in the other.
    last = min(last, keys)
    by_diagonal = F.pad(bias[:, first:last].flip(-1), (keys - last, queries - 1 + first), value=-torch.inf)
    return by_diagonal.unfold(-1, keys, 1).flip(-2)


def _unseen(seen: Sequence[int], past: int, device: torch.device) -> Tensor | None:
    """[B, past]: where a row has no past; None if all rows have one."""
    if all(n >= past for n in seen):
        return None
    empty = past - torch.tensor(seen, device=device)
    return torch.arange(past, device=device) < empty[:, None]


class _TiledAttention(torch.autograd.Function):
    """softmax(q k' + bias) v with a gradient for the bias, which torch's fused attention does not give.

    query: [T, B, H, t, D]; bias: [H, t, s]. key, value: blocks [T + 1, B, H, t, D], of which each tile meets two, or
    [1, B, H, s, D] for a single tile. `unseen` [B, p] masks the first keys of the first tile; `alone` [B] marks rows
    whose first token sees nothing.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        unseen: Tensor | None,
        alone: Tensor | None,
        dropout: float,
    ) -> Tensor:
        tiles, batch, heads, rows, width = query.shape
        query, key = query.to(value.dtype), key.to(value.dtype)  # autocast may have made them differ
        q = query.reshape(-1, rows, width)
        k, v = (_met_by_tiles(x).view(len(q), -1, width) for x in (key, value))
        scores = torch.bmm(q, k.mT).view(tiles, batch, heads, rows, -1)
        if bias is not None:
            scores += bias
        if unseen is not None:
            scores[0, ..., : unseen.shape[1]].masked_fill_(unseen[:, None, None, :], -torch.inf)
        shares = scores.softmax(-1, dtype=full_precision(scores.dtype)).to(v.dtype)
        if alone is not None:
            shares[0, :, :, 0].masked_fill_(alone[:, None, None], 0)
        kept = torch.rand_like(shares) >= dropout if dropout else None
        ctx.save_for_backward(q, key, value, shares, kept)  # blocks as given: half the size of what tiles meet
        ctx.dropout = dropout
        used = _dropped(shares, kept, dropout)
        return torch.bmm(used.view(len(q), rows, -1), v).view(query.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, key, value, shares, kept = ctx.saved_tensors
        k, v = (_met_by_tiles(x).view(len(q), -1, q.shape[-1]) for x in (key, value))
        flat = (q.shape[0], q.shape[1], k.shape[1])
        grad = grad.reshape(q.shape)
        grad_value = torch.bmm(_dropped(shares, kept, ctx.dropout).view(flat).mT, grad)
        grad_shares = _dropped(torch.bmm(grad, v.mT).view(shares.shape), kept, ctx.dropout)
        grad_scores = torch._softmax_backward_data(grad_shares, shares, -1, shares.dtype)
        grad_bias = grad_scores.sum((0, 1)) if ctx.needs_input_grad[3] else None
        grad_query = torch.bmm(grad_scores.view(flat), k).view(*shares.shape[:3], *q.shape[1:])
        grad_key = torch.bmm(grad_scores.view(flat).mT, q)
        keys, values = (_back_to_blocks(g.view(*shares.shape[:3], *g.shape[1:])) for g in (grad_key, grad_value))
        return grad_query, keys, values, grad_bias, None, None, None


def _dropped(x: Tensor, kept: Tensor | None, dropout: float) -> Tensor:
    return x if kept is None else x * kept / (1 - dropout)


def _met_by_tiles(x: Tensor) -> Tensor:
    """Blocks [T + 1, B, H, t, D] -> [T, B, H, 2t, D]: each with the one before."""
    return torch.cat([x[:-1], x[1:]], 3) if len(x) > 1 else x.contiguous()


def _back_to_blocks(grad: Tensor) -> Tensor:
    """The gradient of `_met_by_tiles`: every block between the first and the last was met by two tiles."""
    if len(grad) == 1:
        return grad
    first, second = grad.chunk(2, 3)
    whole = grad.new_empty(len(grad) + 1, *first.shape[1:])
    whole[:-1] = first
    whole[-1] = second[-1]
    whole[1:-1] += second[:-1]
    return whole
