"""`train`: from a model and documents to a trained model in a folder, however often it is interrupted."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    EarlyStoppingCallback,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainingArguments,
    set_seed,
)

from .. import windows
from ..corpora import Document
from ..models.window_recurrent import WindowRecurrentForCausalLM
from ..streams import Segments, TokenizedDocument, tokenize
from . import checkpoints
from .progress import ProgressBar, Stopwatch
from .recipe import SCHEDULES, TrainingRecipe
from .record import RESULT, TrainingResult, claim, describe, load_result, read_result, save_result
from .trainable import trainable
from .trainer import RecurrentTrainer, SaveMoreOften, collate


@dataclass(frozen=True)
class Plan:
    """A recipe in steps of its data."""

    steps: int
    tokens: int
    evaluate_every: int
    save_every: int | None


def train(
    model: WindowRecurrentForCausalLM,
    train_documents: Iterable[Document] | Sequence[TokenizedDocument],
    validation_documents: Iterable[Document] | Sequence[TokenizedDocument],
    tokenizer: PreTrainedTokenizerBase,
    output_dir: str | Path,
    recipe: TrainingRecipe | None = None,
    *,
    resume: bool = True,
    progress: bool = True,
    report_to: str | list[str] = "none",
) -> TrainingResult:
    """Trains the model in place, and saves it, its tokenizer and `training.json` in `output_dir`.

    Recurrent models, their constant controls and plain windows (the carriers "constant" and "none") read
    the same segments in the same order, which only the recipe's seed decides. Each segment starts anew;
    validation documents are read whole.

    Called again with the same arguments, a run that was killed goes on from its last complete checkpoint as
    if nothing had happened, and one that has ended only loads its result. `resume=False` refuses a folder
    that holds a run. Several processes share each batch, see docs/window-recurrence.md.
    """
    recipe = recipe or TrainingRecipe()
    _check_arguments(model, report_to)
    training = _tokenized(train_documents, tokenizer, "training")
    validation = _tokenized(validation_documents, tokenizer, "validation")
    _require_a_second_window(model, training)
    folder = Path(output_dir).expanduser().resolve()
    claim(folder, describe(model, recipe, training, validation), resume)
    if (folder / RESULT).is_file():
        return load_result(model, folder)

    set_seed(recipe.seed)
    with trainable(model, recipe), _left_as_found(model):
        trainer, plan = _make_trainer(model, training, validation, folder, recipe, report_to)
        bar = ProgressBar(plan.tokens)
        if progress:
            trainer.add_callback(bar)
        try:
            _run(trainer)
        finally:
            bar.close()
    model.eval()
    if trainer.args.should_save:
        with checkpoints.writing(folder / RESULT, folder):
            save_result(trainer, model, tokenizer, recipe)
    trainer.accelerator.wait_for_everyone()
    return read_result(folder)


@contextmanager
def _left_as_found(model: WindowRecurrentForCausalLM) -> Iterator[None]:
    """Trainer sets `use_cache`; accelerate puts a `forward` of its own on a model that trains in bfloat16."""
    settings, attributes = dict(model.config.__dict__), set(model.__dict__)
    try:
        yield
    finally:
        model.gradient_checkpointing_disable()
        model.config.__dict__.clear()
        model.config.__dict__.update(settings)
        for name in ("forward", "_original_forward"):
            if name not in attributes:
                model.__dict__.pop(name, None)


def _run(trainer: RecurrentTrainer) -> None:
    last = checkpoints.last_checkpoint(trainer.folder)
    if last is None and trainer.model.config.carrier == "constant":
        trainer.start_constant()
    if last is not None and checkpoints.ended_training(last):
        trainer.take_over(last)
    else:
        trainer.train(resume_from_checkpoint=str(last) if last else None)


# -- what is asked for


def _check_arguments(model: Any, report_to: str | list[str]) -> None:
    if not isinstance(model, WindowRecurrentForCausalLM):
        raise TypeError(
            f"train takes a recurrent language model, got {type(model).__name__}: give it recurrence with "
            "onward.add_recurrence(model), with carrier='none' for plain windows"
        )
    if "tensorboard" in report_to and importlib.util.find_spec("tensorboard") is None:
        raise ModuleNotFoundError(
            "report_to='tensorboard' needs the package tensorboard: pip install tensorboard"
        )


def _tokenized(
    documents: Iterable[Document] | Sequence[TokenizedDocument], tokenizer: PreTrainedTokenizerBase, what: str
) -> list[TokenizedDocument]:
    tokenized: list[TokenizedDocument] = []
    for document in documents:
        if isinstance(document, TokenizedDocument):
            tokenized.append(document)
        else:
            tokenized += tokenize([document], tokenizer)
    if not tokenized:
        raise ValueError(f"there are no {what} documents: pass at least one")
    predictable = [document for document in tokenized if len(document) > 1]
    if not predictable:
        raise ValueError(
            f"the {what} documents are too short: none has two tokens, so there is nothing to predict"
        )
    return predictable


def _require_a_second_window(
    model: WindowRecurrentForCausalLM, documents: Sequence[TokenizedDocument]
) -> None:
    window, longest = model.config.window, max(map(len, documents))
    if model.config.carrier != "none" and longest < window + 2:
        raise ValueError(
            f"the training documents are too short: the longest has {longest} tokens and fits into one "
            f"window of {window}, so that nothing is ever carried; use longer documents or a smaller window"
        )


def _make_plan(segments: Segments, recipe: TrainingRecipe) -> Plan:
    """Everything that the recipe counts in tokens, counted in steps; those have the same size on average."""
    tokens = sum(map(len, segments.documents))
    steps_per_epoch = math.ceil(len(segments) / recipe.batch_size)
    tokens_per_step = tokens / steps_per_epoch
    steps = math.ceil(recipe.epochs * steps_per_epoch)
    if recipe.max_tokens is not None:
        steps = min(steps, math.ceil(recipe.max_tokens / tokens_per_step))

    def every(tokens: int) -> int:
        return min(max(1, round(tokens / tokens_per_step)), steps)

    save = None if recipe.save_every_tokens is None else every(recipe.save_every_tokens)
    return Plan(steps, round(steps * tokens_per_step), every(recipe.evaluate_every_tokens), save)


def _make_trainer(
    model: WindowRecurrentForCausalLM,
    training: list[TokenizedDocument],
    validation: list[TokenizedDocument],
    folder: Path,
    recipe: TrainingRecipe,
    report_to: str | list[str],
) -> tuple[RecurrentTrainer, Plan]:
    length = windows.segment_length(recipe.windows_per_segment, model.config.window, model.config.overlap)
    segments = Segments(training, length, min_length=min(2, length))
    # Documents of like length together, so that rows of a batch end together.
    whole = Segments(sorted(validation, key=len, reverse=True), max(map(len, validation)))
    plan = _make_plan(segments, recipe)
    callbacks: list[transformers.TrainerCallback] = [Stopwatch()]
    if recipe.patience is not None:
        callbacks.append(EarlyStoppingCallback(recipe.patience))
    if plan.save_every is not None:
        callbacks.append(SaveMoreOften(plan.save_every))
    trainer = RecurrentTrainer(
        model,
        _arguments(folder, recipe, plan, report_to),
        recipe=recipe,
        data_collator=collate,
        train_dataset=segments,
        eval_dataset=whole,
        callbacks=callbacks,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer, plan


def _arguments(
    folder: Path, recipe: TrainingRecipe, plan: Plan, report_to: str | list[str]
) -> TrainingArguments:
    arguments = TrainingArguments(
        output_dir=str(folder),
        seed=recipe.seed,
        data_seed=recipe.seed,
        max_steps=plan.steps,
        learning_rate=recipe.rate_of("backbone"),
        lr_scheduler_type=SCHEDULES[recipe.schedule],
        warmup_steps=min(recipe.warmup_steps, plan.steps // 2),  # a short run must leave it, too
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        gradient_checkpointing=recipe.gradient_checkpointing,
        bf16=recipe.bf16,
        use_cpu=not torch.accelerator.is_available()
        or os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true",
        eval_strategy="steps",
        eval_steps=plan.evaluate_every,
        save_strategy="steps",
        save_steps=plan.evaluate_every,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=False,
        restore_callback_states_from_checkpoint=True,
        logging_steps=1,
        logging_nan_inf_filter=False,
        include_num_input_tokens_seen="non_padding",
        remove_unused_columns=False,
        dataloader_pin_memory=torch.accelerator.is_available(),
        disable_tqdm=True,
        log_level="passive",
        log_level_replica="passive",
        report_to=report_to,
    )
    # Several GPUs without a launcher would be threads that share one model, and a state cannot be gathered from them.
    arguments._n_gpu = min(1, arguments.n_gpu)
    # How many processes there are is known only now.
    at_once, accumulated = recipe.split_batch(arguments.world_size)
    arguments.per_device_train_batch_size = arguments.per_device_eval_batch_size = at_once
    arguments.gradient_accumulation_steps = accumulated
    return arguments
