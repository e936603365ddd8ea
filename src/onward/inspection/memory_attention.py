"""How much attention a window-recurrent model gives to its memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..models.window_recurrent.insertion import attending_eagerly, inserting


@torch.no_grad()
def memory_attention(model: Any, input_ids: Tensor) -> dict[int, float]:
    """By layer, the share of attention that tokens of the second window give to the first window's memory.

    The document's first token, which models attend to when nothing else fits, is not counted. Measured with eager
    attention, the only implementation that returns its weights. input_ids: [B, N].
    """
    config = model.config
    base: PreTrainedModel = model.backbone.base_model
    if input_ids.shape[1] <= config.window:
        raise ValueError(
            f"{input_ids.shape[1]} tokens are one window of {config.window}: give more, so that there is a memory"
        )
    with attending_eagerly(base):
        reader = model.reader
        state = model(input_ids[:, : config.window], use_cache=False).state
        stride = config.window - config.overlap
        second = input_ids[:, stride : stride + config.window]
        insertion = reader._insertion(state.memory, state.has_memory, state.open)
        insertion.weights = {}
        with inserting(base, reader.layers, insertion):
            base(input_ids=second)
    first = int(model.carrier.space == "attention")
    return {
        layer: weights[..., first : insertion.count].sum(-1).mean().item()
        for layer, weights in insertion.weights.items()
        if layer in insertion.inserted
    }
