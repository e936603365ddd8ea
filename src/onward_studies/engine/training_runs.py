"""Runs that studies have in common: a vocabulary, and a training with its curve."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from onward.data import Document, LazyDocuments
from onward.data.token_files import tokenize_into
from onward.data.tokens import TokenizedDocument
from onward.data.vocabularies import load_tokenizer, train_vocabulary
from onward.evaluation import Measures, NothingToSwap, measure_memories
from onward.models.block_recurrent import BlockRecurrentForCausalLM
from onward.training import NonFiniteLossError, TrainingRecipe, train
from onward.training.progress import RunsProgress
from onward.training.results import read_result
from onward.utils.files import whole_folder
from onward.utils.manifests import write_manifest
from onward.utils.processes import on_cpu

from .study import MODEL, Outcome, Run, Work

ORDER_SEED = 0


def some_of(documents: Sequence[Document], max_bytes: int | None) -> Sequence[Document]:
    """A random part of them, the same for every run; all of them are not held in memory."""
    order = list(range(len(documents)))
    random.Random(ORDER_SEED).shuffle(order)
    if max_bytes is None:
        return LazyDocuments(order, documents.__getitem__)
    found: list[Document] = []
    total = 0
    for i in order:
        if total >= max_bytes:
            break
        found.append(documents[i])
        total += found[-1].bytes
    return found


def check_texts(work: Work, *names: str) -> None:
    """Looked at before hours are spent."""
    for name in names:
        if len(work.corpus(name).train) < 2:
            raise ValueError(f"corpus {name!r} has a single training document: give at least two")


def cut(document: Document, characters: int) -> list[Document]:
    """Pieces of about so many characters, which end with lines."""
    pieces: list[Document] = []
    start, text = 0, document.text
    while start < len(text):
        end = text.find("\n", start + characters) + 1 or len(text)
        piece = text[start:end]
        if piece.strip():
            pieces.append(Document(f"{document.name}, {len(pieces) + 1}", piece))
        start = end
    return pieces


def vocabulary_run(
    kind: str, size: int, texts: Callable[[Work], Sequence[Document]], settings: Mapping[str, Any], of: str
) -> Run:
    """A vocabulary for these texts, which `of` names and `settings` say all about; `tokenizer_of` loads it."""

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
    """Whether trainings are fastest in bfloat16: on GPUs that know it, and on processors with instructions for it,
    where they take two thirds of the time. Trained models are read in float32 all the same."""
    if not on_cpu():
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    instructions: Mapping[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()  # older torch has none
    return any(instructions.get(name, False) for name in ("avx512_bf16", "amx_bf16"))


def train_once(
    work: Work,
    model: PreTrainedModel,
    training: tuple[str, Callable[[], Sequence[Document]]],
    validation: Sequence[TokenizedDocument],
    tokenizer: PreTrainedTokenizerBase,
    recipe: TrainingRecipe,
) -> Outcome:
    """Trains into the run's folder on texts that are tokenized only once; this process knows them by this name. A loss
    that becomes NaN is an outcome too."""
    recipe = replace(recipe, bf16=work.in_bf16(has_bf16()))
    name, texts = training
    ends = isinstance(model, BlockRecurrentForCausalLM)  # as `train` would do it
    shown = work.display.prepare if isinstance(work.display, RunsProgress) else None
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
        train(model, tokenized, validation, tokenizer, work.folder / MODEL, recipe, progress=work.display)
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


def read_with(model: Any, documents: Sequence[TokenizedDocument], memories: Sequence[str]) -> dict[str, Measures]:
    """A trained model, once with each of these memories; without swapped ones where there is nothing to swap."""
    try:
        return measure_memories(model, documents, memories=memories)
    except NothingToSwap:
        return measure_memories(model, documents, memories=[memory for memory in memories if memory != "swapped"])
