from .adding import add_recurrence
from .carriers import CARRIERS, Carrier, carrier
from .configuration_window_recurrent import WindowRecurrenceConfig
from .modeling_window_recurrent import (
    MODELS,
    Embeddings,
    RecurrentOutput,
    WindowRecurrentForCausalLM,
    WindowRecurrentForMaskedLM,
    WindowRecurrentForQuestionAnswering,
    WindowRecurrentForSequenceClassification,
    WindowRecurrentForTokenClassification,
    WindowRecurrentModel,
)
from .probe import UnsupportedBackboneError

__all__ = [
    "CARRIERS",
    "MODELS",
    "Carrier",
    "Embeddings",
    "RecurrentOutput",
    "UnsupportedBackboneError",
    "WindowRecurrenceConfig",
    "WindowRecurrentForCausalLM",
    "WindowRecurrentForMaskedLM",
    "WindowRecurrentForQuestionAnswering",
    "WindowRecurrentForSequenceClassification",
    "WindowRecurrentForTokenClassification",
    "WindowRecurrentModel",
    "add_recurrence",
    "carrier",
]
