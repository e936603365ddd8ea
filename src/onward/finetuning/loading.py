"""A name -> a pretrained encoder with a new head, and its tokenizer."""

from __future__ import annotations

import math
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..models.pretrained import load_backbone
from ..utils.quiet import quiet
from .recipe import FinetuningRecipe
from .tasks import Task


def load(name: str, auto_class: Any, task: Task) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """In float32, whatever it is saved in. The head is drawn, if there is none for as many labels, and so is the pooler
    of a masked language model; nothing else may be."""
    found = _Watched(auto_class)
    with quiet():
        options = {"dtype": torch.float32, "ignore_mismatched_sizes": True, **task.head()}
        model, tokenizer = load_backbone(name, found, **options)
    if lost := [weight for weight in found.new if weight.startswith(f"{model.base_model_prefix}.")]:
        raise ValueError(
            f"{name!r} has no {lost[0]} (nor {len(lost) - 1} other weights) for {type(model).__name__}: in part, its "
            "encoder would be drawn at random; give a model that was saved whole"
        )
    if tokenizer.pad_token is None:
        raise ValueError(f"the tokenizer of {name!r} has no padding token, without which there are no batches: set one")
    tokenizer.padding_side = "right"  # SQuAD counts tokens from the left
    return model, tokenizer


class _Watched:
    """An Auto class that tells which weights it has drawn, rather than only log it."""

    def __init__(self, auto_class: Any):
        self.auto_class = auto_class
        self.new: list[str] = []

    def from_pretrained(self, source: str, **options: Any) -> PreTrainedModel:
        model, told = self.auto_class.from_pretrained(source, output_loading_info=True, **options)
        drawn = {*told["missing_keys"], *(key for key, *_ in told["mismatched_keys"])}
        self.new = sorted(name for name in drawn if "pooler" not in name)
        return model


def check_length(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, recipe: FinetuningRecipe) -> None:
    positions = min(getattr(model.config, "max_position_embeddings", math.inf), tokenizer.model_max_length)
    assert recipe.max_length is not None
    if recipe.max_length > positions:
        raise ValueError(
            f"max_length={recipe.max_length} is more than the {positions} positions of {model.config.model_type}: "
            f"choose at most {positions}"
        )
