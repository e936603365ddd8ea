"""Plain loops that ops are compared with, and the comparison of outputs and gradients."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from onward.ops.norms import RMSNorm


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.to(dtype).requires_grad_()


def close(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)


def same_gradients(ours: Tensor, theirs: Tensor, inputs: list[Tensor]) -> None:
    """Of a sum with weights that tell all outputs apart."""
    weights = numbers(*ours.shape, seed=99).detach()
    found = [torch.autograd.grad((out * weights).sum(), inputs) for out in (ours, theirs)]
    close(*found)


def plain_sliding_attention(
    query: Tensor, key: Tensor, value: Tensor, past_key: Tensor, past_value: Tensor, bias: Tensor, seen: list[int],
    window: int, sees_itself: bool,
) -> Tensor:  # fmt: skip
    """Token by token. A row's past is what it has seen: the last `seen[row]` columns."""
    batch, heads, count, width = query.shape
    out = []
    for row, head in product(range(batch), range(heads)):
        past = seen[row]
        start = past_key.shape[2] - past
        keys = torch.cat([past_key[row, head, start:], key[row, head]])
        values = torch.cat([past_value[row, head, start:], value[row, head]])
        for i in range(past, past + count):
            last = i if sees_itself else i - 1
            places = list(range(max(0, last - window + 1), last + 1))
            if not places:
                out.append(torch.zeros(width, dtype=query.dtype))
                continue
            distances = [i - j for j in places]
            scores = keys[places] @ query[row, head, i - past] + bias[head, distances]
            out.append(scores.softmax(0) @ values[places])
    return torch.stack(out).view(batch, heads, count, width)


def attention_inputs(
    window: int, count: int, past: int, batch: int = 2, heads: int = 2, width: int = 3
) -> list[Tensor]:
    """query, key, value, past_key, past_value, bias"""
    new = [numbers(batch, heads, count, width, seed=seed) for seed in range(3)]
    old = [numbers(batch, heads, past, width, seed=seed) for seed in (3, 4)]
    return [*new, *old, numbers(heads, window + 1, seed=5)]


def norm_of(width: int, dtype: torch.dtype = torch.float64, eps: float = 1e-6) -> RMSNorm:
    norm = RMSNorm(width, eps=eps, dtype=dtype)
    norm.weight.data.copy_(numbers(width, seed=7).detach())
    return norm


def plain_loss(hidden: Tensor, weight: Tensor, labels: Tensor, factor: float) -> Tensor:
    return F.cross_entropy(factor * hidden @ weight.T, labels, reduction="sum", ignore_index=-100)
