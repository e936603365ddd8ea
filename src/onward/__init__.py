"""onward: recurrence for Transformers. Importing it makes its models known to transformers' Auto classes."""

from transformers import AutoConfig

from .models.window_recurrent import (
    MODELS,
    UnsupportedBackboneError,
    WindowRecurrenceConfig,
    WindowRecurrentForCausalLM,
    WindowRecurrentForMaskedLM,
    WindowRecurrentForQuestionAnswering,
    WindowRecurrentForSequenceClassification,
    WindowRecurrentForTokenClassification,
    WindowRecurrentModel,
    add_recurrence,
)
from .state import WindowState

__version__ = "0.1.0"

AutoConfig.register(WindowRecurrenceConfig.model_type, WindowRecurrenceConfig)
for _model in MODELS.values():
    _model.auto_class.register(WindowRecurrenceConfig, _model)

__all__ = [
    "UnsupportedBackboneError",
    "WindowRecurrenceConfig",
    "WindowRecurrentForCausalLM",
    "WindowRecurrentForMaskedLM",
    "WindowRecurrentForQuestionAnswering",
    "WindowRecurrentForSequenceClassification",
    "WindowRecurrentForTokenClassification",
    "WindowRecurrentModel",
    "WindowState",
    "add_recurrence",
]
