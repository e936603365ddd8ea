"""onward: recurrence for Transformers. Importing it registers its models with transformers' Auto classes."""

from typing import Any

from transformers import AutoConfig, AutoTokenizer, BertTokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from .models.block_recurrent import BlockRecurrentConfig, BlockRecurrentForCausalLM, BlockRecurrentModel, BlockState
from .models.checking import MODEL_TYPE_PREFIX
from .models.recurrent_bert import (
    RecurrentBertConfig,
    RecurrentBertForMaskedLM,
    RecurrentBertForMultipleChoice,
    RecurrentBertForQuestionAnswering,
    RecurrentBertForSequenceClassification,
    RecurrentBertForTokenClassification,
    RecurrentBertModel,
)
from .models.recurrent_bert.modeling_recurrent_bert import MODELS as _BERTS
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
from .models.window_recurrent.state import WindowState
from .utils.fields import FieldError
from .utils.version import __version__ as __version__

for _config in (WindowRecurrenceConfig, BlockRecurrentConfig, RecurrentBertConfig):
    AutoConfig.register(_config.model_type, _config)
    CONFIG_MAPPING.register(_config.model_type.removeprefix(MODEL_TYPE_PREFIX), _config)  # files of version 0.1
_models: tuple[Any, ...] = (*MODELS.values(), *_BERTS, BlockRecurrentModel, BlockRecurrentForCausalLM)
for _model in _models:
    _model.auto_class.register(_model.config_class, _model)
AutoTokenizer.register(RecurrentBertConfig, BertTokenizer)
for _causal in (WindowRecurrentForCausalLM, BlockRecurrentForCausalLM):
    # Trainer's label smoothing looks up class names here to shift labels.
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[_causal.config_class.model_type] = _causal.__name__

__all__ = [
    "BlockRecurrentConfig",
    "BlockRecurrentForCausalLM",
    "BlockRecurrentModel",
    "BlockState",
    "FieldError",
    "RecurrentBertConfig",
    "RecurrentBertForMaskedLM",
    "RecurrentBertForMultipleChoice",
    "RecurrentBertForQuestionAnswering",
    "RecurrentBertForSequenceClassification",
    "RecurrentBertForTokenClassification",
    "RecurrentBertModel",
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
