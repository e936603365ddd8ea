from .configuration_recurrent_bert import RecurrentBertConfig
from .modeling_recurrent_bert import (
    RecurrentBertForMaskedLM,
    RecurrentBertForMultipleChoice,
    RecurrentBertForQuestionAnswering,
    RecurrentBertForSequenceClassification,
    RecurrentBertForTokenClassification,
    RecurrentBertModel,
)

__all__ = [
    "RecurrentBertConfig",
    "RecurrentBertForMaskedLM",
    "RecurrentBertForMultipleChoice",
    "RecurrentBertForQuestionAnswering",
    "RecurrentBertForSequenceClassification",
    "RecurrentBertForTokenClassification",
    "RecurrentBertModel",
]
