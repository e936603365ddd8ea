"""Checks that models share: no field misspelt, no value that cannot be, ids that can be read."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.generation import GenerationConfig

# Names that transformers itself writes into a saved configuration, beside its declared fields.
_WRITTEN_BY_TRANSFORMERS = {
    "model_type",
    "name_or_path",
    "_name_or_path",
    "_commit_hash",
    "attn_implementation",
    "experts_implementation",
    "output_attentions",
    "torch_dtype",
    "num_labels",
    "per_layer_config",
}


def checked_ids(input_ids: Tensor | None) -> Tensor:
    """[B, N], as every model reads them."""
    if not isinstance(input_ids, Tensor):
        raise TypeError(f"input_ids must be a tensor of token ids, got {type(input_ids).__name__}")
    if input_ids.dim() != 2:
        raise ValueError(f"input_ids must have the shape [batch, length], got {tuple(input_ids.shape)}")
    if input_ids.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"input_ids must be whole numbers (torch.long), got {input_ids.dtype}")
    if input_ids.numel() == 0:
        raise ValueError(f"there is nothing to read: input_ids has the shape {tuple(input_ids.shape)}")
    return input_ids.long()


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def refuse_others(config: type, known: Collection[str], given: Mapping[str, Any]) -> None:
    """Refuses given fields that are not known, with what may have been meant."""
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
            raise ValueError(f"{config.__name__} has no field {name!r} (given {given[name]!r}): {hint}")


class CheckedConfig:
    """Beside PreTrainedConfig, which lets misspelt fields pass in silence."""

    def own_fields(self) -> list[str]:
        inherited = {f.name for f in fields(PreTrainedConfig)}
        return [f.name for f in fields(self) if f.name not in inherited]  # type: ignore[arg-type]

    def refuse_unknown(self, given: dict[str, Any]) -> None:
        known = _WRITTEN_BY_TRANSFORMERS | set(GenerationConfig._get_default_generation_params())
        unknown = {k: value for k, value in given.items() if k not in known and not k.startswith("_")}
        refuse_others(type(self), self.own_fields(), unknown)

    def require_whole(self, name: str, or_none: bool = False) -> None:
        value = getattr(self, name)
        if or_none and value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")

    def require_choice(self, name: str, allowed: Collection[Any]) -> None:
        value = getattr(self, name)
        if value not in allowed:
            raise ValueError(f"{name}={value!r} is not known: choose one of {', '.join(map(str, sorted(allowed)))}")
