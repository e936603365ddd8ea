"""Checks that the three systems share: of the tensors of a call, and of the fields of a configuration."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.generation import GenerationConfig

from ..ops.language_loss import refuse_labels_outside
from ..ops.modes import may_look
from ..utils.fields import FieldError, refuse_others

MODEL_TYPE_PREFIX = "onward_"
"""The prefix of our model types. It names the library where onward is not imported, and transformers only reports an
unknown model type. Files of version 0.1 lack the prefix."""

# Names that transformers writes into a saved configuration besides its declared fields.
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


def checked_ids(input_ids: Tensor | None, vocab_size: int) -> Tensor:
    """[B, N], as int64."""
    if not isinstance(input_ids, Tensor):
        raise TypeError(f"input_ids must be a tensor of token ids, got {type(input_ids).__name__}")
    if input_ids.dim() != 2:
        raise ValueError(f"input_ids must have the shape [batch, length], got {tuple(input_ids.shape)}")
    if input_ids.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"input_ids must be whole numbers (torch.long), got {input_ids.dtype}")
    if input_ids.numel() == 0:
        raise ValueError(f"input_ids is empty: it has the shape {tuple(input_ids.shape)}")
    refuse_ids_outside(input_ids, vocab_size)
    input_ids = input_ids.long()
    if may_look(input_ids):
        return input_ids
    # Values on other devices are not checked here, since looking stops the queue. Replaced by -1, wrong ids are
    # reported by the embedding.
    return input_ids.masked_fill((input_ids < 0) | (input_ids >= vocab_size), -1)


def refuse_ids_outside(ids: Tensor, size: int, name: str = "input_ids", what: str = "the vocabulary {} ids") -> None:
    if not may_look(ids) or not ids.numel():  # other devices raise an error of their own
        return
    low, high = (int(value) for value in torch.aminmax(ids))
    if low < 0 or high >= size:
        raise ValueError(
            f"{name} has the id {low if low < 0 else high}, and {what.format(size)}, from 0: use the tokenizer that "
            "the model was made for, or a config with a larger vocab_size"
        )


def checked_mask(attention_mask: Tensor, shape: Sequence[int]) -> Tensor:
    """[B, N] bool: which tokens are real."""
    if not isinstance(attention_mask, Tensor):
        raise TypeError(f"attention_mask must be a tensor of 1 and 0, got {type(attention_mask).__name__}")
    if tuple(attention_mask.shape) != tuple(shape):
        raise ValueError(
            f"attention_mask has the shape {tuple(attention_mask.shape)}, the input {tuple(shape)}: they must agree"
        )
    real = attention_mask.bool()
    if attention_mask.dtype != torch.bool and not torch.compiler.is_compiling():
        others = attention_mask[attention_mask != real]
        if len(others):
            raise ValueError(
                f"attention_mask has {others[0].item()}: it must be 1 for each token, and 0 for padding; masks that "
                "are added to scores are not supported"
            )
    return real


def check_labels(labels: Tensor, shape: Sequence[int], vocab_size: int) -> None:
    """The labels of a language model: token ids, one for each token."""
    if not isinstance(labels, Tensor):
        raise TypeError(f"labels must be a tensor of token ids, got {type(labels).__name__}")
    if labels.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"labels must be whole numbers (torch.long), got {labels.dtype}")
    if tuple(labels.shape) != tuple(shape):
        raise ValueError(f"labels have the shape {tuple(labels.shape)}, the input {tuple(shape)}: they must agree")
    refuse_labels_outside(labels, vocab_size)


def kept_columns(logits_to_keep: int | Tensor, length: int) -> slice | Tensor:
    """The tokens whose logits are kept: the last `logits_to_keep`, all for 0, or the listed columns."""
    if isinstance(logits_to_keep, Tensor):
        if logits_to_keep.dim() != 1 or logits_to_keep.is_floating_point() or logits_to_keep.dtype == torch.bool:
            raise TypeError(
                f"logits_to_keep must be a number or a list of columns (torch.long), got {logits_to_keep.dtype} "
                f"{tuple(logits_to_keep.shape)}"
            )
        if may_look(logits_to_keep) and logits_to_keep.numel():
            low, high = (int(value) for value in torch.aminmax(logits_to_keep))
            if low < -length or high >= length:
                raise ValueError(f"logits_to_keep has the column {low if low < -length else high} of {length}")
        return logits_to_keep
    if isinstance(logits_to_keep, bool) or not isinstance(logits_to_keep, int):
        raise TypeError(f"logits_to_keep must be a number or a list of columns, got {logits_to_keep!r}")
    if logits_to_keep < 0:
        raise FieldError("logits_to_keep", logits_to_keep, "it must be the number of last logits, or 0 for all")
    return slice(-logits_to_keep, None)


def _is_known(config: type, name: str) -> bool:
    declared = {f.name for f in fields(config)} | _WRITTEN_BY_TRANSFORMERS
    return name in declared or name in GenerationConfig._get_default_generation_params() or name.startswith("_")


def _refuse_nearly_ours(config: type, own: Collection[str], given: Mapping[str, Any]) -> None:
    """Other arguments pass through here; those that look like a misspelt field of ours do not."""
    for name in given:
        if difflib.get_close_matches(name, own, n=1, cutoff=0.8):
            refuse_others(config, own, {name: given[name]})


class CheckedConfig:
    """Goes before PreTrainedConfig, which silently accepts misspelt fields.

    Unknown fields are refused in a configuration that a person makes. A saved one may hold more than our fields: notes
    of a user, or names that transformers writes.
    """

    @classmethod
    def own_fields(cls) -> list[str]:
        """The fields that a configuration declares itself, without those that all of transformers' have."""
        inherited = {f.name for f in fields(PreTrainedConfig)}
        return [f.name for f in fields(cast(Any, cls)) if f.name not in inherited]

    @classmethod
    def refuse_unknown(cls, given: Mapping[str, Any]) -> None:
        refuse_others(cls, cls.own_fields(), {name: given[name] for name in given if not _is_known(cls, name)})

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """The configuration of a file; changes of declared fields are checked together with it."""
        returns_unused = kwargs.pop("return_unused_kwargs", False)
        own = cls.own_fields()
        changes = {k: kwargs.pop(k) for k in list(kwargs) if k in own and not isinstance(kwargs[k], dict)}
        added = {k: kwargs.pop(k, value) for k, value in config_dict.items() if not _is_known(cls, k)}
        known = {k: value for k, value in config_dict.items() if k not in added and k != "model_type"}
        # We save every field. A file that lacks one and has one with a similar name was edited by hand.
        _refuse_nearly_ours(cls, [name for name in own if name not in known], added)
        from_dict = cast(Any, super()).from_dict
        config, unused = from_dict({**known, **changes}, return_unused_kwargs=True, **kwargs)
        for name, value in added.items():
            setattr(config, name, value)
        if returns_unused:
            return config, unused
        _refuse_nearly_ours(cls, own, unused)
        return config

    @classmethod
    def from_json_file(cls, json_file: str | os.PathLike) -> Any:
        return cls.from_dict(cast(Any, cls)._dict_from_json_file(json_file))
