"""Attention to the k nearest of many remembered tokens: exact, and without a gradient into the memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def read_nearest(query: Tensor, keys: Tensor, values: Tensor, counts: Sequence[int], top_k: int) -> Tensor:
    """Attends to the keys with the `top_k` largest scores of each query.

    query: [B, H, n, D], already scaled; keys, values: [B, H, m, D], aligned at the right, row r holding `counts[r]`
    tokens. Rows without any get zeros.
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
    unreal = best.values == -torch.inf  # fewer tokens are remembered than top_k
    chosen_keys, chosen_values = (_pick(x, best.indices) for x in (keys, values))  # [B, H, n, k, D]
    # The chosen scores are computed once more, with a gradient for the query.
    near = (chosen_keys @ query[..., None])[..., 0]
    shares = near.masked_fill(unreal, torch.finfo(near.dtype).min).softmax(-1).masked_fill(unreal, 0)
    return (shares.to(values.dtype)[..., None, :] @ chosen_values)[..., 0, :]


def _pick(x: Tensor, index: Tensor) -> Tensor:
    """x: [B, H, m, D]; index: [B, H, n, k] -> [B, H, n, k, D]."""
    batch, heads, count, top_k = index.shape
    flat = index.view(batch, heads, count * top_k, 1).expand(-1, -1, -1, x.shape[-1])
    return x.gather(2, flat).view(batch, heads, count, top_k, -1)
