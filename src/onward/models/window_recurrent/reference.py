"""Window recurrence as the paper's equations say it, for reading and for tests: loops, one document, no batch.

Everything the fast model does in one run with a seam, a cache and masks is done here by hand: for each window,
each layer, each head and each position. It covers one decoder (GPT-2) and one encoder (BERT).

Shapes: N tokens of the document, T of a window (t of the last one), k the backbone's width, L its layers,
H heads of D = k / H features, V inserted vectors at each of I layers.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from .configuration_window_recurrent import WindowRecurrenceConfig

Memory = tuple[Tensor, ...]


class GPT2:
    """A decoder that norms before attention: x + attention(norm(x)), then x + ff(norm(x))."""

    causal = True

    def __init__(self, model: PreTrainedModel):
        self.weights = dict(model.base_model.named_parameters())
        self.heads, self.epsilon = model.config.n_head, model.config.layer_norm_epsilon

    def norm(self, name: str, x: Tensor) -> Tensor:
        w = self.weights
        return layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], self.epsilon)

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def embed(self, ids: Tensor) -> Tensor:
        return self.weights["wte.weight"][ids] + self.weights["wpe.weight"][: len(ids)]  # [t, k]

    def attention_input(self, layer: int, x: Tensor) -> Tensor:
        return self.norm(f"h.{layer - 1}.ln_1", x)

    def queries_keys_values(self, layer: int, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = self.linear(f"h.{layer - 1}.attn.c_attn", a).chunk(3, dim=-1)
        return query, key, value

    def after_attention(self, layer: int, x: Tensor, attended: Tensor) -> Tensor:
        block = f"h.{layer - 1}"
        x = x + self.linear(f"{block}.attn.c_proj", attended)
        inner = gelu(self.linear(f"{block}.mlp.c_fc", self.norm(f"{block}.ln_2", x)), approximate="tanh")
        return x + self.linear(f"{block}.mlp.c_proj", inner)

    def hidden(self, x: Tensor) -> Tensor:
        return self.norm("ln_f", x)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.weights["wte.weight"].T  # [t, vocabulary]


class BERT:
    """An encoder that norms after each sum: norm(x + attention(x)), then norm(x + ff(x))."""

    causal = False

    def __init__(self, model: PreTrainedModel):
        self.weights = dict(model.base_model.named_parameters())
        self.heads, self.epsilon = model.config.num_attention_heads, model.config.layer_norm_eps

    norm = GPT2.norm

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def embed(self, ids: Tensor) -> Tensor:
        words, places, types = (
            self.weights[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type")
        )
        return self.norm("embeddings.LayerNorm", words[ids] + places[: len(ids)] + types[0])

    def attention_input(self, layer: int, x: Tensor) -> Tensor:
        return x

    def queries_keys_values(self, layer: int, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        block = f"encoder.layer.{layer - 1}.attention.self"
        return self.linear(f"{block}.query", a), self.linear(f"{block}.key", a), self.linear(f"{block}.value", a)

    def after_attention(self, layer: int, x: Tensor, attended: Tensor) -> Tensor:
        block = f"encoder.layer.{layer - 1}"
        x = x + self.linear(f"{block}.attention.output.dense", attended)
        x = self.norm(f"{block}.attention.output.LayerNorm", x)
        inner = gelu(self.linear(f"{block}.intermediate.dense", x))
        return self.norm(f"{block}.output.LayerNorm", x + self.linear(f"{block}.output.dense", inner))

    def hidden(self, x: Tensor) -> Tensor:
        return x

    def logits(self, hidden: Tensor) -> None:
        return None


def attend(query: Tensor, key: Tensor, value: Tensor, extra_key: Tensor, extra_value: Tensor, causal: bool) -> Tensor:
    """One head. query, key, value: [t, D]; extra_key, extra_value: [V, D], which every position may attend to."""
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
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """The hidden states [t, k], each layer's output and each attention's input, from 1 to L.

    inserted: by layer [V, k], inputs of the layer or (space "attention") of its attention. They are only keys and
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
            parts = (part[:, mine] for part in (query, key, value, extra_key, extra_value))
            heads.append(attend(*parts, causal=backbone.causal))
        x = backbone.after_attention(layer, x, torch.cat(heads, dim=-1))
        taken_in.append(a)
        outputs.append(x)
    return backbone.hidden(x), outputs, taken_in


def pool(carrier: nn.Module, config: WindowRecurrenceConfig, outputs: list[Tensor], counted: int) -> Memory:
    """z [k] = pooling over the counted positions i of sum over l of w_l h_i^(l), with w = softmax(alpha)."""
    if config.pooled_layers == "weighted":
        alpha: Any = carrier.alpha  # [L]
        mixed = sum(w * h for w, h in zip(alpha.softmax(0), outputs, strict=True))
    else:
        mixed = outputs[-1]
    mixed = mixed[:counted]  # type: ignore[index]
    if config.pooling == "mean":
        return (mixed.mean(0),)
    if config.pooling == "max":
        return (mixed.max(0).values,)
    key: Any = carrier.pooling.key  # type: ignore[union-attr]
    return ((mixed @ key / math.sqrt(mixed.shape[-1])).softmax(0) @ mixed,)


def feed_forward(carrier: Any, config: WindowRecurrenceConfig, z: Tensor) -> Tensor:
    """h_prev [V, k] = FF(z)."""
    for layer in carrier.hidden:
        z = ACT2FN[config.activation](layer.weight @ z + layer.bias)
    return (carrier.output.weight @ z + carrier.output.bias).view(config.vector_count, -1)


def average_spans(
    config: WindowRecurrenceConfig, taken_in: list[Tensor], previous: Memory | None, counted: int
) -> Memory:
    """Means [I, V, k] of each span of what the attention took in, and which spans [V] hold a token.

    Vector 0 is the document's first token. Tokens 1, 2, ... of the window, their places scaled to V - 1 equal
    spans, belong to vectors 1 to V - 1.
    """
    spans = config.vector_count - 1
    members: list[list[int]] = [[0]] + [[] for _ in range(spans)]
    for i in range(1, counted):
        members[1 + i * spans // config.window].append(i)
    means = []
    for number, layer in enumerate(config.insertion_layers):
        a = taken_in[layer - 1]  # [t, k]
        vectors = [a[places].mean(0) if places else torch.zeros_like(a[0]) for places in members]
        if previous is not None:
            vectors[0] = previous[0][number, 0]
        means.append(torch.stack(vectors))
    return torch.stack(means), torch.tensor([bool(places) for places in members])


def correct(carrier: Any, means: Tensor, seen: Tensor, number: int) -> Tensor:
    """The vectors of one layer [V, k]: each mean x of a span becomes x + x A B, with A: k -> rank, B: rank -> k."""
    return torch.stack([x + (x @ carrier.down[number]) @ carrier.up[number] for x in means[number][seen]])


def vectors_of(carrier: Any, config: WindowRecurrenceConfig, memory: Memory) -> dict[int, Tensor]:
    """What the memory, or the constant in its place, inserts into each layer: [V, k]."""
    kind = config.carrier
    if kind == "constant":
        kind, memory = config.stands_for, tuple(learned[0] for learned in carrier.learned)
        carrier = carrier.inner
        if kind == "spans":
            memory = (*memory, torch.ones(config.vector_count, dtype=torch.bool))
    if kind == "none":
        return {}
    if kind == "pooled":
        return dict.fromkeys(config.insertion_layers, feed_forward(carrier, config, memory[0]))
    return {layer: correct(carrier, *memory, number) for number, layer in enumerate(config.insertion_layers)}


def read_document(
    backbone: GPT2 | BERT,
    carrier: nn.Module,
    config: WindowRecurrenceConfig,
    ids: Tensor,
    memory: Memory | None = None,
) -> tuple[Tensor, Tensor | None, Memory | None]:
    """Hidden states [N, k] and logits [N, vocabulary] of every token of a document, ids [N], each from the first
    window that reads it, and the memory after the last window that is closed. `memory` comes from before `ids`; a
    document's first window has none and runs unmodified.
    """
    acts_as = config.stands_for if config.carrier == "constant" else config.carrier
    space = "attention" if acts_as == "spans" else "layer"
    hidden: list[Tensor] = []
    start = 0
    while len(hidden) < len(ids):
        window = ids[start : start + config.window]
        inserted = {} if memory is None else vectors_of(carrier, config, memory)
        states, outputs, taken_in = run_window(backbone, window, config.num_hidden_layers, inserted, space)
        hidden.extend(states[len(hidden) - start :])
        if len(window) == config.window or not backbone.causal:  # a decoder's last window waits to be filled
            counted = len(window)
            if config.pooled_positions == "before_next_window":
                counted = min(counted, config.window - config.overlap)
            if config.carrier == "pooled":
                memory = pool(carrier, config, outputs, counted)
            elif config.carrier == "spans":
                memory = average_spans(config, taken_in, memory, counted)
            else:
                memory = ()
        start += config.window - config.overlap
    whole = torch.stack(hidden)
    return whole, backbone.logits(whole), memory
