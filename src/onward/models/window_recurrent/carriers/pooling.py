"""Poolings: one vector from the positions of a window, in parts that can be merged."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .base import Tensors, summable


class Pooling(nn.Module):
    """One vector from many positions: `summarise` a part of them, `merge` two parts, `finish` the whole."""

    def __init__(self, width: int):
        super().__init__()

    def summarise(self, x: Tensor, keep: Tensor) -> Tensors:
        """x: [B, t, k]; keep: [B, t] bool, the positions that count."""
        raise NotImplementedError

    def merge(self, earlier: Tensors, later: Tensors) -> Tensors:
        raise NotImplementedError

    def finish(self, summary: Tensors) -> Tensor:
        raise NotImplementedError


class MeanPooling(Pooling):
    """The mean over positions, kept as sum and count."""

    def summarise(self, x: Tensor, keep: Tensor) -> Tensors:
        x = summable(x)
        weight = keep.to(x.dtype)
        return torch.einsum("btk,bt->bk", x, weight), weight.sum(1, keepdim=True)

    def merge(self, earlier: Tensors, later: Tensors) -> Tensors:
        return earlier[0] + later[0], earlier[1] + later[1]

    def finish(self, summary: Tensors) -> Tensor:
        return summary[0] / summary[1].clamp(min=1)


class MaxPooling(Pooling):
    """The largest value of each feature over positions."""

    def summarise(self, x: Tensor, keep: Tensor) -> Tensors:
        return (x.masked_fill(~keep[..., None], -math.inf).amax(1),)

    def merge(self, earlier: Tensors, later: Tensors) -> Tensors:
        return (torch.maximum(earlier[0], later[0]),)

    def finish(self, summary: Tensors) -> Tensor:
        return summary[0].masked_fill(summary[0] == -math.inf, 0.0)


class AttentionPooling(Pooling):
    """Attention by one learned key, the same for every window; starts as the mean."""

    def __init__(self, width: int):
        super().__init__(width)
        self.key = nn.Parameter(torch.zeros(width))

    def summarise(self, x: Tensor, keep: Tensor) -> Tensors:
        # A softmax in parts: the largest score, and sums of exponentials relative to it.
        x = summable(x)
        score = (x @ self.key.to(x.dtype) / math.sqrt(x.shape[-1])).masked_fill(~keep, -math.inf)  # [B, t]
        top = score.amax(1, keepdim=True).clamp(min=-1e4).detach()
        weight = torch.exp(score - top)
        return top, torch.einsum("btk,bt->bk", x, weight), weight.sum(1, keepdim=True)

    def merge(self, earlier: Tensors, later: Tensors) -> Tensors:
        top = torch.maximum(earlier[0], later[0])
        a, b = torch.exp(earlier[0] - top), torch.exp(later[0] - top)
        return top, earlier[1] * a + later[1] * b, earlier[2] * a + later[2] * b

    def finish(self, summary: Tensors) -> Tensor:
        return summary[1] / summary[2].clamp(min=1e-12)


POOLINGS: dict[str, type[Pooling]] = {"mean": MeanPooling, "max": MaxPooling, "attention": AttentionPooling}
