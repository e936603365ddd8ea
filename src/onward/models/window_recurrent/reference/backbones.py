"""Backbones in plain equations, from the weights of a live model. Positions are those of tokens in their window.

Shapes: t tokens, k the backbone's width, heads of D features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, silu
from transformers import PreTrainedModel

_EMBEDDINGS = ("word", "position", "token_type")


def normalised(weights: dict[str, Any], name: str, x: Tensor, epsilon: float) -> Tensor:
    return layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], epsilon)


class Backbone:
    """What the reference asks of every backbone, besides its maps."""

    causal = True
    local: int | None = None  # tokens further apart than this minus one do not see each other
    heads: int  # of queries
    key_heads: int  # of keys and values, each shared by as many heads of queries

    def turned(self, x: Tensor, position: int) -> Tensor:
        """A key or query [D] as it is at a position. Learned positions are in its input already."""
        return x


class GPT2(Backbone):
    """A pre-norm decoder: x + attention(norm(x)), then x + ff(norm(x))."""

    def __init__(self, model: PreTrainedModel):
        self.weights = dict(model.base_model.named_parameters())
        self.heads = self.key_heads = model.config.n_head
        self.epsilon = model.config.layer_norm_epsilon

    def norm(self, name: str, x: Tensor) -> Tensor:
        return normalised(self.weights, name, x, self.epsilon)

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


class BERT(Backbone):
    """A post-norm encoder: norm(x + attention(x)), then norm(x + ff(x))."""

    causal = False

    def __init__(self, model: PreTrainedModel):
        self.weights = dict(model.base_model.named_parameters())
        self.heads = self.key_heads = model.config.num_attention_heads
        self.epsilon = model.config.layer_norm_eps

    def norm(self, name: str, x: Tensor) -> Tensor:
        return normalised(self.weights, name, x, self.epsilon)

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def embed(self, ids: Tensor) -> Tensor:
        table = {kind: self.weights[f"embeddings.{kind}_embeddings.weight"] for kind in _EMBEDDINGS}
        summed = table["word"][ids] + table["position"][: len(ids)] + table["token_type"][0]
        return self.norm("embeddings.LayerNorm", summed)  # [t, k]

    def attention_input(self, layer: int, x: Tensor) -> Tensor:
        return x

    def queries_keys_values(self, layer: int, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        block = f"encoder.layer.{layer - 1}.attention.self"
        query, key, value = (self.linear(f"{block}.{name}", a) for name in ("query", "key", "value"))
        return query, key, value

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


class LLAMA(Backbone):
    """A pre-norm decoder whose queries and keys turn with their positions, and whose heads share keys and values in
    groups. With local attention it is a Mistral."""

    def __init__(self, model: PreTrainedModel):
        config: Any = model.config
        base: Any = model.base_model
        self.weights = dict(base.named_parameters())
        output: Any = model.get_output_embeddings()
        self.output: Tensor = output.weight
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        self.epsilon, self.local = config.rms_norm_eps, getattr(config, "sliding_window", None)
        self.angles: Tensor = base.rotary_emb.inv_freq.double()  # [D / 2]: theta^(-2i / D)

    def norm(self, name: str, x: Tensor) -> Tensor:
        """x / sqrt(mean(x^2)), times a weight."""
        return x / torch.sqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.weights[f"{name}.weight"]

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T

    def turned(self, x: Tensor, position: int) -> Tensor:
        """The pair of features i and i + D/2 is turned by position times angle i."""
        first, second = x.chunk(2)
        c, s = torch.cos(position * self.angles), torch.sin(position * self.angles)
        return torch.cat([c * first - s * second, s * first + c * second])

    def embed(self, ids: Tensor) -> Tensor:
        return self.weights["embed_tokens.weight"][ids]  # [t, k]

    def attention_input(self, layer: int, x: Tensor) -> Tensor:
        return self.norm(f"layers.{layer - 1}.input_layernorm", x)

    def queries_keys_values(self, layer: int, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As they are at position 0."""
        query, key, value = (self.linear(f"layers.{layer - 1}.self_attn.{name}_proj", a) for name in "qkv")
        return query, key, value

    def after_attention(self, layer: int, x: Tensor, attended: Tensor) -> Tensor:
        block = f"layers.{layer - 1}"
        x = x + self.linear(f"{block}.self_attn.o_proj", attended)
        a = self.norm(f"{block}.post_attention_layernorm", x)
        inner = silu(self.linear(f"{block}.mlp.gate_proj", a)) * self.linear(f"{block}.mlp.up_proj", a)
        return x + self.linear(f"{block}.mlp.down_proj", inner)

    def hidden(self, x: Tensor) -> Tensor:
        return self.norm("norm", x)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.output.T  # [t, vocabulary]
