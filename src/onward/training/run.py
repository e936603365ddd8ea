"""`train`: from a model and documents to a trained model in a folder, however often it is interrupted."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import (
    BertForMaskedLM,
    EarlyStoppingCallback,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainingArguments,
    set_seed,
)

from ..data import Document
from ..data.tokens import TokenizedDocument, tokenize
from ..models.block_recurrent import BlockRecurrentForCausalLM
from ..models.window_recurrent import WindowRecurrentForCausalLM
from ..utils.processes import losses_explained, on_cpu
from . import checkpoints
from .claiming import RESULT, claimed, folder_named
from .feeding import Feeding, Plan
from .lanes import LaneFeeding
from .many_runs import RunsProgress
from .masked import MaskedFeeding
from .progress import ProgressBar, Stopwatch
from .recipe import SCHEDULES, TrainingRecipe
from .record import TrainingResult, describe, load_result, read_result, save_result
from .saving import SaveMoreOften
from .segments import SegmentFeeding
from .trainer import EveryGradient, RecurrentTrainer

FEEDINGS: dict[type[PreTrainedModel], type[Feeding]] = {
    WindowRecurrentForCausalLM: SegmentFeeding,
    BlockRecurrentForCausalLM: LaneFeeding,
    BertForMaskedLM: MaskedFeeding,  # and so the recurrent one
}


def train(
    model: PreTrainedModel,
    train_documents: Iterable[Document | str] | Sequence[TokenizedDocument],
    validation_documents: Iterable[Document | str] | Sequence[TokenizedDocument],
    tokenizer: PreTrainedTokenizerBase,
    output_dir: str | Path,
    recipe: TrainingRecipe | None = None,
    *,
    resume: bool = True,
    progress: bool | RunsProgress = True,
    report_to: str | list[str] = "none",
) -> TrainingResult:
    """Trains the model in place, and saves it, its tokenizer and `training.json` in `output_dir`.

    Window-recurrent models read segments, each of which starts anew. Recurrent ones, their constant controls and
    plain windows (the carriers "constant" and "none") read the same in the same order, which only the recipe's seed
    decides. Block-recurrent models read lanes: the state goes on from step to step to a document's end. Validation
    documents are read whole. Masked language models, BertForMaskedLM and RecurrentBertForMaskedLM, read rows of packed
    text with some tokens hidden. Without a recipe it is the one of the model's paper.

    Called again with the same arguments, a run that was killed goes on from its last complete checkpoint as
    if nothing had happened, and one that has ended only loads its result. `resume=False` refuses a folder
    that holds a run; one that holds a model of someone else's is always refused. Several processes share each batch,
    see docs/training.md.
    """
    kind = _feeding_of(model)
    recipe = recipe or TrainingRecipe.preset(kind.kind)
    feeding = kind(model, recipe, tokenizer)
    _check_logging(report_to)
    training = _tokenized(train_documents, tokenizer, "training", feeding.ends_documents)
    validation = _tokenized(validation_documents, tokenizer, "validation", feeding.ends_documents)
    feeding.check_documents(training)
    folder = folder_named(output_dir)
    with (
        losses_explained(lambda: checkpoints.how_to_go_on(folder)),
        claimed(folder, describe(model, recipe, training, validation), model, resume),
    ):
        if (folder / RESULT).is_file():
            return load_result(model, folder)
        return _train(feeding, training, validation, tokenizer, folder, progress, report_to)


def _train(
    feeding: Feeding,
    training: list[TokenizedDocument],
    validation: list[TokenizedDocument],
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    progress: bool | RunsProgress,
    report_to: str | list[str],
) -> TrainingResult:
    model = feeding.model
    set_seed(feeding.recipe.seed)
    with feeding.trainable(), _left_as_found(model):
        trainer, plan = _make_trainer(feeding, training, validation, folder, report_to)
        bar = progress if isinstance(progress, RunsProgress) else ProgressBar(plan.tokens)
        if progress:
            trainer.add_callback(bar)
        try:
            trainer.begin()
        finally:
            if bar is not progress:
                bar.close()
    model.eval()
    weights = trainer.whole_weights()
    if trainer.args.should_save:
        with checkpoints.writing(folder / RESULT, folder):
            save_result(trainer, model, tokenizer, weights)
    trainer.accelerator.wait_for_everyone()
    return read_result(folder)


@contextmanager
def _left_as_found(model: PreTrainedModel) -> Iterator[None]:
    """Trainer sets `use_cache`."""
    settings = dict(model.config.__dict__)
    try:
        with own_forward(model):
            yield
    finally:
        model.gradient_checkpointing_disable()
        model.config.__dict__.clear()
        model.config.__dict__.update(settings)


@contextmanager
def own_forward(model: nn.Module) -> Iterator[None]:
    """accelerate puts a `forward` of its own on a model that trains in bfloat16, which would stay there."""
    attributes = set(model.__dict__)
    try:
        yield
    finally:
        for name in {"forward", "_original_forward"} - attributes:
            model.__dict__.pop(name, None)


# -- what is asked for


def _feeding_of(model: Any) -> type[Feeding]:
    for kind, feeding in FEEDINGS.items():
        if isinstance(model, kind):
            return feeding
    raise TypeError(
        f"train takes a recurrent language model or a masked one of BERT's kind, got {type(model).__name__}: give a "
        "language model recurrence with onward.add_recurrence(model), with carrier='none' for plain windows"
    )


def _check_logging(report_to: str | list[str]) -> None:
    if "tensorboard" in report_to and importlib.util.find_spec("tensorboard") is None:
        raise ModuleNotFoundError("report_to='tensorboard' needs the package tensorboard: pip install tensorboard")


def _tokenized(
    documents: Iterable[Document | str] | Sequence[TokenizedDocument],
    tokenizer: PreTrainedTokenizerBase,
    what: str,
    add_end: bool,
) -> list[TokenizedDocument]:
    tokenized: list[TokenizedDocument] = []
    for document in documents:
        if isinstance(document, TokenizedDocument):
            tokenized.append(document)
        else:
            tokenized += tokenize([document], tokenizer, add_end=add_end)
    if not tokenized:
        raise ValueError(f"there are no {what} documents: pass at least one")
    predictable = [document for document in tokenized if len(document) > 1]
    if not predictable:
        raise ValueError(f"the {what} documents are too short: none has two tokens, so there is nothing to predict")
    return predictable


def _make_trainer(
    feeding: Feeding,
    training: list[TokenizedDocument],
    validation: list[TokenizedDocument],
    folder: Path,
    report_to: str | list[str],
) -> tuple[RecurrentTrainer, Plan]:
    dataset, epochs = feeding.data(training)
    recipe, plan = feeding.recipe, feeding.plan(dataset, training, epochs)
    callbacks: list[transformers.TrainerCallback] = [Stopwatch()]
    if feeding.every_gradient:
        callbacks.append(EveryGradient())
    if recipe.patience is not None:
        callbacks.append(EarlyStoppingCallback(recipe.patience))
    callbacks.append(SaveMoreOften(plan.save_every, recipe.save_every_minutes))
    trainer = RecurrentTrainer(
        feeding.model,
        _arguments(folder, feeding, plan, report_to),
        feeding=feeding,
        data_collator=feeding.collate,
        compute_loss_func=feeding.loss,
        train_dataset=dataset,
        eval_dataset=feeding.validation_data(validation),
        callbacks=callbacks,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer, plan


def _arguments(folder: Path, feeding: Feeding, plan: Plan, report_to: str | list[str]) -> TrainingArguments:
    recipe = feeding.recipe
    arguments = TrainingArguments(
        output_dir=str(folder),
        seed=recipe.seed,
        data_seed=recipe.seed,
        train_sampling_strategy=feeding.sampling,
        max_steps=plan.steps,
        learning_rate=recipe.rate_of("backbone"),
        lr_scheduler_type=SCHEDULES[recipe.schedule],
        warmup_steps=min(recipe.warmup_steps, plan.steps // 2),  # a short run must leave it, too
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        gradient_checkpointing=recipe.gradient_checkpointing,
        bf16=recipe.bf16,
        use_cpu=on_cpu(),
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
        ddp_find_unused_parameters=False if feeding.every_gradient else None,
        dataloader_pin_memory=torch.accelerator.is_available(),
        disable_tqdm=True,
        log_level="passive",
        log_level_replica="passive",
        report_to=report_to,
    )
    # Several GPUs without a launcher would be threads that share one model, and a state cannot be gathered from them.
    arguments._n_gpu = min(1, arguments.n_gpu)
    # How many processes there are is known only now.
    at_once, accumulated = recipe.split_batch(arguments.world_size, feeding.rows)
    arguments.per_device_train_batch_size = arguments.per_device_eval_batch_size = at_once
    arguments.gradient_accumulation_steps = accumulated
    return arguments
