"""`add_recurrence`: gives recurrence to a live backbone."""

from __future__ import annotations

import copy
from typing import Any, cast

from torch import nn
from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto

from ...utils.fields import FieldError
from .configuration_window_recurrent import WindowRecurrenceConfig
from .heads import refuse_router_loss
from .language_models import WindowRecurrentForCausalLM, WindowRecurrentForMaskedLM
from .modeling_window_recurrent import (
    WindowRecurrentForQuestionAnswering,
    WindowRecurrentForSequenceClassification,
    WindowRecurrentForTokenClassification,
    WindowRecurrentModel,
)
from .probe import UnsupportedBackboneError, checked_layers, positions_of, probe
from .seam import PREFIX

MODELS: dict[str, type[WindowRecurrentModel]] = {
    model.head: model
    for model in (
        WindowRecurrentForCausalLM,
        WindowRecurrentForMaskedLM,
        WindowRecurrentForTokenClassification,
        WindowRecurrentForQuestionAnswering,
        WindowRecurrentForSequenceClassification,
        WindowRecurrentModel,
    )
}

# transformers' lists of architectures, by head.
_HEADS = {
    "causal-lm": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked-lm": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "question-answering": modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
    "sequence-classification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "token-classification": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
}


def head_of(model: PreTrainedModel) -> str:
    """The head of a live model."""
    if model.base_model is model:
        return "model"
    name = type(model).__name__
    for head, architectures in _HEADS.items():
        for listed in architectures.values():
            if name in (listed if isinstance(listed, (tuple, list)) else (listed,)):
                return head
    raise UnsupportedBackboneError(
        f"{name} has a head that recurrence does not support: load the model as one of AutoModel, "
        "AutoModelForCausalLM, ...MaskedLM, ...QuestionAnswering, ...SequenceClassification, ...TokenClassification"
    )


def add_recurrence(model: PreTrainedModel, config: WindowRecurrenceConfig | None = None, **fields: Any) -> Any:
    """Gives a pretrained model a memory that is carried from window to window.

    The model itself becomes the `backbone` of the result, with its weights, head, device and dtype; nothing is copied.
    Instead of a configuration, its fields can be given by name.
    """
    if isinstance(model, WindowRecurrentModel):
        raise TypeError("this model has recurrence already; add another to its .backbone")
    if not isinstance(model, PreTrainedModel):
        if isinstance(model, str):
            loading = f"AutoModelForCausalLM.from_pretrained({model!r})"
            raise TypeError(f"add_recurrence takes a live transformers model, got str: load it first with {loading}")
        hint = " (for LoRA, use model.add_adapter(lora_config) of transformers)" if isinstance(model, nn.Module) else ""
        raise TypeError(f"add_recurrence takes a live transformers model, got {type(model).__name__}{hint}")
    if config is not None and not isinstance(config, WindowRecurrenceConfig):
        raise TypeError(f"the configuration must be a WindowRecurrenceConfig, got {type(config).__name__}")
    if config is not None and fields:
        raise TypeError("give either a configuration or its fields, not both")
    config = WindowRecurrenceConfig(**fields) if config is None else copy.deepcopy(config)
    named = [name for name in ("bos_token_id", "eos_token_id", "pad_token_id") if name in config.__dict__]
    config.head = head_of(model)
    checked_layers(model)
    config.backbone = model.config
    config.backbone_name = config.backbone_name or getattr(model.config, "_name_or_path", "") or None
    _check_context(model, config)
    found = probe(model, config)
    config.causal = found.causal
    config.slot_shapes = found.shapes
    if config.head in ("causal-lm", "masked-lm"):
        refuse_router_loss(model.config)
    if config.head == "causal-lm" and not config.causal:
        raise ValueError(
            f"{type(model).__name__} is not a causal LM: tokens see those after them (is_decoder is not set)"
        )
    config._attn_implementation_internal = model.config._attn_implementation.removeprefix(PREFIX)
    config.dtype = model.dtype
    for name in ("id2label", "label2id", "problem_type"):
        setattr(config, name, getattr(model.config, name, None))
    recurrent = MODELS[config.head](config, model)
    like = next(model.parameters())
    recurrent.carrier.to(like.device, like.dtype)
    recurrent.train(model.training)
    if model.can_generate() and recurrent.can_generate():
        recurrent.generation_config = copy.deepcopy(model.generation_config)
        for name in named:
            setattr(recurrent.generation_config, name, getattr(config, name))
    return recurrent


def _check_context(model: PreTrainedModel, config: WindowRecurrenceConfig) -> None:
    longest = positions_of(cast(PreTrainedModel, model.base_model))
    if longest is not None and config.window > longest:
        problem = f"{type(model).__name__} has {longest} positions; choose a window of at most {longest}"
        raise FieldError("window", config.window, problem)
