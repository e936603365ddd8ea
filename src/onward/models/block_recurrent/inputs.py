"""What a call is given: checked, and rid of its padding."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ..checking import refuse_export
from .configuration_block_recurrent import BlockRecurrentConfig
from .state import BlockState, Pairs


def refuse(given: dict[str, Any], model: PreTrainedModel) -> None:
    """Arguments that would be ignored: none must pass in silence."""
    refuse_export(model)
    for name, value in given.items():
        if value is None or value is False or name == "cache_position":
            continue
        if name == "output_attentions":
            raise ValueError("attention is computed in tiles that do not form one map: output_attentions is not there")
        if name == "past_key_values":
            raise ValueError("past_key_values is not there: what is carried is `state`, in the output of every call")
        raise TypeError(f"{type(model).__name__} takes no argument {name!r}")


def check_form(state: BlockState, config: BlockRecurrentConfig) -> None:
    """What a file said of itself may agree with itself, and not with this model."""
    if len(state.layers) != config.num_hidden_layers:
        raise ValueError(f"the state has {len(state.layers)} layers, this model {config.num_hidden_layers}")
    longest, window = max(state.tokens, default=0), config.window
    between = not any(n % window for n in state.tokens)
    heads = (config.num_attention_heads, config.head_dim)

    def check(pairs: Pairs | None, held: int, most: int, what: str) -> None:
        if pairs is None:
            raise ValueError(f"the state has no {what}, which this model reads: it is damaged")
        _, count, columns, width = pairs.keys.shape
        if (count, width) != heads or not held <= columns <= most:
            raise ValueError(
                f"the state's {what} has the shape {tuple(pairs.keys.shape)}; after {longest} tokens this model has "
                f"{heads[0]} heads of {heads[1]}, and {held} to {most} columns"
            )

    for number, layer in enumerate(state.layers, start=1):
        check(layer.recent, min(longest, window), window, f"window of layer {number}")
        if number == config.memory_layer:
            check(layer.memory, min(longest // window * window, config.memory_size), config.memory_size, "memory")
        if number in config.recurrent_layers and longest:
            wanted = (config.num_states, config.hidden_size)
            if layer.cell is None or layer.cell.vectors.shape[1:] != wanted:
                raise ValueError(f"the state has no {wanted[0]} vectors of {wanted[1]} at layer {number}: damaged")
            if layer.cell.opened is None and not between:
                raise ValueError(f"the state stands inside a block that layer {number} has not opened: it is damaged")
            if layer.cell.opened is not None and layer.cell.opened.keys.shape[1::2] != heads:
                raise ValueError(f"the states of layer {number} have other heads than {heads[0]} of {heads[1]}")


def check_embeddings(inputs_embeds: Tensor, width: int) -> Tensor:
    if not isinstance(inputs_embeds, Tensor):
        raise TypeError(f"inputs_embeds must be a tensor, got {type(inputs_embeds).__name__}")
    shape = tuple(inputs_embeds.shape)
    if len(shape) != 3 or shape[2] != width or 0 in shape:
        raise ValueError(f"inputs_embeds must have the shape [batch, length, {width}], neither of them 0, got {shape}")
    return inputs_embeds


def packing(real: Tensor, width: int) -> Tensor:
    """[B, width]: the columns of each row's tokens, first to last; padding follows."""
    return (~real).int().argsort(dim=1, stable=True)[:, :width]


def gathered(x: Tensor, columns: Tensor) -> Tensor:
    return x.gather(1, columns[..., None].expand(-1, -1, x.shape[2]))


def scattered(x: Tensor, columns: Tensor, count: int) -> Tensor:
    """Back where the tokens came from; what stands at padding means nothing."""
    whole = x.new_zeros(x.shape[0], count, x.shape[2])
    return whole.scatter(1, columns[..., None].expand(-1, -1, x.shape[2]), x)
