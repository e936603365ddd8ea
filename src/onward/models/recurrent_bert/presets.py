"""BERT and its recurrent twin by name, to be trained from their first weights on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from transformers import BertConfig
from transformers.activations import ACT2FN

from ...utils.fields import is_number, refuse_others
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
    check_values(changes)
    return KINDS[kind](**SIZES[size] | changes)


def check_fields(config: type, changes: Mapping[str, Any]) -> None:
    """Refuses misspelt ones, which BertConfig would take in silence."""
    refuse_others(config, [field.name for field in fields(config)], changes)


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


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
RULES: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (SIZE_FIELDS, _whole(1), "a whole number of at least 1"),
    (("chunk_size_feed_forward",), _whole(0), "a whole number of at least 0"),
    (("layer_norm_eps", "initializer_range"), lambda value: is_number(value) and value > 0, "a number above 0"),
    (
        DROPOUTS,
        lambda value: value is None or (is_number(value) and 0 <= value < 1),
        "a share from 0 up to, but not, 1",
    ),
    (("is_decoder", "add_cross_attention"), lambda value: not value, "False: masked language models are encoders"),
    (("hidden_act",), lambda value: value in ACT2FN, f"one of {', '.join(sorted(ACT2FN))}"),
)
"""Fields, what they may be, and that in words."""


def check_values(changes: Mapping[str, Any]) -> None:
    """Refuses what BertConfig takes, and no model can be made of."""
    for name, value in changes.items():
        for fields_of_rule, fits, wanted in RULES:
            if name in fields_of_rule and not fits(value):
                raise ValueError(f"{name} must be {wanted}, got {value!r}")
