"""transformers' Trainer with what recurrence needs beside it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import Adafactor, PreTrainedModel, TrainerCallback
from transformers.trainer_utils import EvalLoopOutput

from . import checkpoints
from .checkpointing import CheckpointingTrainer
from .feed import Feed, never_empty
from .fsdp import as_long_everywhere, check_fsdp

# Steps relative to the size of each parameter, and momentum, as the paper's authors set them.
ADAFACTOR: dict[str, Any] = {
    "scale_parameter": True,
    "relative_step": False,
    "warmup_init": False,
    "beta1": 0.9,
    "decay_rate": -0.8,
}


def inverse_sqrt(steps_done: int, warmup_steps: int, ramp_steps: int) -> float:
    """The factor of the learning rate in the next step.

    `ramp_steps`, fewer than `warmup_steps` in a short run, only say how fast the rate rises. The peak stays at
    1 / sqrt(warmup_steps): with fewer of those it would be too high.
    """
    step = steps_done + 1
    return min(1.0, step / max(ramp_steps, 1)) / math.sqrt(max(step, warmup_steps))


class EveryGradient(TrainerCallback):
    """Gives a gradient of zeros to parameters that a step did not use, such as a document's initial state where none
    began. Optimizers skip parameters without a gradient and do not count the step for them; with several processes all
    have one, so one process does the same."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):  # type: ignore[no-untyped-def]
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


class RecurrentTrainer(CheckpointingTrainer):
    """Adds state that is carried from step to step, the papers' optimizers and learning rates, and a validation loss
    per token over whole documents. What depends on the kind of model is its `Feed`."""

    model: PreTrainedModel

    def __init__(self, *args: Any, feed: Feed, **kwargs: Any):
        self.feed, self.recipe = feed, feed.recipe
        super().__init__(*args, **kwargs)
        if self.is_fsdp_enabled:
            check_fsdp(feed, self.accelerator.state.fsdp_plugin)
        self.carried = feed.carried(self.args)

    # -- optimiser

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            groups = self._parameter_groups(self.model if model is None else model)
            if self.recipe.optimizer == "adafactor":
                self.optimizer = Adafactor(groups, **ADAFACTOR)
            else:
                kind, options = self.get_optimizer_cls_and_kwargs(self.args, self.model)
                self.optimizer = kind(groups, **options)
        return self.optimizer

    def _parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        decaying = set(self.get_decay_parameter_names(model))
        groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                kind = self.feed.learning_rate(name), name in decaying and self.feed.decays(name)
                groups.setdefault(kind, []).append(parameter)
        return [
            {"params": parameters, "lr": rate, "weight_decay": self.args.weight_decay if decays else 0.0}
            for (rate, decays), parameters in groups.items()
        ]

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        if self.lr_scheduler is not None:
            return self.lr_scheduler
        if self.recipe.schedule == "inverse_sqrt":
            ramp = self.args.get_warmup_steps(num_training_steps)
            factor = partial(inverse_sqrt, warmup_steps=self.recipe.warmup_steps, ramp_steps=ramp)
            self.lr_scheduler = LambdaLR(optimizer or self.create_optimizer(), factor)
            self._created_lr_scheduler = True
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        assert isinstance(scheduler, LambdaLR)
        scheduler.lr_lambdas = [self._by_share(rate) for rate in scheduler.lr_lambdas]
        return scheduler

    def _by_share(self, rate: Callable[[int], float]) -> Callable[[int], float]:
        return lambda step: rate(step) * self.feed.share(self.train_dataset, step)

    # -- one step

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        with self.feed.during(self.state.global_step):  # with its gradients, for which windows may be read again
            return super().training_step(*args, **kwargs)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        if self.carried:
            inputs = self.carried.before(inputs)
        if self.is_fsdp_enabled:
            inputs["attention_mask"] = never_empty(inputs["attention_mask"])
        with self.accelerator.autocast():
            inputs = self.feed.prepared(inputs)
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if self.carried:
            self.carried.after(outputs["state"])
        return (loss, outputs) if return_outputs else loss

    def _get_num_items_in_batch(self, *args: Any, **kwargs: Any) -> Any:
        """A step may hold only the last token of a document, which has no label; its loss is 0, not 0 / 0."""
        count = super()._get_num_items_in_batch(*args, **kwargs)
        return count.clamp(min=1) if isinstance(count, Tensor) else count

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm)
        # A process learns here that another one's loss is not finite.
        self.require_finite("gradient's norm", norm, self.state.global_step + 1)
        return norm

    def advice_if_not_finite(self) -> str:
        kept = checkpoints.what_is_kept(self.folder)
        return f": training has stopped, and {kept}. Try a smaller learning rate, or more warm-up steps"

    # -- validation

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Keeps torch's random numbers, from which data loaders draw, so that validating changes no training."""
        devices = [self.args.device] if self.args.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            return super().evaluate(*args, **kwargs)

    @torch.no_grad()
    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """The mean loss of a token. Trainer's own loop gives short documents the weight of long ones, and computes
        logits of whole documents."""
        self.model.eval()
        self.callback_handler.eval_dataloader = dataloader
        totals = torch.zeros(2, dtype=torch.float64)
        for batch in dataloader:
            batch = self._prepare_inputs(batch)
            if self.is_fsdp_enabled:
                batch = as_long_everywhere(batch, self.accelerator)
            row_totals = self.feed.losses(self.model, batch)
            # Several processes share the documents; copies that only fill up the last batch are left out.
            totals += self.accelerator.gather_for_metrics(row_totals).sum(0).cpu()
            self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        loss, tokens = totals.tolist()
        self.require_finite("validation loss", loss, self.state.global_step)
        metrics = {f"{metric_key_prefix}_loss": loss / tokens, f"{metric_key_prefix}_tokens": int(tokens)}
        return EvalLoopOutput(
            predictions=None,  # type: ignore[arg-type]
            label_ids=None,
            metrics=metrics,
            num_samples=len(dataloader.dataset),  # type: ignore[arg-type]
        )

    # -- checkpoints

    @property
    def checkpoints_kept(self) -> int:
        return self.recipe.save_total_limit

    def save_extra(self, checkpoint: Path) -> None:
        if self.carried:
            self.carried.save(checkpoint)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Silences Trainer's warning of tied weights, which are saved once, under another name."""
        places = {name: tensor.data_ptr() for name, tensor in self.model.state_dict().items()}
        loaded = {place for name, place in places.items() if name not in load_result.missing_keys}
        lost = [name for name in load_result.missing_keys if places.get(name) not in loaded]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=lost))

    def whole_weights(self) -> dict[str, Tensor] | None:
        """The gathered parameters where processes share them (FSDP); all processes must call this."""
        sharded = any(isinstance(parameter, DTensor) for parameter in self.model.parameters())
        return self.accelerator.get_state_dict(self.model) if sharded else None

    def start(self) -> None:
        self.feed.before_first_step(self)
        super().start()

    def resume(self, checkpoint: Path) -> None:
        if self.carried:
            self.carried.load(checkpoint)
        super().resume(checkpoint)

    def load_weights(self, checkpoint: Path) -> None:
        if self.is_fsdp_enabled:  # to finish a run, parameters are not sharded
            self.model.load_state_dict(type(self.model).from_pretrained(checkpoint).state_dict())
        else:
            super().load_weights(checkpoint)
