"""What all runs of a sweep share, checked before training: model, inputs of the task, recipe."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.packaged import source_of
from ..models.pretrained import load_backbone
from ..utils.fields import FieldError
from ..utils.quiet import quiet
from .data import read
from .inputs import Sentences, TaskInputs
from .recipe import FinetuningRecipe
from .squad import Questions
from .tasks import Task, task_of

IDENTITY = ("config.json", "*.safetensors", "*.bin", "tokenizer*", "vocab*", "merges.txt", "*.model")


@dataclass(frozen=True)
class Preparation:
    """`described` holds everything that must be equal for scores to be comparable."""

    model: str
    inputs: TaskInputs
    recipe: FinetuningRecipe
    described: dict[str, Any]
    save_models: bool = False


def prepare(
    model: str | Path,
    task: str | Task,
    recipe: FinetuningRecipe | None = None,
    *,
    data: str | Path | None = None,
    split: str = "validation",
    save_models: bool = False,
) -> Preparation:
    """Raises every error that can be known before the first step."""
    task = task_of(task)
    recipe = (recipe or FinetuningRecipe()).for_task(task)
    kind = Questions if task.has_spans else Sentences
    loaded, tokenizer = load(str(model), kind.auto_class, task)
    positions = min(getattr(loaded.config, "max_position_embeddings", math.inf), tokenizer.model_max_length)
    if recipe.max_length is not None and recipe.max_length > positions:
        problem = f"it is more than the {positions} positions of {loaded.config.model_type}; choose at most {positions}"
        raise FieldError("max_length", recipe.max_length, problem)
    rows = read(task, data, split).with_at_most(recipe.train_examples)
    with quiet():  # tokenizers warn of contexts longer than the model, which are cut into windows
        inputs = kind(task, rows, tokenizer, recipe)
    described = {
        "task": task.name,
        "model": _identity(str(model)),
        "data": inputs.fingerprint,
        "split": split,
        **{f"recipe.{name}": value for name, value in asdict(recipe).items()},
    }
    return Preparation(str(model), inputs, recipe, json.loads(json.dumps(described)), save_models)


def _identity(model: str) -> str:
    """A folder is known by its content, wherever it is; a model on the Hub by its name."""
    folder = Path(source_of(model)).expanduser()
    if not folder.is_dir():
        return model
    digest = hashlib.sha256()
    for file in sorted({file for pattern in IDENTITY for file in folder.glob(pattern) if file.is_file()}):
        with file.open("rb") as opened:
            digest.update(file.name.encode() + hashlib.file_digest(opened, "sha256").digest())
    return f"a model with the digest {digest.hexdigest()[:16]}"


def load(name: str, auto_class: Any, task: Task) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A pretrained encoder in float32, and its tokenizer. A missing head is initialised, and so is the pooler of a
    masked language model; any other missing weight is refused."""
    watched = _Watched(auto_class)
    with quiet():
        options = {"dtype": torch.float32, "ignore_mismatched_sizes": True, **task.head()}
        model, tokenizer = load_backbone(name, watched, **options)
    if lost := [weight for weight in watched.new if weight.startswith(f"{model.base_model_prefix}.")]:
        raise ValueError(
            f"{name!r} has no {lost[0]} (nor {len(lost) - 1} other weights) for {type(model).__name__}: part of its "
            "encoder would be random; give a model that was saved whole"
        )
    if tokenizer.pad_token is None:
        raise ValueError(f"the tokenizer of {name!r} has no padding token, which batches need: set one")
    tokenizer.padding_side = "right"  # SQuAD counts tokens from the left
    return model, tokenizer


class _Watched:
    """An Auto class that keeps the names of newly initialised weights, which are otherwise only logged."""

    def __init__(self, auto_class: Any):
        self.auto_class = auto_class
        self.new: list[str] = []

    def from_pretrained(self, source: str, **options: Any) -> PreTrainedModel:
        model, told = self.auto_class.from_pretrained(source, output_loading_info=True, **options)
        drawn = {*told["missing_keys"], *(key for key, *_ in told["mismatched_keys"])}
        self.new = sorted(name for name in drawn if "pooler" not in name)
        return model
