"""Which parameters are trained."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from ..models.window_recurrent import WindowRecurrentForCausalLM
from ..utils.fields import FieldError
from .recipe import TrainingRecipe


@contextmanager
def trainable(model: WindowRecurrentForCausalLM, recipe: TrainingRecipe) -> Iterator[None]:
    """Inside this context only what the recipe names is trained. LoRA adapters are merged at the end."""
    if recipe.train == "carrier" and not any(p.requires_grad for p in model.carrier.parameters()):
        carrier = model.config.carrier
        problem = f"the carrier {carrier!r} has no trainable parameters, so nothing is trained; choose 'all' or 'lora'"
        raise FieldError("train", "carrier", problem)
    before = {parameter: parameter.requires_grad for parameter in model.parameters()}
    if recipe.train != "all":
        model.backbone.requires_grad_(False)
    if recipe.train == "lora":
        add_lora(model, recipe.lora_rank)
    try:
        yield
    finally:
        if recipe.train == "lora":
            merge_lora(model)
        for parameter, flag in before.items():
            parameter.requires_grad_(flag)


def add_lora(model: WindowRecurrentForCausalLM, rank: int) -> None:
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise ModuleNotFoundError("train='lora' needs the package peft: pip install peft") from error
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="fan_in_fan_out")  # peft corrects it by itself
        model.backbone.add_adapter(LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"))


def merge_lora(model: WindowRecurrentForCausalLM) -> None:
    """Adds what the adapters learned to the backbone's own weights, and removes them."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in list(model.backbone.named_modules()):
        if isinstance(module, BaseTunerLayer):
            module.merge()
            parent: nn.Module = model.backbone.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], module.get_base_layer())
    model.backbone._hf_peft_config_loaded = False
    del model.backbone.peft_config
