"""Low-rank adapters (LoRA) on a backbone: added for training, merged into its weights at the end."""

from __future__ import annotations

import warnings

from torch import nn
from transformers import PreTrainedModel

from ..models.window_recurrent import WindowRecurrentForCausalLM


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

    for module in model.backbone.modules():
        if isinstance(module, BaseTunerLayer):
            module.merge()
    remove_lora(model.backbone)


def remove_lora(backbone: PreTrainedModel) -> None:
    """Leaves a backbone's own layers in the place of those with adapters."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in list(backbone.named_modules()):
        if isinstance(module, BaseTunerLayer):
            parent: nn.Module = backbone.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], module.get_base_layer())
    backbone._hf_peft_config_loaded = False
    del backbone.peft_config
