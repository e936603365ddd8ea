"""`train`: from a model and documents to a trained model in a folder."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from transformers import (
    BertForMaskedLM,
    EarlyStoppingCallback,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    set_seed,
)

from ..data import Document
from ..data.tokens import TokenizedDocument, tokenize
from ..models.block_recurrent import BlockRecurrentForCausalLM
from ..models.window_recurrent import WindowRecurrentForCausalLM
from ..utils.processes import losses_explained
from . import checkpoints
from .arguments import base_arguments
from .feed import DataLayout, Feed
from .folders import RESULT, claimed_for_training, describe, folder_named
from .lanes import LaneFeed
from .masked import MaskedFeed
from .progress import ProgressBar, RunsProgress
from .recipe import SCHEDULES, TrainingRecipe
from .results import TrainingResult, load_result, save_result
from .segments import SegmentFeed
from .trainer import EveryGradient, RecurrentTrainer

FEEDS: dict[type[PreTrainedModel], type[Feed]] = {
    WindowRecurrentForCausalLM: SegmentFeed,
    BlockRecurrentForCausalLM: LaneFeed,
    BertForMaskedLM: MaskedFeed,  # and its subclass RecurrentBertForMaskedLM
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

    Runs resume exactly: called again with the same arguments, a killed run continues from its last complete
    checkpoint with the losses it would have had, and a finished one only loads its result. `resume=False` refuses a
    folder that holds a run; one that holds another model is always refused. Several processes share each batch, see
    docs/training.md.

    Window-recurrent models are trained on segments, each of which starts anew. Recurrent ones, their constant controls
    and plain windows (the carriers "constant" and "none") get the same segments in the same order, which depends only
    on the recipe's seed. Block-recurrent models are trained on lanes: state is carried from step to step to a
    document's end. Both are validated on whole documents. Masked language models, BertForMaskedLM and
    RecurrentBertForMaskedLM, are trained on rows of packed text with some tokens hidden. The default recipe is that of
    the model's paper.
    """
    feed_class = _feed_of(model)
    recipe = recipe or TrainingRecipe.preset(feed_class.kind)
    feed = feed_class(model, recipe, tokenizer)
    if "tensorboard" in report_to and importlib.util.find_spec("tensorboard") is None:
        raise ModuleNotFoundError("report_to='tensorboard' needs the package tensorboard: pip install tensorboard")
    training = _tokenized(train_documents, tokenizer, "training", feed.ends_documents)
    validation = _tokenized(validation_documents, tokenizer, "validation", feed.ends_documents)
    feed.check_documents(training)
    folder = folder_named(output_dir)
    described = {**describe(model, recipe, training, validation), **feed.described()}
    with (
        losses_explained(lambda: f"Run the same command again: {checkpoints.what_is_kept(folder)}"),
        claimed_for_training(folder, described, model, resume),
    ):
        if (folder / RESULT).is_file():
            return load_result(model, folder)
        set_seed(recipe.seed)
        with feed.trainable(), _settings_restored(model):
            layout = feed.lay_out(training, validation)
            trainer = _make_trainer(feed, layout, folder, report_to)
            bar = progress if isinstance(progress, RunsProgress) else ProgressBar(layout.tokens)
            if progress:
                trainer.add_callback(bar)
            try:
                trainer.start_or_resume()
            finally:
                if bar is not progress:
                    bar.close()
        model.eval()
        return save_result(trainer, tokenizer)


@contextmanager
def _settings_restored(model: PreTrainedModel) -> Iterator[None]:
    """Trainer changes the configuration: it sets `use_cache`, for one."""
    settings = dict(model.config.__dict__)
    try:
        with forward_restored(model):
            yield
    finally:
        model.gradient_checkpointing_disable()
        model.config.__dict__.clear()
        model.config.__dict__.update(settings)


@contextmanager
def forward_restored(model: nn.Module) -> Iterator[None]:
    """accelerate replaces the `forward` of a model that is trained in bfloat16, and would leave it replaced."""
    attributes = set(model.__dict__)
    try:
        yield
    finally:
        for name in {"forward", "_original_forward"} - attributes:
            model.__dict__.pop(name, None)


def _feed_of(model: Any) -> type[Feed]:
    for kind, feed in FEEDS.items():
        if isinstance(model, kind):
            return feed
    raise TypeError(
        f"train takes a recurrent language model or a masked one of BERT's kind, got {type(model).__name__}: give a "
        "language model recurrence with onward.add_recurrence(model), with carrier='none' for plain windows"
    )


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


def _make_trainer(feed: Feed, layout: DataLayout, folder: Path, report_to: str | list[str]) -> RecurrentTrainer:
    recipe = feed.recipe
    callbacks: list[TrainerCallback] = [EveryGradient()] if feed.every_gradient else []
    if recipe.patience is not None:
        callbacks.append(EarlyStoppingCallback(recipe.patience))
    arguments = base_arguments(
        folder,
        recipe.seed,
        train_sampling_strategy=feed.sampling,
        max_steps=layout.steps,
        learning_rate=recipe.rate_of("backbone"),
        lr_scheduler_type=SCHEDULES[recipe.schedule],
        warmup_steps=min(recipe.warmup_steps, layout.steps // 2),  # a short run must get through its warm-up, too
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        gradient_checkpointing=recipe.gradient_checkpointing,
        bf16=recipe.bf16,
        eval_strategy="steps",
        eval_steps=layout.evaluate_every,
        save_strategy="steps",
        save_steps=layout.evaluate_every,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=False,
        logging_steps=1,
        ddp_find_unused_parameters=False if feed.every_gradient else None,
        report_to=report_to,
    )
    # The number of processes is known only after TrainingArguments has initialised them.
    at_once, accumulated = recipe.split_batch(arguments.world_size, feed.rows)
    arguments.per_device_train_batch_size = arguments.per_device_eval_batch_size = at_once
    arguments.gradient_accumulation_steps = accumulated
    return RecurrentTrainer(
        feed.model,
        arguments,
        feed=feed,
        data_collator=feed.collate,
        compute_loss_func=feed.loss,
        train_dataset=layout.train,
        eval_dataset=layout.validation,
        callbacks=callbacks,
        save_every_steps=layout.save_every,
        save_every_minutes=recipe.save_every_minutes,
    )
