"""transformers' Trainer, and the little that recurrence needs beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerState
from transformers.trainer_utils import EvalLoopOutput

from .. import streams, windows
from ..models.window_recurrent import CARRIERS, WindowRecurrentForCausalLM
from ..state import WindowState
from . import checkpoints
from .recipe import TrainingRecipe

IGNORED = streams.IGNORED


class NonFiniteLossError(ArithmeticError):
    """The loss, or its gradient, is not a number any more; the weights were not touched by it."""


def collate(segments: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """A batch with a mask even where nothing is padded: Trainer counts tokens by it."""
    batch = streams.collate(segments)
    batch.setdefault("attention_mask", torch.ones_like(batch["input_ids"]))
    return batch


class SaveMoreOften(TrainerCallback):
    """Checkpoints between validations, which Trainer itself does not allow when it is to keep the best."""

    def __init__(self, every_steps: int):
        self.every_steps = every_steps

    def on_step_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        if state.global_step % self.every_steps == 0:
            control.should_save = True


class RecurrentTrainer(Trainer):
    """Two learning rates, a validation loss per token over whole documents, checkpoints that are whole or not
    there, and an end with an error where the loss is no number."""

    model: WindowRecurrentForCausalLM

    def __init__(self, *args: Any, recipe: TrainingRecipe, **kwargs: Any):
        self.recipe = recipe
        self._saving = False
        super().__init__(*args, **kwargs)

    @property
    def folder(self) -> Path:
        return Path(str(self.args.output_dir))

    # -- optimiser

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            kind, options = self.get_optimizer_cls_and_kwargs(self.args, self.model)
            self.optimizer = kind(self._parameter_groups(), **options)
        return self.optimizer

    def _parameter_groups(self) -> list[dict[str, Any]]:
        decaying = set(self.get_decay_parameter_names(self.model))
        groups: dict[tuple[str, bool], list[nn.Parameter]] = {}
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                part = "carrier" if name.startswith("carrier.") else "backbone"
                groups.setdefault((part, name in decaying), []).append(parameter)
        return [
            {
                "params": parameters,
                "lr": self.recipe.rate_of(part),
                "weight_decay": self.args.weight_decay if decays else 0.0,
            }
            for (part, decays), parameters in groups.items()
        ]

    # -- one step

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)
        self._require_finite("loss", loss, self.state.global_step + 1)
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm)
        # When another process's loss is bad, this one learns of it here.
        self._require_finite("gradient's norm", norm, self.state.global_step + 1)
        return norm

    def _require_finite(self, what: str, value: Any, step: int) -> None:
        if math.isfinite(value):
            return
        last = checkpoints.last_checkpoint(self.folder)
        kept = f"the last good checkpoint is {last}" if last else "there is no checkpoint yet"
        raise NonFiniteLossError(
            f"at step {step} the {what} is {float(value)}: training has stopped, nothing was saved since, "
            f"and {kept}. Try a smaller learning rate, or more warm-up steps"
        )

    # -- validation

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """The mean loss of a token. Trainer's own loop weighs short documents like long ones, and has the
        model make logits of whole documents."""
        self.model.eval()
        self.callback_handler.eval_dataloader = dataloader
        totals = torch.zeros(2, dtype=torch.float64)
        for batch in dataloader:
            of_rows = document_losses(self.model, self._prepare_inputs(batch))
            # Several processes share the documents; copies that only fill up the last batch are left out.
            totals += self.accelerator.gather_for_metrics(of_rows).sum(0).cpu()
            self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        loss, tokens = totals.tolist()
        self._require_finite("validation loss", loss, self.state.global_step)
        metrics = {f"{metric_key_prefix}_loss": loss / tokens, f"{metric_key_prefix}_tokens": int(tokens)}
        return EvalLoopOutput(
            predictions=None,  # type: ignore[arg-type]
            label_ids=None,
            metrics=metrics,
            num_samples=len(dataloader.dataset),  # type: ignore[arg-type]
        )

    # -- checkpoints

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.folder / checkpoints.UNFINISHED) if self._saving else super()._get_output_dir(trial)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Trainer writes into a folder aside, which then takes its place at once."""
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
        finally:
            self._saving = False
        self.accelerator.wait_for_everyone()
        if self.state.best_global_step == self.state.global_step:
            self.state.best_model_checkpoint = str(self.folder / name)
        if self.args.should_save:
            self.state.save_to_json(str(self.folder / checkpoints.UNFINISHED / name / "trainer_state.json"))
            checkpoints.put_in_place(self.folder, name)
            checkpoints.keep_only(self.folder, self.recipe.save_total_limit, self.state.best_model_checkpoint)
        self.accelerator.wait_for_everyone()

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Trainer would also warn of tied weights, which are saved once, under another name."""
        places = {name: tensor.data_ptr() for name, tensor in self.model.state_dict().items()}
        loaded = {place for name, place in places.items() if name not in load_result.missing_keys}
        lost = [name for name in load_result.missing_keys if places.get(name) not in loaded]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=lost))

    def take_over(self, checkpoint: Path) -> None:
        """The end of a run that was stopped between its last checkpoint and the saving of its result."""
        self.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        best = self.folder / f"checkpoint-{self.state.best_global_step}"
        self._load_from_checkpoint(str(best if best.is_dir() else checkpoint))

    # -- the control

    def start_constant(self) -> None:
        """Gives the carrier "constant" the mean of the memories that the carrier it stands for has after the
        first batch."""
        with torch.random.fork_rng():
            batch = self._prepare_inputs(next(iter(self.get_train_dataloader())))
            memories = real_memories(self.model, batch)
        # Each process has read another part of the batch.
        sums = [self.accelerator.reduce(m.sum(0, keepdim=True), reduction="sum") for m in memories]
        count = self.accelerator.reduce(
            torch.tensor(len(memories[0]), device=self.args.device), reduction="sum"
        )
        if count > 0:
            self.model.carrier.start_from(tuple(total / count for total in sums))  # type: ignore[operator]


@torch.no_grad()
def real_memories(model: WindowRecurrentForCausalLM, batch: Mapping[str, Tensor]) -> list[Tensor]:
    """What a new carrier of the kind that the model's constant stands for carries after the batch, of the
    rows that carry something; the floating-point parts only."""
    constant, was_training = model.carrier, model.training
    model.carrier = CARRIERS[model.config.stands_for](model.config).to(model.device, model.dtype)
    model.eval()
    try:
        # No one looks at the logits; one is the fewest that can be asked for.
        state = model(batch["input_ids"], batch["attention_mask"], use_cache=False, logits_to_keep=1).state
    finally:
        model.carrier = constant
        model.train(was_training)
    rows = torch.tensor(state.has_memory, device=model.device)
    return [part[rows] for part in state.memory if part.is_floating_point()]


@torch.no_grad()
def document_losses(model: WindowRecurrentForCausalLM, batch: Mapping[str, Tensor]) -> Tensor:
    """Per row the total loss and the number of labels, [B, 2]. The documents are read on window by window, so
    that only one window's logits are there at a time, and rows that have ended are read no further."""
    lengths = batch["attention_mask"].sum(1)
    totals = torch.zeros(len(lengths), 2, dtype=torch.float64, device=lengths.device)
    rows = torch.arange(len(lengths), device=lengths.device)
    state: WindowState | None = None
    for window in windows.windows(int(lengths.max()), model.config.window, model.config.overlap):
        alive = (lengths[rows] > window.scored).nonzero()[:, 0]
        if state is not None and len(alive) < len(rows):
            rows, state = rows[alive], state.select(alive)
        columns = slice(window.scored, window.stop)
        mask, labels = (batch[name][rows, columns] for name in ("attention_mask", "shift_labels"))
        output = model(batch["input_ids"][rows, columns], mask, state=state, use_cache=False)
        state = output.state
        losses = nn.functional.cross_entropy(
            output.logits.float().transpose(1, 2), labels, ignore_index=IGNORED, reduction="none"
        )
        totals[rows, 0] += losses.double().sum(1)
        totals[rows, 1] += (labels != IGNORED).double().sum(1)
    return totals
