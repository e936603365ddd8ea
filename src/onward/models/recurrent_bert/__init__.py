"""Recurrent BERT: every feed-forward block replaced by a light recurrence, at equal parameter count."""

from .configuration_recurrent_bert import RecurrentBertConfig
from .modeling_recurrent_bert import (
    RecurrentBertForMaskedLM,
    RecurrentBertForMultipleChoice,
    RecurrentBertForQuestionAnswering,
    RecurrentBertForSequenceClassification,
    RecurrentBertForTokenClassification,
    RecurrentBertModel,
)
from .presets import PRESETS, preset

__all__ = [
    "PRESETS",
    "RecurrentBertConfig",
    "RecurrentBertForMaskedLM",
    "RecurrentBertForMultipleChoice",
    "RecurrentBertForQuestionAnswering",
    "RecurrentBertForSequenceClassification",
    "RecurrentBertForTokenClassification",
    "RecurrentBertModel",
    "preset",
]
