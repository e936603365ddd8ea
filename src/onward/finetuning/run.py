"""One run: a pretrained encoder with a new head, trained on a task and scored."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import SequentialSampler
from transformers import (
    DataCollatorWithPadding,
    PrinterCallback,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from ..data.packaged import source_of
from ..training import checkpoints
from ..training.claiming import folder_named, refuse_foreign
from ..training.progress import Stopwatch
from ..training.record import history_of, processes_of, seconds_of
from ..training.saving import SaveMoreOften, SavingTrainer
from ..training.trainer import NonFiniteLossError
from ..utils.files import make_folder, whole_folder
from ..utils.processes import on_cpu, refuse_several
from ..utils.provenance import provenance
from ..utils.quiet import quiet
from ..utils.safe_json import read_json, without_infinities, write_json
from .data import read
from .loading import check_length, load
from .order import ByLength
from .prepared import Prepared, Sentences
from .recipe import FinetuningRecipe, check_learning_rate
from .result import RESULT, RunResult
from .squad import Questions
from .tasks import Task, task_of

MODEL = "model"
STARTED = "finetuning.json"
FOREIGN = ("config.json", MODEL)
LOSSES_KEPT = 200  # points of a loss curve
MINUTES_BETWEEN_CHECKPOINTS = 10
IDENTITY = ("config.json", "*.safetensors", "*.bin", "tokenizer*", "vocab*", "merges.txt", "*.model")


@dataclass(frozen=True)
class Setting:
    """What is the same for all runs of a sweep; `described`, all of it by which their scores can be compared."""

    model: str
    prepared: Prepared
    recipe: FinetuningRecipe
    described: dict[str, Any]
    save_models: bool = False


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

    `data` is a folder with the task's files, or one file; without it, the Hub's data set is used. `split` is what the
    model is scored on, after the last step: no epoch is picked. `sweep` does this for many rates and seeds.
    Called again with the same arguments, a run that was killed goes on from its last checkpoint; there is one about
    every 10 minutes.
    """
    check_learning_rate(learning_rate)
    refuse_several("fine-tuning")
    folder = folder_named(out, "out")
    _refuse_finished(folder)
    refuse_foreign(folder, STARTED, FOREIGN)
    setting = prepare(model, task, recipe, data=data, split=split, save_models=save_model)
    make_folder(folder)
    with checkpoints.alone_in(folder):
        _refuse_finished(folder)  # just now, by another process
        return run(setting, learning_rate, seed, folder)


def _refuse_finished(folder: Path) -> None:
    if (folder / RESULT).is_file():
        raise FileExistsError(f"{folder} holds a finished run already: choose another folder")


def prepare(
    model: str | Path,
    task: str | Task,
    recipe: FinetuningRecipe | None = None,
    *,
    data: str | Path | None = None,
    split: str = "validation",
    save_models: bool = False,
) -> Setting:
    """Everything that can be found wrong is found here, before the first step."""
    task = task_of(task)
    recipe = (recipe or FinetuningRecipe()).for_task(task)
    kind = Questions if task.has_spans else Sentences
    loaded, tokenizer = load(str(model), kind.auto_class, task)
    check_length(loaded, tokenizer, recipe)
    rows = read(task, data, split).with_at_most(recipe.train_examples)
    with quiet():  # that long contexts are longer than the model is known
        prepared = kind(task, rows, tokenizer, recipe)
    described = {
        "task": task.name,
        "model": _identity(str(model)),
        "data": prepared.fingerprint,
        "split": split,
        **{f"recipe.{name}": value for name, value in asdict(recipe).items()},
    }
    return Setting(str(model), prepared, recipe, json.loads(json.dumps(described)), save_models)


def _identity(model: str) -> str:
    """A folder is known by what it holds, wherever it is; a model of the Hub by its name."""
    folder = Path(source_of(model)).expanduser()
    if not folder.is_dir():
        return model
    digest = hashlib.sha256()
    for file in sorted({file for pattern in IDENTITY for file in folder.glob(pattern) if file.is_file()}):
        with file.open("rb") as opened:
            digest.update(file.name.encode() + hashlib.file_digest(opened, "sha256").digest())
    return f"a model with the digest {digest.hexdigest()[:16]}"


# --- training --------------------------------------------------------------------------------------


class FineTuner(SavingTrainer):
    """transformers' Trainer, which here ends where the loss is no number, and scores rows in their order."""

    order: ByLength | None = None
    taken_up: Path | None = None

    def take_up(self, checkpoint: Path) -> None:
        self.taken_up = checkpoint
        super().take_up(checkpoint)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        assert self.train_dataset is not None
        self.order = ByLength(self.args.train_batch_size, self.train_dataset)
        steps = math.ceil(len(self.train_dataset) / self.args.train_batch_size)  # type: ignore[arg-type]
        if self.taken_up is not None and checkpoints.step_of(self.taken_up) % steps:  # in the middle of an epoch
            self.order.take_up(self.taken_up)
        return self.order

    def save_beside(self, checkpoint: Path) -> None:
        if self.order is not None:
            self.order.save(checkpoint)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)
        if not math.isfinite(loss):
            raise NonFiniteLossError(f"at step {self.state.global_step + 1} the loss is {float(loss)}")
        return loss

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        return SequentialSampler(eval_dataset)  # Trainer's own follows `train_sampling_strategy`

    def logits(self, inputs: Any) -> tuple[np.ndarray, ...]:
        """One array for a label, two for a span."""
        found = self.predict(inputs).predictions
        logits = found if isinstance(found, tuple) else (found,)
        if not all(np.isfinite(array).all() for array in logits[:2]):
            raise NonFiniteLossError(f"after step {self.state.global_step} the model's logits are no numbers")
        return logits


def run(
    setting: Setting, learning_rate: float, seed: int, folder: Path, callbacks: Sequence[TrainerCallback] = ()
) -> RunResult:
    """`result.json` comes last: where it is, the run has ended."""
    prepared = setting.prepared
    set_seed(seed)  # before the head is drawn
    model, tokenizer = load(setting.model, prepared.auto_class, prepared.task)
    described = setting.described | {"learning_rate": learning_rate, "seed": seed}
    _claim(folder, described)
    trainer = FineTuner(
        model,
        _arguments(setting, learning_rate, seed, folder),
        data_collator=DataCollatorWithPadding(tokenizer),
        train_dataset=prepared.train,
        callbacks=[Stopwatch(), SaveMoreOften(None, MINUTES_BETWEEN_CHECKPOINTS), *callbacks],
    )
    trainer.remove_callback(PrinterCallback)
    metrics: dict[str, float] = {}
    ended = None
    try:
        trainer.begin()
        metrics = prepared.metrics({split: trainer.logits(inputs) for split, inputs in prepared.evaluation.items()})
    except NonFiniteLossError as error:
        ended = str(error)
    if setting.save_models and ended is None:
        with quiet(), whole_folder(folder / MODEL) as place:
            model.save_pretrained(place)
            tokenizer.save_pretrained(place)
    content = {
        "task": prepared.task.name,
        "model": setting.model,
        "learning_rate": learning_rate,
        "seed": seed,
        "score": prepared.task.score(metrics) if metrics else None,
        "metrics": metrics,
        "trivial": prepared.trivial,
        "margin": prepared.margin,
        "ended": ended,
        "examples": prepared.train_examples,
        "dropped": prepared.dropped,
        "scored_on": {split: len(inputs) for split, inputs in prepared.evaluation.items()},
        "steps": trainer.state.global_step,
        "tokens": trainer.state.num_input_tokens_seen,
        "seconds": seconds_of(trainer),
        "recipe": asdict(setting.recipe),
        "data": prepared.fingerprint,
        "parameters": model.num_parameters(),
        **provenance(**processes_of(trainer)),
        "history": history_of(trainer.state.log_history),
    }
    write_json(folder / RESULT, without_infinities(content))
    checkpoints.discard_all(folder)
    return RunResult.read(folder)


def _claim(folder: Path, described: dict[str, Any]) -> None:
    """A run goes on only from checkpoints of its own; those of another, which has not ended, give way."""
    file = folder / STARTED
    if file.is_file():
        if read_json(file, "what a run is", f"delete {folder}, and run the same again") != described:
            checkpoints.discard_all(folder)
    elif checkpoints.all_checkpoints(folder):
        raise FileExistsError(f"{folder} holds checkpoints of something else: choose another folder")
    refuse_foreign(folder, STARTED, FOREIGN)
    make_folder(folder)
    write_json(file, described)


def _arguments(setting: Setting, learning_rate: float, seed: int, folder: Path) -> TrainingArguments:
    recipe = setting.recipe
    steps = math.ceil(len(setting.prepared.train) / recipe.batch_size) * recipe.epochs
    arguments = TrainingArguments(
        output_dir=str(folder),
        seed=seed,
        data_seed=seed,
        num_train_epochs=recipe.epochs,
        per_device_train_batch_size=recipe.batch_size,
        per_device_eval_batch_size=recipe.batch_size,
        train_sampling_strategy="group_by_length" if recipe.group_by_length else "random",
        learning_rate=learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=recipe.warmup,  # below 1, it is a share
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        bf16=recipe.bf16,
        use_cpu=on_cpu(),
        save_strategy="no",  # but by the clock
        restore_callback_states_from_checkpoint=True,
        eval_strategy="no",
        logging_steps=max(1, int(steps) // LOSSES_KEPT),
        logging_nan_inf_filter=False,
        include_num_input_tokens_seen="non_padding",
        remove_unused_columns=False,
        dataloader_pin_memory=torch.accelerator.is_available(),
        disable_tqdm=True,
        log_level="passive",
        report_to="none",
    )
    arguments._n_gpu = min(1, arguments.n_gpu)  # or several GPUs would make the batch so many times larger
    return arguments
