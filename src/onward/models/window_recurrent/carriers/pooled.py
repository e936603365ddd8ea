"""The paper's carrier: a window is pooled into one vector, which a feed-forward network makes a key and value of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from .base import Defaults, Tensors, VectorCarrier, carrier, first_of_document
from .pooling import POOLINGS, Pooling

if TYPE_CHECKING:
    from ..configuration_window_recurrent import WindowRecurrenceConfig


@carrier("pooled")
class Pooled(VectorCarrier):
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
        return Defaults(space="layer", insert_at=2)

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
