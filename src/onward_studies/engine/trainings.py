"""What runs of several systems do: make a vocabulary, train a model, measure its memories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from onward.data import Document
from onward.data.token_files import tokenize_into
from onward.data.tokens import TokenizedDocument
from onward.data.vocabularies import load_tokenizer, train_vocabulary
from onward.evaluation import Measures, NothingToSwap, measure_memories
from onward.models.block_recurrent import BlockRecurrentForCausalLM
from onward.training import NonFiniteLossError, TrainingRecipe, train
from onward.training.results import read_result
from onward.utils.files import whole_folder
from onward.utils.manifests import write_manifest
from onward.utils.processes import on_cpu

from .folders import MODEL
from .study import Outcome, Run
from .work import Work


def vocabulary_run(
    kind: str, size: int, texts: Callable[[Work], Sequence[Document]], settings: Mapping[str, Any], of: str
) -> Run:
    """A vocabulary for these texts, named by `of` and described by `settings`; `tokenizer_of` loads it."""

    def do(work: Work) -> Outcome:
        tokenizer = train_vocabulary(texts(work), size, kind)
        with whole_folder(work.folder / MODEL) as place:
            tokenizer.save_pretrained(place)
            write_manifest(place)
        return {"tokens": len(tokenizer), "said": f"{len(tokenizer):,} tokens"}

    return Run(f"{kind}-{size}-{of}", {**settings, "size": size, "kind": kind}, do, by="first")


def tokenizer_of(work: Work, run: str) -> PreTrainedTokenizerBase:
    return load_tokenizer(str(work.model_of(run)))


def has_bf16() -> bool:
    """Whether bfloat16 trains fastest here: on GPUs and processors with instructions for it, where a training takes two
    thirds of the time. Trained models are evaluated in float32 all the same."""
    if not on_cpu():
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    instructions: Mapping[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()  # older torch has none
    return any(instructions.get(name, False) for name in ("avx512_bf16", "amx_bf16"))


def recipe_of(kind: str, sizes: Any, rate: float, tokens: int | None, seed: int = 0, **more: Any) -> TrainingRecipe:
    """A preset with what the sizes of all systems name alike; texts are repeated until there are enough tokens."""
    alike = {"warmup_steps": sizes.warmup_steps, "evaluate_every_tokens": sizes.evaluate_every, "epochs": 1000}
    return TrainingRecipe.preset(kind, learning_rate=rate, max_tokens=tokens, seed=seed, **{**alike, **more})


def train_once(
    work: Work,
    model: PreTrainedModel,
    training: tuple[str, Callable[[], Sequence[Document]]],
    validation: Sequence[TokenizedDocument],
    tokenizer: PreTrainedTokenizerBase,
    recipe: TrainingRecipe,
) -> Outcome:
    """Trains into the run's folder. `training`: a name for the texts, by which this process tokenizes them once, and
    the texts. A loss that becomes NaN is an outcome too."""
    recipe = replace(recipe, bf16=work.in_bf16(has_bf16()))
    name, texts = training
    ends = isinstance(model, BlockRecurrentForCausalLM)  # as `train` does it
    shown = work.display.prepare if work.display else None
    tokenized = work.once(
        ("tokens", name, ends), lambda: tokenize_into(work.out / "tokens", texts(), tokenizer, ends, shown)
    )
    facts = {
        "parameters": model.num_parameters(),
        "learning_rate": recipe.learning_rate,
        "seed": recipe.seed,
        "bf16": recipe.bf16,
    }
    try:
        train(model, tokenized, validation, tokenizer, work.folder / MODEL, recipe, progress=work.display or False)
    except NonFiniteLossError as error:
        return {**facts, "validation_loss": None, "ended": str(error), "said": str(error)}
    result = read_result(work.folder / MODEL)
    return {
        **facts,
        "validation_loss": result.best_validation_loss,
        "last_validation_loss": result.validation_loss,
        "tokens": result.tokens,
        "training_seconds": result.seconds,
        "curve": [(e["tokens"], e["validation_loss"]) for e in result.history if "validation_loss" in e],
        "said": f"validation {result.best_validation_loss:.4f} nats/token",
    }


def documents_of(measures: Measures) -> list[tuple[str, float, int]]:
    """Name, loss in nats and tokens of each document, for an outcome."""
    return [(d.name, round(d.nll, 4), d.tokens) for d in measures.documents]


def measured(model: Any, documents: Sequence[TokenizedDocument], memories: Sequence[str]) -> dict[str, Measures]:
    """A trained model's measures with each of these memories; without "swapped" where there is nothing to swap."""
    try:
        return measure_memories(model, documents, memories=memories)
    except NothingToSwap:
        return measure_memories(model, documents, memories=[memory for memory in memories if memory != "swapped"])


def not_done(needed: str, **facts: Any) -> Outcome:
    """The outcome of a run that needs a model which ended with NaN."""
    said = f"not done: {needed} ended with NaN"
    return {**facts, "ended": said, "said": said}
