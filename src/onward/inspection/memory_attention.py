"""How much attention a window-recurrent model gives to its memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..models.window_recurrent.seam import watching_attention
from ..models.window_recurrent.slots import grouped


@torch.no_grad()
def memory_attention(model: Any, input_ids: Tensor) -> dict[int, float]:
    """By layer, the share of attention that tokens of the second window give to the first window's memory.

    The document's first tokens, which models attend to when nothing else fits, are not counted. Measured with eager
    attention, the only implementation that returns its weights. input_ids: [B, N].
    """
    window = model.config.window
    if input_ids.shape[1] <= window:
        raise ValueError(
            f"{input_ids.shape[1]} tokens are one window of {window}: give more, so that there is a memory"
        )
    state = model(input_ids[:, :window], use_cache=False).state
    second = input_ids[:, window:][:, : window - state.open.fill[0]]
    with watching_attention() as watched:
        model(second, state=state, use_cache=False)
    first = _first_tokens(model.carrier, state.memory)
    shares = {}
    for layer, weights in watched.items():  # [B, H, w, V + w]
        memory = weights.shape[-1] - weights.shape[-2]
        if memory:
            shares[layer] = weights[..., first:memory].sum(-1).mean().item()
    return shares


def _first_tokens(carrier: Any, memory: tuple[Tensor, ...]) -> int:
    """How many columns of a memory are not counted: slots that are not used yet, and the document's first tokens."""
    if carrier.takes_slots:
        return int((~grouped(memory)[0].used[0]).sum()) + carrier.sinks
    return int(carrier.space == "attention")
