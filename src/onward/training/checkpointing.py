"""A Trainer that starts, resumes and finishes runs, and writes checkpoints that are whole or absent."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerState, TrainingArguments

from ..utils.files import DamagedFile
from ..utils.processes import told_by_the_first
from ..utils.provenance import provenance
from . import checkpoints
from .progress import Stopwatch

LOGGED = {
    "step": "step",
    "num_input_tokens_seen": "tokens",
    "loss": "loss",
    "eval_loss": "validation_loss",
    "learning_rate": "learning_rate",
    "grad_norm": "grad_norm",
}
"""What an entry of Trainer's log is called in a history."""


class NonFiniteLossError(ArithmeticError):
    """The loss or its gradient is NaN or infinite; the weights are as they were before that step."""


class CheckpointingTrainer(Trainer):
    """Resumes exactly after a kill, and stops with an error at a loss that is not finite. It does not know what it
    trains: subclasses add state to checkpoints with `save_extra`, and load it in `resume`."""

    _saving = False

    def __init__(
        self,
        model: Any,
        arguments: TrainingArguments,
        *,
        callbacks: Sequence[TrainerCallback] = (),
        save_every_steps: int | None = None,
        save_every_minutes: float | None = None,
        **kwargs: Any,
    ):
        own = [Stopwatch(), SaveMoreOften(save_every_steps, save_every_minutes)]
        super().__init__(model, arguments, callbacks=[*own, *callbacks], **kwargs)
        self.remove_callback(PrinterCallback)

    @property
    def folder(self) -> Path:
        return Path(str(self.args.output_dir))

    @property
    def checkpoints_kept(self) -> int:
        return 2  # disks have faults

    # -- start, resume, finish

    def start_or_resume(self) -> None:
        step = told_by_the_first(self._find_start)
        last = self._checkpoint(step)
        if last is None:
            self.start()
        elif checkpoints.ended_training(last):
            self.finish(last)
        else:
            self.resume(last)

    def start(self) -> None:
        """Trains from the first step."""
        self.train()

    def resume(self, checkpoint: Path) -> None:
        """Continues from a checkpoint with the losses that an uninterrupted run would have had."""
        self.train(resume_from_checkpoint=str(checkpoint))

    def finish(self, checkpoint: Path) -> None:
        """Loads the best model of a run that was stopped after its last step."""
        self.state = TrainerState.load_from_json(str(checkpoint / checkpoints.STATE))
        told_by_the_first(self._check_best)
        self.load_weights(self.best or checkpoint)

    def load_weights(self, checkpoint: Path) -> None:
        self._load_from_checkpoint(str(checkpoint))

    def _find_start(self) -> int:
        """The step to resume from; 0 for a new run."""
        last = checkpoints.last_whole(self.folder)
        if last is None:
            return 0
        best = checkpoints.best_at(last)
        if best is not None and best != last and (fault := checkpoints.fault_of(best)):
            warnings.warn(
                f"{fault}: it is the run's best checkpoint, and without it the run cannot end unless a later one is "
                "better; put a copy of it back",
                stacklevel=2,
            )
        return checkpoints.step_of(last)

    def _checkpoint(self, step: int | None) -> Path | None:
        return self.folder / f"checkpoint-{step}" if step else None

    # -- a loss that is not finite

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)
        self.require_finite("loss", loss, self.state.global_step + 1)
        return loss

    def require_finite(self, what: str, value: Any, step: int) -> None:
        if not math.isfinite(value):
            raise NonFiniteLossError(f"at step {step} the {what} is {float(value)}{self.advice_if_not_finite()}")

    def advice_if_not_finite(self) -> str:
        return ""

    # -- what the run came to

    def record(self) -> dict[str, Any]:
        """What every saved result says about its training."""
        names = LOGGED.items()
        entries = [{ours: e[theirs] for theirs, ours in names if theirs in e} for e in self.state.log_history]
        return {
            "steps": self.state.global_step,
            "tokens": self.state.num_input_tokens_seen,
            "seconds": self._seconds(),
            **provenance(device=str(self.args.device), processes=self.args.world_size),
            "history": [entry for entry in entries if "loss" in entry or "validation_loss" in entry],
        }

    def _seconds(self) -> float:
        watch = next(cb for cb in self.callback_handler.callbacks if isinstance(cb, Stopwatch))
        if watch.started is None:  # nothing was left to train: the checkpoint knows
            return self.state.stateful_callbacks["Stopwatch"]["attributes"]["seconds_before"]  # type: ignore[call-overload, index]
        return watch.seconds

    # -- the best checkpoint

    @property
    def best(self) -> Path | None:
        """Known by its step: paths in a checkpoint are those of the machine and the folder that it was written in."""
        return self._checkpoint(self.state.best_global_step)

    def _restore_path_of_best(self) -> None:
        self.state.best_model_checkpoint = None if self.best is None else str(self.best)

    def _init_training_state(self, *args: Any, **kwargs: Any) -> Any:
        done = super()._init_training_state(*args, **kwargs)
        self._restore_path_of_best()
        return done

    def _check_best(self) -> int:
        if self.best is not None and (fault := checkpoints.fault_of(self.best)):
            raise DamagedFile(
                f"{fault}: it is the best model of this run, and no other is saved in its place. Put a copy of it "
                f"back and run the same again; or delete all checkpoints in {self.folder} to begin anew"
            )
        return 0

    def _load_best_model(self) -> None:
        told_by_the_first(self._check_best)
        super()._load_best_model()

    # -- writing checkpoints

    def save_extra(self, checkpoint: Path) -> None:
        """Adds files that Trainer does not know of."""

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.folder / checkpoints.UNFINISHED) if self._saving else super()._get_output_dir(trial)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        if self.args.should_save:
            checkpoints.discard_unfinished(self.folder)
        self.accelerator.wait_for_everyone()
        name = f"checkpoint-{self.state.global_step}"
        with checkpoints.writing(self.folder / name, self.folder):
            self._write_checkpoint(model, trial, name)

    def _write_checkpoint(self, model: nn.Module, trial: Any, name: str) -> None:
        unfinished = self.folder / checkpoints.UNFINISHED / name
        self._saving = True
        try:
            super()._save_checkpoint(model, trial)
            self.save_extra(unfinished)
        finally:
            self._saving = False
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            self.state.best_model_checkpoint = None
            self.state.save_to_json(str(unfinished / checkpoints.STATE))
            checkpoints.put_in_place(self.folder, name)
            checkpoints.keep_only(self.folder, self.checkpoints_kept, self.best)
        self._restore_path_of_best()
        self.accelerator.wait_for_everyone()


class SaveMoreOften(TrainerCallback):
    """Checkpoints between validations, which Trainer itself does not allow when it is to keep the best."""

    def __init__(self, every_steps: int | None, every_minutes: float | None):
        self.every_steps, self.every_minutes = every_steps, every_minutes
        self.last = time.monotonic()

    def on_train_begin(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        self.last = time.monotonic()

    on_save = on_train_begin

    def on_step_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        due = self.every_steps is not None and state.global_step % self.every_steps == 0
        logged = state.global_step % args.logging_steps == 0  # the mean of steps not logged yet would be lost
        if due or logged and self._is_late(args):
            control.should_save = True

    def _is_late(self, args: TrainingArguments) -> bool:
        if self.every_minutes is None:
            return False
        late = time.monotonic() - self.last >= 60 * self.every_minutes
        if args.world_size > 1:  # all save, or none: the first process's watch counts
            decision = torch.tensor(int(late), device=args.device)
            torch.distributed.broadcast(decision, 0)
            late = bool(decision)
        return late
