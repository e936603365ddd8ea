"""Checks that models share: no field misspelt, no value that cannot be, ids that can be read."""

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
from ..utils.fields import refuse_others

OURS = "onward_"
"""What the kinds of our models begin with. Where onward was not imported, transformers says only that it does not know
a kind, and so it names the library at least. Files of version 0.1 have the kinds without it."""

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


def checked_ids(input_ids: Tensor | None, vocab_size: int) -> Tensor:
    """[B, N], as every model reads them."""
    if not isinstance(input_ids, Tensor):
        raise TypeError(f"input_ids must be a tensor of token ids, got {type(input_ids).__name__}")
    if input_ids.dim() != 2:
        raise ValueError(f"input_ids must have the shape [batch, length], got {tuple(input_ids.shape)}")
    if input_ids.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"input_ids must be whole numbers (torch.long), got {input_ids.dtype}")
    if input_ids.numel() == 0:
        raise ValueError(f"there is nothing to read: input_ids has the shape {tuple(input_ids.shape)}")
    refuse_ids_outside(input_ids, vocab_size)
    input_ids = input_ids.long()
    if may_look(input_ids):
        return input_ids
    # Elsewhere looking would stop the device's queue. Marked, they are found by the embedding, and no id, however
    # large, can be taken for another.
    return input_ids.masked_fill((input_ids < 0) | (input_ids >= vocab_size), -1)


def refuse_ids_outside(ids: Tensor, size: int, name: str = "input_ids", what: str = "the vocabulary {} ids") -> None:
    if not may_look(ids) or not ids.numel():  # elsewhere the device itself complains
        return
    low, high = (int(value) for value in torch.aminmax(ids))
    if low < 0 or high >= size:
        raise ValueError(
            f"{name} has the id {low if low < 0 else high}, and {what.format(size)}, from 0: use the tokenizer that "
            "the model was made for, or a config with a larger vocab_size"
        )


def checked_mask(attention_mask: Tensor, shape: Sequence[int], of: str = "input_ids") -> Tensor:
    """[B, N] bool: which tokens are real."""
    if not isinstance(attention_mask, Tensor):
        raise TypeError(f"attention_mask must be a tensor of 1 and 0, got {type(attention_mask).__name__}")
    if tuple(attention_mask.shape) != tuple(shape):
        raise ValueError(
            f"attention_mask has the shape {tuple(attention_mask.shape)}, {of} {tuple(shape)}: they must agree"
        )
    real = attention_mask.bool()
    if attention_mask.dtype != torch.bool and not torch.compiler.is_compiling():
        others = attention_mask[attention_mask != real]
        if len(others):
            raise ValueError(
                f"attention_mask has {others[0].item()}: it must be 1 for each token, and 0 for padding; masks that "
                "are added to scores are not there"
            )
    return real


def check_labels(labels: Tensor, shape: Sequence[int], vocab_size: int, of: str = "input_ids") -> None:
    """Of a language model: the ids of tokens, as many as there are tokens."""
    if not isinstance(labels, Tensor):
        raise TypeError(f"labels must be a tensor of token ids, got {type(labels).__name__}")
    if labels.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"labels must be whole numbers (torch.long), got {labels.dtype}")
    if tuple(labels.shape) != tuple(shape):
        raise ValueError(f"labels have the shape {tuple(labels.shape)}, {of} {tuple(shape)}: they must agree")
    refuse_labels_outside(labels, vocab_size)


def kept_columns(logits_to_keep: int | Tensor, length: int) -> slice | Tensor:
    """Which tokens' logits are wanted: the last so many, 0 for all, or those in a list of columns."""
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
        raise ValueError(f"logits_to_keep={logits_to_keep}: it is how many last logits are kept, or 0 for all")
    return slice(-logits_to_keep, None)


def refuse_export(model: Any) -> None:
    """How many windows or blocks there are hangs on the length of a text, and on where a state stands in it."""
    if torch.compiler.is_exporting():
        raise NotImplementedError(
            f"torch.export of {type(model).__name__} is not there: it reads text of any length in a loop that hangs on "
            "its state; call the model itself, or use torch.compile"
        )


def own_fields(config: type) -> list[str]:
    """The fields that a configuration declares itself, beside those that all of transformers' have."""
    inherited = {f.name for f in fields(PreTrainedConfig)}
    return [f.name for f in fields(config) if f.name not in inherited]


def _is_known(config: type, name: str) -> bool:
    declared = {f.name for f in fields(config)} | _WRITTEN_BY_TRANSFORMERS
    return name in declared or name in GenerationConfig._get_default_generation_params() or name.startswith("_")


def _refuse_nearly_ours(config: type, own: Collection[str], given: Mapping[str, Any]) -> None:
    """Words that are not for us may pass through here, but not those that were plainly meant for us."""
    for name in given:
        if difflib.get_close_matches(name, own, n=1, cutoff=0.8):
            refuse_others(config, own, {name: given[name]})


class CheckedConfig:
    """Beside PreTrainedConfig, which lets misspelt fields pass in silence.

    A person who makes a configuration is told of a field that it does not have. A file may hold more than we know:
    what a user noted on a configuration, or what transformers writes there.
    """

    def own_fields(self) -> list[str]:
        return own_fields(type(self))

    @classmethod
    def refuse_unknown(cls, given: Mapping[str, Any]) -> None:
        refuse_others(cls, own_fields(cls), {name: given[name] for name in given if not _is_known(cls, name)})

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """What a file holds; changes of declared fields are checked together with it."""
        returns_unused = kwargs.pop("return_unused_kwargs", False)
        own = own_fields(cls)
        changes = {k: kwargs.pop(k) for k in list(kwargs) if k in own and not isinstance(kwargs[k], dict)}
        added = {k: kwargs.pop(k, value) for k, value in config_dict.items() if not _is_known(cls, k)}
        known = {k: value for k, value in config_dict.items() if k not in added and k != "model_type"}
        # We write every field. A file that lacks one, and has one that is nearly called so, was changed by hand.
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
