"""Checkpoints that are whole or not there, as often as they are wanted, and runs that go on from them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments

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
        last = checkpoints.last_checkpoint(self.folder)
        if last is None:
            self.begin_anew()
        elif checkpoints.ended_training(last):
            self.take_over(last)
        else:
            self.take_up(last)

    def begin_anew(self) -> None:
        self.train()

    def take_up(self, checkpoint: Path) -> None:
        """Goes on from a checkpoint as if nothing had happened."""
        self.train(resume_from_checkpoint=str(checkpoint))

    def take_over(self, checkpoint: Path) -> None:
        """The end of a run that was stopped after its last step."""
        self.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        best = self.folder / f"checkpoint-{self.state.best_global_step}"
        self.load_weights(best if best.is_dir() else checkpoint)

    def load_weights(self, checkpoint: Path) -> None:
        self._load_from_checkpoint(str(checkpoint))

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
        if self.state.best_global_step == self.state.global_step:
            self.state.best_model_checkpoint = str(self.folder / name)
        if self.args.should_save:
            self.state.save_to_json(str(self.folder / checkpoints.UNFINISHED / name / "trainer_state.json"))
            checkpoints.put_in_place(self.folder, name)
            checkpoints.keep_only(self.folder, self.checkpoints_kept, self.state.best_model_checkpoint)
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
