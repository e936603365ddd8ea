"""Whether a model can continue from a state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..checking import refuse_ids_outside
from ..state import WindowState
from ..state import check_state as check_carried_state


def check_state(state: WindowState, ids: Tensor, reader: Any) -> None:
    check_carried_state(state, WindowState, reader.name, ids.shape[0])
    if state.weights is not reader.origin:
        reader.origin.check(state.weights)
        _check_form(state, ids, reader)
    own = next(reader.base.parameters()).dtype
    for tensor in state.memory:
        if tensor.is_floating_point() and tensor.dtype != own:
            raise ValueError(f"the state's memory is {tensor.dtype}, the model {own}: move it with state.to({own})")


def _check_form(state: WindowState, ids: Tensor, reader: Any) -> None:
    """Refuses a state whose tensors fit each other, but not this model."""
    opened, carrier, config = state.open, reader.carrier, reader.base.config.get_text_config()
    parts = [("memory", reader.fresh(ids).memory, state.memory)]
    if opened.summary is not None:
        parts.append(("summary", _blank_summary(state, reader, config.hidden_size), opened.summary))
    for name, ours, theirs in parts:
        wanted, given = ([tuple(t.shape) for t in tensors] for tensors in (ours, theirs))
        if given != wanted:
            raise ValueError(f"the state's {name} has the shapes {given}, and this model's {wanted}: it is damaged")
    for layer, (key, value) in (opened.inserted or {}).items():
        if any(t.dim() != 4 or t.shape[2] != carrier.count for t in (key, value)):
            raise ValueError(f"the state has other vectors at layer {layer} than {carrier.count}: it is damaged")
    for count in opened.fill:
        if count > reader.window:
            raise ValueError(f"the state's window holds {count} tokens, and this model's {reader.window}")
    if opened.cache is not None and len(opened.cache) != len(reader.layers):
        raise ValueError(f"the state's cache has {len(opened.cache)} layers, this model {len(reader.layers)}")
    for held in (opened.ids, state.prefix):
        if held is not None:
            refuse_ids_outside(held if held.dim() == 2 else held[..., 0], config.vocab_size, "the state")


@torch.no_grad()
def _blank_summary(state: WindowState, reader: Any, width: int) -> tuple[Tensor, ...]:
    """The carrier's summary of one token, for its shapes."""
    token = next(reader.base.parameters()).new_zeros(state.batch_size, 1, width)
    place = torch.zeros(state.batch_size, 1, dtype=torch.long, device=token.device)
    hidden = [token] * (len(reader.layers) + (reader.carrier.space == "layer"))
    return reader.carrier.summarise(hidden, place == 0, place)
