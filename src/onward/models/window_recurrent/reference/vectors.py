"""Carriers of vectors in plain equations: the paper's, and those that grew from it.

Shapes: t tokens of a window, k the backbone's width, L its layers, heads of D features, V vectors inserted at each of
I layers.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from transformers.activations import ACT2FN

from ..configuration_window_recurrent import WindowRecurrenceConfig as Config
from .backbones import BERT, GPT2

Memory = tuple[Tensor, ...]
Layers = list[Tensor]


def attend(query: Tensor, key: Tensor, value: Tensor, extra_key: Tensor, extra_value: Tensor, causal: bool) -> Tensor:
    """One head. query, key, value: [t, D]; extra_key, extra_value: [V, D], which every position may see."""
    outputs = []
    for i in range(len(query)):
        seen = i + 1 if causal else len(key)
        keys = torch.cat([extra_key, key[:seen]])  # [V + seen, D]
        values = torch.cat([extra_value, value[:seen]])
        weights = (keys @ query[i] / math.sqrt(query.shape[-1])).softmax(0)
        outputs.append(weights @ values)
    return torch.stack(outputs)  # [t, D]


def run_window(
    backbone: GPT2 | BERT, ids: Tensor, layers: int, inserted: dict[int, Tensor], space: str
) -> tuple[Tensor, Layers, Layers]:
    """The hidden states [t, k], each layer's output and each attention's input, from 1 to L.

    inserted: by layer [V, k], inputs of the layer or (space "attention") of its attention. They only become keys and
    values: V + t inputs, t outputs.
    """
    x = backbone.embed(ids)  # [t, k]
    outputs, taken_in = [], []
    for layer in range(1, layers + 1):
        a = backbone.attention_input(layer, x)
        query, key, value = backbone.queries_keys_values(layer, a)
        extra = inserted.get(layer, a[:0])
        if space == "layer":
            extra = backbone.attention_input(layer, extra)
        _, extra_key, extra_value = backbone.queries_keys_values(layer, extra)
        width = x.shape[-1] // backbone.heads
        heads = []
        for head in range(backbone.heads):
            mine = slice(head * width, (head + 1) * width)
            q, k, v = query[:, mine], key[:, mine], value[:, mine]
            heads.append(attend(q, k, v, extra_key[:, mine], extra_value[:, mine], backbone.causal))
        x = backbone.after_attention(layer, x, torch.cat(heads, dim=-1))
        taken_in.append(a)
        outputs.append(x)
    return backbone.hidden(x), outputs, taken_in


def pool(carrier: Any, pooling: str, x: Tensor) -> Tensor:
    """[k] from the positions of x [t, k]."""
    if len(x) == 0:
        return x.new_zeros(x.shape[1])
    if pooling == "mean":
        return x.mean(0)
    if pooling == "max":
        return x.max(0).values
    scores = x @ carrier.pooling.key / math.sqrt(x.shape[1])  # [t]
    return scores.softmax(0) @ x


def feed_forward(carrier: Any, config: Config, z: Tensor) -> Tensor:
    """FF(z), one or more vectors [.., k] from z [k]."""
    x = z
    for layer in carrier.hidden:
        x = ACT2FN[config.activation](layer.weight @ x + layer.bias)
    return (carrier.output.weight @ x + carrier.output.bias).view(-1, len(z))


class Paper:
    """The paper's module. z = the mean over positions i of sum_l w_l h_i^(l), with w = softmax(alpha), over
    the outputs of layers 1 to L; h_prev = FF(z) enters the layer. The memory is z [k]."""

    space = "layer"

    @staticmethod
    def carry(carrier: Any, config: Config, outputs: Layers, taken_in: Layers, previous: Any) -> Memory:
        mixed = outputs[-1]
        if config.pooled_layers == "weighted":
            w = carrier.alpha.softmax(0)  # [L]
            mixed = torch.stack([w[number] * h for number, h in enumerate(outputs)]).sum(0)
        return (pool(carrier, config.pooling, mixed),)

    @staticmethod
    def vectors(carrier: Any, config: Config, memory: Memory, number: int) -> Tensor:
        return feed_forward(carrier, config, memory[0])  # [V, k]


class Residual:
    """Each layer of insertion has its own z = sum_l w_l (pooled a^(l)), a^(l) being the input of layer l's attention
    without the window's first token; h_prev = z + FF(z) enters the attention, and before it the document's first
    token. The memory is that token [I, k] and z [I, k]."""

    space = "attention"

    @staticmethod
    def carry(carrier: Any, config: Config, outputs: Layers, taken_in: Layers, previous: Any) -> Memory:
        pooled = torch.stack([pool(carrier, config.pooling, a[1:]) for a in taken_in])  # [L, k]
        first, z = [], []
        for number, layer in enumerate(config.insertion_layers):
            first.append(taken_in[layer - 1][0] if previous is None else previous[0][number])
            weighted = config.pooled_layers == "weighted"
            z.append(carrier.alpha[number].softmax(0) @ pooled if weighted else pooled[-1])
        return torch.stack(first), torch.stack(z)

    @staticmethod
    def vectors(carrier: Any, config: Config, memory: Memory, number: int) -> Tensor:
        first, z = memory[0][number], memory[1][number]
        return torch.cat([first[None], z + feed_forward(carrier, config, z)])  # [V, k]


class PlainSpans:
    """Vector 0 is the document's first token as input of attention. A window is cut into spans of equal length; the
    mean x of each, without the window's first token, is inserted as x + x A B. Spans of the last H windows are
    inserted, the oldest first; as a window ages, neighbours are averaged. The memory is the means [I, V, k], and
    which of them hold a token [V]."""

    space = "attention"

    @staticmethod
    def carry(carrier: Any, config: Config, outputs: Layers, taken_in: Layers, previous: Any) -> Memory:
        spans, *fewer = config.spans_by_age
        members: list[list[int]] = [[0]] + [[] for _ in range(spans)]
        for i in range(1, len(taken_in[0])):
            members[1 + i * spans // config.window].append(i)
        means = []
        for number, layer in enumerate(config.insertion_layers):
            a = taken_in[layer - 1]  # [t, k]
            vectors = [a[places].mean(0) if places else torch.zeros_like(a[0]) for places in members]
            older = [torch.zeros_like(a[0])] * sum(fewer)
            if previous is not None:
                vectors[0] = previous[0][number, 0]
                older = [x for x, _ in PlainSpans.older(config, previous[0][number], previous[1])]
            means.append(torch.stack([vectors[0], *older, *vectors[1:]]))
        first, *seen = [len(places) > 0 for places in members]
        older_seen = [False] * sum(fewer)
        if previous is not None:
            older_seen = [there for _, there in PlainSpans.older(config, previous[0][0], previous[1])]
        return torch.stack(means), torch.tensor([first, *older_seen, *seen])

    @staticmethod
    def older(config: Config, means: Tensor, seen: Tensor) -> list[tuple[Tensor, bool]]:
        """The spans of one layer one window later, without the oldest window, and whether each holds a token."""
        aged: list[tuple[Tensor, bool]] = []
        counts, start = config.spans_by_age, len(means)
        for n, spans in zip(counts, counts[1:], strict=False):
            start -= n
            if n == spans:
                aged = [(means[start + i], bool(seen[start + i])) for i in range(n)] + aged
                continue
            groups: list[list[Tensor]] = [[] for _ in range(spans)]
            for i in range(n):
                if seen[start + i]:
                    groups[i * spans // n].append(means[start + i])
            window = [
                (torch.stack(group).mean(0) if group else torch.zeros_like(means[0]), len(group) > 0)
                for group in groups
            ]
            aged = [*window, *aged]
        return aged

    @staticmethod
    def vectors(carrier: Any, config: Config, memory: Memory, number: int) -> Tensor:
        means, seen = memory[0][number], memory[1]
        a, b = carrier.down[number], carrier.up[number]  # [k, rank], [rank, k]
        return torch.stack([x + (x @ a) @ b for x in means[seen]])  # [V or fewer, k]


def kind_of(config: Config) -> Any:
    name = config.stands_for if config.carrier == "constant" else config.carrier
    return {"pooled": Residual if config.residual else Paper, "spans": PlainSpans, "none": None}[name]


def vectors_of(carrier: Any, config: Config, memory: Memory | None) -> dict[int, Tensor]:
    """The vectors inserted into each layer: none before there is a memory; then those of the memory, or of the
    constant in its place."""
    kind = kind_of(config)
    if memory is None or kind is None:
        return {}
    if config.carrier == "constant":
        memory, carrier = tuple(learned[0] for learned in carrier.learned), carrier.inner
        if kind is PlainSpans:
            memory = (*memory, torch.ones(config.vector_count, dtype=torch.bool))
    return {
        layer: kind.vectors(carrier, config, memory, number) for number, layer in enumerate(config.insertion_layers)
    }


def read_window(
    backbone: GPT2 | BERT, carrier: Any, config: Config, ids: Tensor, memory: Memory | None, closes: bool
) -> tuple[Tensor, Memory | None]:
    """Hidden states [t, k] of one window, and the memory after it."""
    kind = kind_of(config)
    inserted = vectors_of(carrier, config, memory)
    space = "layer" if kind is None else kind.space
    states, outputs, taken_in = run_window(backbone, ids, config.num_hidden_layers, inserted, space)
    if not closes:
        return states, memory
    if config.carrier in ("none", "constant"):
        return states, ()
    counted = config.window
    if config.pooled_positions == "before_next_window":
        counted -= config.overlap
    outputs, taken_in = [h[:counted] for h in outputs], [a[:counted] for a in taken_in]
    return states, kind.carry(carrier, config, outputs, taken_in, memory)
