"""A memory of keys and values, each query reading only the k nearest: exact, and without gradient into it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def read_nearest(query: Tensor, keys: Tensor, values: Tensor, counts: Sequence[int], top_k: int) -> Tensor:
    """The softmax over the `top_k` best scores of each query, and the sum of their values.

    query: [B, H, n, D], already scaled; keys, values: [B, H, m, D], aligned at the right, of which row r holds
    `counts[r]`. Rows that hold none read zeros.
    """
    keys, values = keys.detach(), values.detach()
    size = keys.shape[2]
    with torch.no_grad():
        scores = query @ keys.mT
        if min(counts) < size:
            empty = size - torch.tensor(list(counts), device=keys.device)
            unseen = torch.arange(size, device=keys.device) < empty[:, None]
            scores = scores.masked_fill(unseen[:, None, None], -torch.inf)
        best = scores.topk(min(top_k, size), dim=-1, sorted=False)
    unreal = best.values == -torch.inf  # fewer tokens are remembered than may be read
    chosen_keys, chosen_values = (_pick(x, best.indices) for x in (keys, values))  # [B, H, n, k, D]
    # Only the chosen scores are computed again, with a gradient for the query.
    near = (chosen_keys @ query[..., None])[..., 0]
    shares = near.masked_fill(unreal, torch.finfo(near.dtype).min).softmax(-1).masked_fill(unreal, 0)
    return (shares.to(values.dtype)[..., None, :] @ chosen_values)[..., 0, :]


def _pick(x: Tensor, index: Tensor) -> Tensor:
    """x: [B, H, m, D]; index: [B, H, n, k] -> [B, H, n, k, D]."""
    batch, heads, count, top_k = index.shape
    flat = index.view(batch, heads, count * top_k, 1).expand(-1, -1, -1, x.shape[-1])
    return x.gather(2, flat).view(batch, heads, count, top_k, -1)
