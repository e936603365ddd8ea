"""BERT and its recurrent twin by name, for training from scratch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from transformers import BertConfig
from transformers.activations import ACT2FN

from ...utils.fields import FieldError, refuse_others, require_choice, require_number
from .configuration_recurrent_bert import RecurrentBertConfig

KINDS: dict[str, type[BertConfig]] = {"bert": BertConfig, "recurrent-bert": RecurrentBertConfig}
SIZES: dict[str, dict[str, int]] = {
    "base": {},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}
PRESETS = tuple(f"{kind}:{size}" for kind in KINDS for size in SIZES)


def preset(name: str, **changes: Any) -> BertConfig:
    """The configuration of one of PRESETS, with any field changed."""
    if name not in PRESETS:
        raise ValueError(f"there is no preset {name!r}: choose one of {', '.join(PRESETS)}")
    kind, _, size = name.partition(":")
    check_fields(KINDS[kind], changes)
    check_values(changes)
    return KINDS[kind](**SIZES[size] | changes)


def check_fields(config: type, changes: Mapping[str, Any]) -> None:
    """Refuses misspelt fields, which BertConfig would silently accept."""
    refuse_others(config, [field.name for field in fields(config)], changes)


SIZE_FIELDS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
NUMBERS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(SIZE_FIELDS, {"at_least": 1, "whole": True}),
    **dict.fromkeys(DROPOUTS, {"at_least": 0, "below": 1, "or_none": True}),
    **dict.fromkeys(("layer_norm_eps", "initializer_range"), {"above": 0}),
    "chunk_size_feed_forward": {"at_least": 0, "whole": True},
}


def check_values(changes: Mapping[str, Any]) -> None:
    """Refuses values that BertConfig accepts and no model can be made of."""
    changed = SimpleNamespace(**changes)
    for name, value in changes.items():
        if name in NUMBERS:
            require_number(changed, name, **NUMBERS[name])
        elif name in ("is_decoder", "add_cross_attention") and value:
            raise FieldError(name, value, "it must be False: masked language models are encoders")
        elif name == "hidden_act":
            require_choice(changed, name, ACT2FN)
