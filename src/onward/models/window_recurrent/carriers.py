"""Carriers: how hidden states of a window become its memory, and the memory keys and values for the next window.

A carrier has four parts, all of them functions of tensors with the batch first:

- `summarise` summarises some positions of a window, and `merge` joins two summaries: so a window can be processed
  token by token with a summary of constant size.
- `carry` turns the summary of a whole window into the memory.
- `vectors` turns the memory into hidden vectors, from which the next window's layers make extra keys and values.

To add a carrier, write one class and decorate it; the shared tests pick it up. To add a pooling, write one class and
add it to POOLINGS.

Shapes: B rows, t positions, L layers, k the backbone's width, V vectors, I layers of insertion.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

if TYPE_CHECKING:
    from .configuration_window_recurrent import WindowRecurrenceConfig

Tensors = tuple[Tensor, ...]
CARRIERS: dict[str, type[Carrier]] = {}


def carrier(name: str) -> Callable[[type[Carrier]], type[Carrier]]:
    def register(cls: type[Carrier]) -> type[Carrier]:
        CARRIERS[name] = cls
        return cls

    return register


@dataclass(frozen=True)
class Defaults:
    space: str = "layer"  # whether vectors are inputs of a "layer" or of its "attention"
    insert_at: int | str = 2
    vectors: int = 1
    at_least: int = 1  # vectors


class Carrier(nn.Module):
    """Carries nothing: plain windows. The base class of all carriers, and the baseline `none`."""

    def __init__(self, config: WindowRecurrenceConfig):
        super().__init__()
        self.space = self.defaults(config).space
        self.width: int = config.hidden_size
        self.layers: tuple[int, ...] = config.insertion_layers  # counted from 1
        self.count: int = config.vector_count
        self.window: int = config.window

    @classmethod
    def defaults(cls, config: WindowRecurrenceConfig) -> Defaults:
        """This carrier's defaults for fields that the configuration leaves open."""
        return Defaults(insert_at="all")

    def summarise(self, hidden: Sequence[Tensor], keep: Tensor, index: Tensor) -> Tensors:
        """hidden: in the space "layer", L+1 of [B, t, k], the input of every layer and the output of the last; in
        "attention", the L inputs of attention. keep: [B, t] bool, the positions that count. index: [B, t], each
        position's place in the window, from 0."""
        return ()

    def merge(self, earlier: Tensors, later: Tensors) -> Tensors:
        """The summary of two consecutive parts of a window."""
        return ()

    def carry(self, summary: Tensors, previous: Tensors, has_previous: Tensor) -> Tensors:
        """The memory after a window. `previous` is the memory before it, for rows with `has_previous` [B]."""
        return ()

    def empty(self, batch_size: int, like: Tensor) -> Tensors:
        """A placeholder before there is a memory: zeros of the shapes of `carry`. like: any [.., k]."""
        return ()

    def vectors(self, state: Tensors) -> dict[int, Tensor]:
        """By layer, counted from 1: [B, V, k], hidden vectors as they would enter that layer."""
        return {}

    def visible(self, state: Tensors) -> Tensor | None:
        """[B, V] bool: the vectors that tokens may attend to; None for all."""
        return None

    def positions(self) -> list[float]:
        """The positions of the V vectors, for rotary models; the next window's first token is at 0."""
        return [float(v - self.count) for v in range(self.count)]


CARRIERS["none"] = Carrier


def _summable(x: Tensor) -> Tensor:
    """Sums over many tokens need more digits than half precision has."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


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
        x = _summable(x)
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
        x = _summable(x)
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


def first_of_document(first: Tensor, previous: Tensor, has_previous: Tensor) -> Tensor:
    """[B, I, k]: the vectors of the document's first token, from its first window or carried on since.

    Pretrained models put unneeded attention on the first token and break without it (an attention sink). Inserted
    vectors displace a window's first token, so the document's is inserted with them.
    """
    return torch.where(has_previous[:, None, None], previous, first)


@carrier("pooled")
class Pooled(Carrier):
    """The paper's carrier: a window is pooled into z, and a feed-forward network turns z into inserted vectors.

    In the paper (`residual=False`), z mixes the outputs of all layers, and h_prev = FF(z) enters a layer. In short
    training none of its gain is content: z is nearly the same for all windows (its first token's activations outweigh
    the rest), FF must learn from scratch what a layer understands, and h_prev displaces the attention sink. With
    `residual=True` every layer of insertion has its own z, pooled from the inputs of attention and mixed so that its
    own layer weighs most; h_prev = z + FF(z) enters the attention, with FF starting at zero; and the document's first
    token stays visible.
    """

    def __init__(self, config: WindowRecurrenceConfig):
        super().__init__(config)
        self.residual, self.pooled_layers = config.residual, config.pooled_layers
        layers = config.num_hidden_layers
        if self.pooled_layers == "weighted" and self.residual:
            own = torch.zeros(len(self.layers), layers)
            for row, layer in enumerate(self.layers):
                own[row, layer - 1] = 6.0  # 93 % of the mixture of 30 layers
            self.alpha = nn.Parameter(own)
        elif self.pooled_layers == "weighted":
            self.alpha = nn.Parameter(torch.zeros(layers))
        self.pooling: Pooling = POOLINGS[config.pooling](self.width)
        self.made = self.count - 1 if self.residual else self.count  # by the network: all except the first token
        widths = [self.width, *config.hidden_widths]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths, widths[1:], strict=False))
        self.activation = ACT2FN[config.activation]
        self.output = nn.Linear(widths[-1], self.made * self.width)
        if self.residual:
            nn.init.zeros_(self.output.weight)
            nn.init.zeros_(self.output.bias)

    @classmethod
    def defaults(cls, config: WindowRecurrenceConfig) -> Defaults:
        if config.residual:
            return Defaults(space="attention", insert_at="all", vectors=2, at_least=2)
        return Defaults()

    def summarise(self, hidden: Sequence[Tensor], keep: Tensor, index: Tensor) -> Tensors:
        if self.residual:
            # Every layer is pooled by itself, so that L pooled vectors are mixed later instead of L times t.
            pooled = [self.pooling.summarise(h, keep & (index > 0)) for h in hidden]
            # The window's first token can only be the first of these positions.
            at_first = (keep & (index == 0))[:, :1, None]
            first = torch.stack([hidden[layer - 1][:, 0] for layer in self.layers], dim=1).where(at_first, 0)
            return first, *(torch.stack(part, dim=1) for part in zip(*pooled, strict=True))
        outputs = hidden[1:]  # of layers 1 to L, not the embeddings
        if self.pooled_layers == "last":
            mixed = outputs[-1]
        else:
            weights = self.alpha.softmax(0)
            mixed = sum((w * h for w, h in zip(weights, outputs, strict=True)), torch.zeros_like(outputs[0]))
        return self.pooling.summarise(mixed, keep)

    def merge(self, earlier: Tensors, later: Tensors) -> Tensors:
        if self.residual:
            return earlier[0] + later[0], *self.pooling.merge(earlier[1:], later[1:])
        return self.pooling.merge(earlier, later)

    def carry(self, summary: Tensors, previous: Tensors, has_previous: Tensor) -> Tensors:
        if not self.residual:
            return (self.pooling.finish(summary).to(previous[0].dtype),)  # z: [B, k]
        pooled = self.pooling.finish(summary[1:]).to(previous[1].dtype)  # [B, L, k]
        if self.pooled_layers == "weighted":
            z = torch.einsum("il,blk->bik", self.alpha.softmax(-1), pooled)
        else:
            z = pooled[:, -1:].expand(-1, len(self.layers), -1)
        return first_of_document(summary[0], previous[0], has_previous), z

    def empty(self, batch_size: int, like: Tensor) -> Tensors:
        if self.residual:
            shape = (batch_size, len(self.layers), self.width)
            return like.new_zeros(shape), like.new_zeros(shape)  # not shared: `Constant` makes them parameters
        return (like.new_zeros(batch_size, self.width),)

    def _network(self, z: Tensor) -> Tensor:
        for layer in self.hidden:
            z = self.activation(layer(z))
        return self.output(z).unflatten(-1, (self.made, self.width))

    def vectors(self, state: Tensors) -> dict[int, Tensor]:
        if not self.residual:
            return dict.fromkeys(self.layers, self._network(state[0]))
        first, z = state
        made = z[:, :, None] + self._network(z)  # [B, I, V - 1, k]
        inserted = torch.cat([first[:, :, None], made], dim=2)
        return {layer: inserted[:, i] for i, layer in enumerate(self.layers)}


def coarser(means: Tensor, seen: Tensor, spans: int) -> Tensors:
    """Averages nearly equal groups of neighbours that are `seen` [B, n]. means: [B, I, n, k] -> [B, I, spans, k]"""
    n = seen.shape[1]
    if n == spans:
        return means, seen
    group = torch.arange(n, device=seen.device) * spans // n
    member = (group == torch.arange(spans, device=seen.device)[:, None]) & seen[:, None]  # [B, spans, n]
    sums, count = member[:, None].to(_summable(means).dtype) @ _summable(means), member.sum(-1)
    return (sums / count.clamp(min=1)[:, None, :, None]).to(means.dtype), count > 0


@carrier("spans")
class Spans(Carrier):
    """At every layer, the means of a few spans of the inputs of its attention, plus a learned correction.

    Inserted into the same attention, a span's key and value are the means of its tokens' keys and values, before any
    training. The first vector is the document's first token (see `first_of_document`). The corrections start at zero.
    With `history`, the spans of several windows are inserted, the last window nearest; each new window drops the
    oldest. If older windows have fewer spans, neighbours are averaged: the further back, the coarser.
    """

    def __init__(self, config: WindowRecurrenceConfig):
        super().__init__(config)
        self.by_age: list[int] = config.spans_by_age  # the last window's first
        self.spans = self.by_age[0]
        self.down = nn.Parameter(torch.randn(len(self.layers), self.width, config.rank) / math.sqrt(self.width))
        self.up = nn.Parameter(torch.zeros(len(self.layers), config.rank, self.width))

    @classmethod
    def defaults(cls, config: WindowRecurrenceConfig) -> Defaults:
        windows = config.history
        spans, least = (sum(windows),) * 2 if isinstance(windows, list) else (15 * windows, windows)
        return Defaults(space="attention", insert_at="all", vectors=1 + spans, at_least=1 + least)

    def summarise(self, hidden: Sequence[Tensor], keep: Tensor, index: Tensor) -> Tensors:
        # Which of the vectors each position belongs to: the first token to 0, the others to spans 1, 2, ...
        place = (index * self.spans).div(self.window, rounding_mode="floor") + 1
        place = place.masked_fill(index == 0, 0)  # [B, t]
        vector = torch.arange(1 + self.spans, device=index.device)
        member = (place[:, None, :] == vector[:, None]) & keep[:, None, :]
        member = member.to(_summable(hidden[0]).dtype)
        sums = torch.stack([member @ _summable(hidden[layer - 1]) for layer in self.layers], dim=1)
        return sums, member.sum(-1)  # [B, I, 1 + spans, k], [B, 1 + spans]

    def merge(self, earlier: Tensors, later: Tensors) -> Tensors:
        return earlier[0] + later[0], earlier[1] + later[1]

    def carry(self, summary: Tensors, previous: Tensors, has_previous: Tensor) -> Tensors:
        sums, counts = summary
        means, seen = (sums / counts.clamp(min=1)[:, None, :, None]).to(previous[0].dtype), counts > 0
        first = first_of_document(means[:, :, 0], previous[0][:, :, 0], has_previous)
        older, older_seen = self.aged(previous[0][:, :, 1:], previous[1][:, 1:] & has_previous[:, None])
        means = torch.cat([first[:, :, None], older, means[:, :, 1:]], dim=2)
        return means, torch.cat([seen[:, :1], older_seen, seen[:, 1:]], dim=1)

    def aged(self, means: Tensor, seen: Tensor) -> Tensors:
        """The spans of all windows except the oldest, as they are one window later. means: [B, I, V - 1, k] and
        seen: [B, V - 1], the oldest window first."""
        windows = zip(means.split(self.by_age[::-1], 2), seen.split(self.by_age[::-1], 1), strict=True)
        _, *older = windows
        aged = [coarser(*window, spans) for window, spans in zip(older, self.by_age[:0:-1], strict=True)]
        if not aged:
            return means[:, :, :0], seen[:, :0]
        return torch.cat([means for means, _ in aged], dim=2), torch.cat([seen for _, seen in aged], dim=1)

    def empty(self, batch_size: int, like: Tensor) -> Tensors:
        means = like.new_zeros(batch_size, len(self.layers), self.count, self.width)
        return means, like.new_zeros(batch_size, self.count).bool()

    def vectors(self, state: Tensors) -> dict[int, Tensor]:
        means = state[0]
        corrected = means + (means @ self.down) @ self.up
        return {layer: corrected[:, i] for i, layer in enumerate(self.layers)}

    def visible(self, state: Tensors) -> Tensor | None:
        return state[1]


@carrier("constant")
class Constant(Carrier):
    """A learned memory that does not depend on the text: the control for a memory's content.

    It replaces another carrier: the same maps, layers and number of vectors, with a parameter as the memory. Trained
    on the same tokens, it gains everything that an attention sink and adaptation to the domain give.
    """

    def __init__(self, config: WindowRecurrenceConfig):
        super().__init__(config)
        self.inner = CARRIERS[config.stands_for](config)
        learned = self.inner.empty(1, torch.empty(0))
        self.floating = [t.is_floating_point() for t in learned]
        self.learned = nn.ParameterList(t for t in learned if t.is_floating_point())
        self._freeze_unused()

    def _freeze_unused(self) -> None:
        """Parameters that only write a memory are unused here, and distributed training waits for every gradient."""
        with torch.enable_grad():
            total = torch.stack([vector.sum() for vector in self.vectors(()).values()]).sum()
        named = list(self.inner.parameters())
        for parameter, gradient in zip(named, torch.autograd.grad(total, named, allow_unused=True), strict=True):
            parameter.requires_grad_(gradient is not None)

    @classmethod
    def defaults(cls, config: WindowRecurrenceConfig) -> Defaults:
        return CARRIERS[config.stands_for].defaults(config)

    def start_from(self, memory: Tensors) -> None:
        """Starts from the mean of real memories, which training then need not find."""
        means = [t.detach().float().mean(0, keepdim=True) for t in memory if t.is_floating_point()]
        for parameter, mean in zip(self.learned, means, strict=True):
            parameter.data.copy_(mean)

    def vectors(self, state: Tensors) -> dict[int, Tensor]:
        # The leading axis of one is expanded to the batch at insertion. Flags are all True.
        learned, like = iter(self.learned), self.learned[0]
        flags = self.inner.empty(1, like)
        return self.inner.vectors(
            tuple(next(learned) if f else t.logical_not() for f, t in zip(self.floating, flags, strict=True))
        )

    def positions(self) -> list[float]:
        return self.inner.positions()
