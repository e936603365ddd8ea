"""What is in a window-recurrent model: where the memory goes in, and how much attention it gets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..evaluation.cost import formula_flops_per_token
from ..models.window_recurrent.insertion import attending_eagerly, inserting
from ..models.window_recurrent.probe import probe


def window_facts(model: Any) -> dict[str, str]:
    config = model.config
    seam = probe(model.backbone, config.insertion_layers, model.carrier.space)
    added = sum(p.numel() for p in model.carrier.parameters())
    total = sum(p.numel() for p in model.parameters())
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return {
        "model": type(model).__name__,
        "backbone": f"{config.backbone_name or 'made in memory'} ({config.backbone.model_type}, "
        f"{config.num_hidden_layers} layers, width {config.hidden_size})",
        "reads": f"{'left to right' if config.causal else 'both ways'}, windows of {config.window}, "
        f"overlap {config.overlap}",
        "carries": f"{config.carrier}: {config.vector_count} vector(s) into the {model.carrier.space}",
        "inserted at layers": ", ".join(map(str, config.insertion_layers)),
        "seam taken at layers": ", ".join(map(str, seam.layers)),
        "parameters": f"{total:,} ({added:,} added, {100 * added / total:.2f} %; {trainable:,} trainable)",
        "state": f"{_state_numbers(model):,} numbers per document",
        "FLOPs per token": f"{formula_flops_per_token(model.backbone, config.window, config.overlap):.3g} "
        "(the paper's formula)",
    }


def _state_numbers(model: Any) -> int:
    like = next(model.backbone.parameters())
    return sum(t.numel() for t in model.carrier.empty(1, like))


@torch.no_grad()
def memory_attention(model: Any, input_ids: Tensor) -> dict[int, float]:
    """By layer, the share of attention that tokens of the second window give to what is inserted of the window
    before; the document's first token, where models park their attention, is not counted.

    Measured with eager attention, the only one that shows its weights.
    """
    config = model.config
    base: PreTrainedModel = model.backbone.base_model
    if input_ids.shape[1] <= config.window:
        raise ValueError(
            f"{input_ids.shape[1]} tokens are one window of {config.window}: give more, so that there is a memory"
        )
    shares: dict[int, float] = {}
    with attending_eagerly(base):
        reader = model.reader
        state = model(input_ids[:, : config.window], use_cache=False).state
        stride = config.window - config.overlap
        second = input_ids[:, stride : stride + config.window]
        insertion = reader._insertion(state.memory, state.has_memory, state.open)
        insertion.weights = {}
        with inserting(base, reader.layers, insertion):
            base(input_ids=second)
    for layer, weights in insertion.weights.items():
        if layer in insertion.inserted:
            first = int(model.carrier.space == "attention")
            shares[layer] = weights[..., first : insertion.count].sum(-1).mean().item()
    return shares
