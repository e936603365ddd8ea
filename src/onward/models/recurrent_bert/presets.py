"""BERT and its recurrent twin by name, to be trained from their first weights on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from transformers import BertConfig

from ..checking import refuse_others
from .configuration_recurrent_bert import RecurrentBertConfig

KINDS: dict[str, type[BertConfig]] = {"bert": BertConfig, "recurrent-bert": RecurrentBertConfig}
SIZES: dict[str, dict[str, int]] = {
    "base": {},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}
PRESETS = tuple(f"{kind}:{size}" for kind in KINDS for size in SIZES)


def preset(name: str, **changes: Any) -> BertConfig:
    """The configuration of "bert:base", "bert:large", "recurrent-bert:base" or "recurrent-bert:large", with any field
    changed."""
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}: choose one of {', '.join(PRESETS)}")
    kind, _, size = name.partition(":")
    check_fields(KINDS[kind], changes)
    return KINDS[kind](**SIZES[size] | changes)


def check_fields(config: type, changes: Mapping[str, Any]) -> None:
    """Refuses misspelt ones, which BertConfig would take in silence."""
    refuse_others(config, [field.name for field in fields(config)], changes)
