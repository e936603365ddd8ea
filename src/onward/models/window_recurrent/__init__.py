"""Window recurrence: a memory for pretrained backbones, carried from window to window."""

from .adding import MODELS, add_recurrence
from .carriers import CARRIERS, Carrier, SlotCarrier, VectorCarrier, carrier
from .configuration_window_recurrent import WindowRecurrenceConfig
from .language_models import WindowRecurrentForCausalLM, WindowRecurrentForMaskedLM
from .lesson import Lesson
from .modeling_window_recurrent import (
    Embeddings,
    RecurrentOutput,
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
    "Lesson",
    "RecurrentOutput",
    "SlotCarrier",
    "UnsupportedBackboneError",
    "VectorCarrier",
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
