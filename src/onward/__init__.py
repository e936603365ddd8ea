"""onward: recurrence for Transformers. Importing it makes its models known to transformers' Auto classes."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer, BertTokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from .models.block_recurrent import BlockRecurrentConfig, BlockRecurrentForCausalLM, BlockRecurrentModel, BlockState
from .models.checking import OURS
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
from .models.state import WindowState
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
from .utils.version import __version__ as __version__

for _config in (WindowRecurrenceConfig, BlockRecurrentConfig, RecurrentBertConfig):
    AutoConfig.register(_config.model_type, _config)
    CONFIG_MAPPING.register(_config.model_type.removeprefix(OURS), _config)  # files of version 0.1
for _model in MODELS.values():
    _model.auto_class.register(WindowRecurrenceConfig, _model)
for _bert in _BERTS:
    _bert.auto_class.register(RecurrentBertConfig, _bert)
AutoModel.register(BlockRecurrentConfig, BlockRecurrentModel)
AutoModelForCausalLM.register(BlockRecurrentConfig, BlockRecurrentForCausalLM)
AutoTokenizer.register(RecurrentBertConfig, BertTokenizer)
# Trainer with label smoothing looks for the name of the class here, to know that labels are those of the next token.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[WindowRecurrenceConfig.model_type] = WindowRecurrentForCausalLM.__name__
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[BlockRecurrentConfig.model_type] = BlockRecurrentForCausalLM.__name__

__all__ = [
    "BlockRecurrentConfig",
    "BlockRecurrentForCausalLM",
    "BlockRecurrentModel",
    "BlockState",
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
