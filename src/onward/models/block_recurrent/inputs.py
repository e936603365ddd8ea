"""What a call is given: checked, and rid of its padding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..checking import checked_ids


def refuse(given: dict[str, Any], model: PreTrainedModel) -> None:
    """Arguments that would be ignored: none must pass in silence."""
    for name, value in given.items():
        if value is None or value is False or name == "cache_position":
            continue
        if name == "output_attentions":
            raise ValueError("attention is computed in tiles that do not form one map: output_attentions is not there")
        if name == "past_key_values":
            raise ValueError("past_key_values is not there: what is carried is `state`, in the output of every call")
        raise TypeError(f"{type(model).__name__} takes no argument {name!r}")


def check_ids(input_ids: Tensor | None, vocab_size: int) -> Tensor:
    input_ids = checked_ids(input_ids)
    if input_ids.device.type == "cpu":  # elsewhere looking would stop the queue, and the device itself complains
        low, high = torch.aminmax(input_ids)
        if low < 0 or high >= vocab_size:
            wrong = int(low) if low < 0 else int(high)
            raise ValueError(
                f"input_ids has the id {wrong}, and the vocabulary {vocab_size} ids, from 0: use the tokenizer that "
                "the model was made for, or a config with a larger vocab_size"
            )
    return input_ids


def check_embeddings(inputs_embeds: Tensor, width: int) -> Tensor:
    if not isinstance(inputs_embeds, Tensor):
        raise TypeError(f"inputs_embeds must be a tensor, got {type(inputs_embeds).__name__}")
    shape = tuple(inputs_embeds.shape)
    if len(shape) != 3 or shape[2] != width or 0 in shape:
        raise ValueError(f"inputs_embeds must have the shape [batch, length, {width}], neither of them 0, got {shape}")
    return inputs_embeds


def check_mask(attention_mask: Tensor, shape: tuple[int, int]) -> Tensor:
    """[B, N] bool: which tokens are real."""
    if not isinstance(attention_mask, Tensor):
        raise TypeError(f"attention_mask must be a tensor of 1 and 0, got {type(attention_mask).__name__}")
    if attention_mask.shape != shape:
        raise ValueError(
            f"attention_mask has the shape {tuple(attention_mask.shape)}, the input {shape}: they must agree"
        )
    return attention_mask.bool()


def check_labels(labels: Tensor, shape: torch.Size) -> None:
    if not isinstance(labels, Tensor):
        raise TypeError(f"labels must be a tensor of token ids, got {type(labels).__name__}")
    if labels.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"labels must be whole numbers (torch.long), got {labels.dtype}")
    if labels.shape != shape:
        raise ValueError(f"labels have the shape {tuple(labels.shape)}, the input {tuple(shape)}: they must agree")


def packing(real: Tensor, width: int) -> Tensor:
    """[B, width]: the columns of each row's tokens, first to last; padding follows."""
    return (~real).int().argsort(dim=1, stable=True)[:, :width]


def gathered(x: Tensor, columns: Tensor) -> Tensor:
    return x.gather(1, columns[..., None].expand(-1, -1, x.shape[2]))


def scattered(x: Tensor, columns: Tensor, count: int) -> Tensor:
    """Back where the tokens came from; what stands at padding means nothing."""
    whole = x.new_zeros(x.shape[0], count, x.shape[2])
    return whole.scatter(1, columns[..., None].expand(-1, -1, x.shape[2]), x)
