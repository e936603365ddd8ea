"""One run: a pretrained encoder with a new head, trained on a task and scored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import DataCollatorWithPadding, TrainerCallback, TrainingArguments, set_seed

from ..training import NonFiniteLossError, checkpoints
from ..training.arguments import base_arguments
from ..training.folders import claimed, folder_named, refuse_foreign
from ..utils.files import make_folder, whole_folder
from ..utils.processes import refuse_several
from ..utils.quiet import quiet
from ..utils.safe_json import read_json, without_infinities, write_json
from .preparation import Preparation, load, prepare
from .recipe import FinetuningRecipe, check_learning_rate
from .results import RESULT, RunResult
from .tasks import Task
from .trainer import FineTuner

MODEL = "model"
STARTED = "finetuning.json"
NEVER_OVERWRITTEN = ("config.json", MODEL)
LOSSES_KEPT = 200  # points of a loss curve
MINUTES_BETWEEN_CHECKPOINTS = 10


def finetune(
    model: str | Path,
    task: str | Task,
    out: str | Path,
    *,
    learning_rate: float = 2e-5,
    seed: int = 0,
    recipe: FinetuningRecipe | None = None,
    data: str | Path | None = None,
    split: str = "validation",
    save_model: bool = False,
) -> RunResult:
    """Fine-tunes a model, by its folder or name, once, and leaves `result.json` in `out`.

    `data` is a folder with the task's files, or one file; by default the Hub's data set is used. The model is scored on
    `split` after the last step: no epoch is picked. `sweep` does this for many learning rates and seeds. Called again
    with the same arguments, a killed run resumes from its last checkpoint; there is one about every 10 minutes.
    """
    check_learning_rate(learning_rate)
    refuse_several("fine-tuning")
    folder = folder_named(out, "out")

    def check() -> None:
        if (folder / RESULT).is_file():
            raise FileExistsError(f"{folder} holds a finished run already: choose another folder")
        refuse_foreign(folder, STARTED, NEVER_OVERWRITTEN)

    check()
    preparation = prepare(model, task, recipe, data=data, split=split, save_models=save_model)
    with claimed(folder, check):
        return run(preparation, learning_rate, seed, folder)


def run(
    preparation: Preparation, learning_rate: float, seed: int, folder: Path, callbacks: Sequence[TrainerCallback] = ()
) -> RunResult:
    """`result.json` comes last: where it is, the run has ended."""
    inputs, recipe = preparation.inputs, preparation.recipe
    set_seed(seed)  # decides the head's first weights
    model, tokenizer = load(preparation.model, inputs.auto_class, inputs.task)
    _claim(folder, preparation.described | {"learning_rate": learning_rate, "seed": seed})
    trainer = FineTuner(
        model,
        _arguments(preparation, learning_rate, seed, folder),
        data_collator=DataCollatorWithPadding(tokenizer),
        train_dataset=inputs.train,
        callbacks=callbacks,
        save_every_minutes=MINUTES_BETWEEN_CHECKPOINTS,
    )
    metrics: dict[str, float] = {}
    ended = None
    try:
        trainer.start_or_resume()
        metrics = inputs.metrics({split: trainer.logits(rows) for split, rows in inputs.evaluation.items()})
    except NonFiniteLossError as error:
        ended = str(error)
    if preparation.save_models and ended is None:
        with quiet(), whole_folder(folder / MODEL) as place:
            model.save_pretrained(place)
            tokenizer.save_pretrained(place)
    content = {
        "task": inputs.task.name,
        "model": preparation.model,
        "learning_rate": learning_rate,
        "seed": seed,
        "score": inputs.task.score(metrics) if metrics else None,
        "metrics": metrics,
        "trivial": inputs.trivial,
        "margin": inputs.margin,
        "ended": ended,
        "examples": inputs.train_examples,
        "dropped": inputs.dropped,
        "scored_on": {split: len(rows) for split, rows in inputs.evaluation.items()},
        "recipe": asdict(recipe),
        "data": inputs.fingerprint,
        "parameters": model.num_parameters(),
        **trainer.record(),
    }
    write_json(folder / RESULT, without_infinities(content))
    checkpoints.discard_all(folder)
    return RunResult.read(folder)


def _claim(folder: Path, described: dict[str, Any]) -> None:
    """Deletes the checkpoints of another run that has not ended: a run resumes only from its own."""
    file = folder / STARTED
    if file.is_file():
        if read_json(file, "what a run is", f"delete {folder}, and run the same again") != described:
            checkpoints.discard_all(folder)
    elif checkpoints.all_checkpoints(folder):
        raise FileExistsError(f"{folder} holds checkpoints of something else: choose another folder")
    refuse_foreign(folder, STARTED, NEVER_OVERWRITTEN)
    make_folder(folder)
    write_json(file, described)


def _arguments(preparation: Preparation, learning_rate: float, seed: int, folder: Path) -> TrainingArguments:
    recipe = preparation.recipe
    steps = math.ceil(len(preparation.inputs.train) / recipe.batch_size) * recipe.epochs
    return base_arguments(
        folder,
        seed,
        num_train_epochs=recipe.epochs,
        per_device_train_batch_size=recipe.batch_size,
        per_device_eval_batch_size=recipe.batch_size,
        train_sampling_strategy="group_by_length" if recipe.group_by_length else "random",
        learning_rate=learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=recipe.warmup,  # below 1, Trainer takes it as a share
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        bf16=recipe.bf16,
        save_strategy="no",  # checkpoints come by the clock alone
        eval_strategy="no",
        logging_steps=max(1, int(steps) // LOSSES_KEPT),
    )
