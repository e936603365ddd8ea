"""Checkpoints that are whole or not there, as often as they are wanted, and runs that go on from them."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments

from ..utils.files import DamagedFile
from ..utils.processes import told_by_the_first
from . import checkpoints


class SavingTrainer(Trainer):
    """Trainer writes a checkpoint into a folder aside, which then takes its place at once."""

    _saving = False

    @property
    def checkpoints_kept(self) -> int:
        return 2  # disks have faults

    @property
    def folder(self) -> Path:
        return Path(str(self.args.output_dir))

    def save_beside(self, checkpoint: Path) -> None:
        """What Trainer does not know of."""

    # -- where a run begins

    def begin(self) -> None:
        """Anew, or where it was killed."""
        step = told_by_the_first(self._find_beginning)
        last = self._checkpoint(step)
        if last is None:
            self.begin_anew()
        elif checkpoints.ended_training(last):
            self.take_over(last)
        else:
            self.take_up(last)

    def _find_beginning(self) -> int:
        """The step to go on from, 0 for the beginning."""
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

    def begin_anew(self) -> None:
        self.train()

    def take_up(self, checkpoint: Path) -> None:
        """Goes on from a checkpoint as if nothing had happened."""
        self.train(resume_from_checkpoint=str(checkpoint))

    def take_over(self, checkpoint: Path) -> None:
        """The end of a run that was stopped after its last step."""
        self.state = TrainerState.load_from_json(str(checkpoint / checkpoints.STATE))
        told_by_the_first(self._check_best)
        self.load_weights(self.best or checkpoint)

    def load_weights(self, checkpoint: Path) -> None:
        self._load_from_checkpoint(str(checkpoint))

    # -- the best

    @property
    def best(self) -> Path | None:
        """Known by its step: paths in a checkpoint are those of the machine and the folder that it was written in."""
        return self._checkpoint(self.state.best_global_step)

    def _know_best(self) -> None:
        self.state.best_model_checkpoint = None if self.best is None else str(self.best)

    def _init_training_state(self, *args: Any, **kwargs: Any) -> Any:
        done = super()._init_training_state(*args, **kwargs)
        self._know_best()
        return done

    def _check_best(self) -> int:
        if self.best is not None and (fault := checkpoints.fault_of(self.best)):
            raise DamagedFile(
                f"{fault}: the best model of this run is there, and no other is saved in its place. Put a copy of it "
                f"back and run the same again; or delete all checkpoints in {self.folder} to begin anew"
            )
        return 0

    def _load_best_model(self) -> None:
        told_by_the_first(self._check_best)
        super()._load_best_model()

    # -- checkpoints

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
        self._saving = True
        try:
            super()._save_checkpoint(model, trial)
            self.save_beside(self.folder / checkpoints.UNFINISHED / name)
        finally:
            self._saving = False
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            self.state.best_model_checkpoint = None
            self.state.save_to_json(str(self.folder / checkpoints.UNFINISHED / name / checkpoints.STATE))
            checkpoints.put_in_place(self.folder, name)
            checkpoints.keep_only(self.folder, self.checkpoints_kept, self.best)
        self._know_best()
        self.accelerator.wait_for_everyone()


class SaveMoreOften(TrainerCallback):
    """Checkpoints between validations, which Trainer itself does not allow when it is to keep the best."""

    def __init__(self, every_steps: int | None, every_minutes: float | None):
        self.every_steps, self.every_minutes = every_steps, every_minutes
        self.last = time.monotonic()

    def on_train_begin(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        self.last = time.monotonic()

    def on_save(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        self.last = time.monotonic()

    def on_step_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        due = self.every_steps is not None and state.global_step % self.every_steps == 0
        logged = state.global_step % args.logging_steps == 0  # or a mean over steps would not survive
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
