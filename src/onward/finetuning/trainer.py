"""A Trainer for fine-tuning: batches of like length that resume exactly, and logits of rows in their order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.data import SequentialSampler
from transformers.trainer_pt_utils import LengthGroupedSampler

from ..training import NonFiniteLossError, checkpoints
from ..training.checkpointing import CheckpointingTrainer

ORDER = "order.safetensors"


class ByLength(LengthGroupedSampler):
    """transformers' own draws an epoch's order from torch's random numbers. This one keeps their state, so that a run
    resumed within an epoch draws the same order."""

    random_state: Tensor | None = None
    restored: Tensor | None = None

    def __iter__(self) -> Iterator[int]:
        if self.restored is None:
            self.random_state = torch.get_rng_state()
            return super().__iter__()
        self.random_state, self.restored = self.restored, None
        with torch.random.fork_rng([]):
            torch.set_rng_state(self.random_state)
            return super().__iter__()


class FineTuner(CheckpointingTrainer):
    order: ByLength | None = None
    resumed_from: Path | None = None

    def resume(self, checkpoint: Path) -> None:
        self.resumed_from = checkpoint
        super().resume(checkpoint)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        if self.args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        assert self.train_dataset is not None
        self.order = ByLength(self.args.train_batch_size, self.train_dataset)
        steps = math.ceil(len(self.train_dataset) / self.args.train_batch_size)  # type: ignore[arg-type]
        if self.resumed_from is not None and checkpoints.step_of(self.resumed_from) % steps:  # within an epoch
            self.order.restored = load_file(self.resumed_from / ORDER)["drawn_from"]
        return self.order

    def save_extra(self, checkpoint: Path) -> None:
        if self.order is not None and self.order.random_state is not None:
            save_file({"drawn_from": self.order.random_state}, checkpoint / ORDER)

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        return SequentialSampler(eval_dataset)  # Trainer's own follows `train_sampling_strategy`

    def logits(self, inputs: Any) -> tuple[np.ndarray, ...]:
        """One array for a label, two for a span."""
        found = self.predict(inputs).predictions
        logits = found if isinstance(found, tuple) else (found,)
        if not all(np.isfinite(array).all() for array in logits[:2]):
            raise NonFiniteLossError(f"after step {self.state.global_step} the model's logits are not finite")
        return logits
