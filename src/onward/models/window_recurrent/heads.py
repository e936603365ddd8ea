"""A backbone's own head on hidden states that were computed in windows."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ModelOutput


class _Answer(nn.Module):
    """Stands for a base whose output is known already, whatever its input. Some heads call a part of the base (OPT's
    decoder) instead of the base itself."""

    def __init__(self, base: nn.Module, output: ModelOutput):
        super().__init__()
        self.__dict__["_base"], self._output = base, output  # not a submodule: its parameters are not this module's

    def forward(self, *args: Any, **kwargs: Any) -> ModelOutput:
        return self._output

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__dict__["_base"], name)
        return _Answer(found, self._output) if isinstance(found, PreTrainedModel) else found


def head_on(model: PreTrainedModel, output: ModelOutput, **given: Any) -> Any:
    """What a model's head makes of the `output` of its base. The model itself stays as it is: the base is replaced in
    a copy that shares everything else with it."""
    head = copy.copy(model)
    head.__dict__.pop("forward", None)  # accelerate's is bound to the model, and would run its base
    head._modules = {**model._modules, model.base_model_prefix: _Answer(model.base_model, output)}
    return head(return_dict=True, **given)


def as_from_base(kind: type[ModelOutput], **values: Any) -> ModelOutput:
    """An output of the base's own kind, whose other fields heads may ask for: they are None."""
    known = kind.__dataclass_fields__  # type: ignore[attr-defined]
    return kind(**{name: value for name, value in values.items() if name in known})


def refuse_router_loss(config: PreTrainedConfig) -> None:
    """A router's loss balances experts over all tokens of a batch, and no window has them all."""
    if getattr(config.get_text_config(), "output_router_logits", False):
        raise ValueError(
            "the backbone's configuration asks for the auxiliary loss of its router (output_router_logits=True), which "
            "is not supported over windows: set model.config.output_router_logits = False before adding recurrence, or "
            "model.backbone.config.output_router_logits = False"
        )
