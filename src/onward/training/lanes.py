"""Block-recurrent models are trained on lanes: each row follows a document from step to step, with its state."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset
from transformers import TrainingArguments

from ..data.segments import Lanes
from ..data.tokens import TokenizedDocument
from ..models.block_recurrent import BlockRecurrentForCausalLM, BlockState
from ..utils.fields import FieldError
from .checkpoints import lanes_file, lanes_in, saved_lanes
from .feed import MASKING_FIELDS, WINDOW_FIELDS, Feed


class LaneFeed(Feed):
    kind = "block-recurrent"
    unused_fields = WINDOW_FIELDS + MASKING_FIELDS
    sampling = "sequential"  # Lanes shuffle the documents themselves
    ends_documents = True
    every_gradient = True
    model: BlockRecurrentForCausalLM

    def check(self) -> None:
        self.runs_piecewise = self.model.config.feedback or self.recipe.gradient_checkpointing

    @property
    def length(self) -> int:
        return self.model.config.segment_length

    def data(self, documents: Sequence[TokenizedDocument]) -> tuple[Dataset, int]:
        epochs = math.ceil(self.recipe.epochs)
        if self.recipe.max_tokens is not None:
            # One more than is needed, so that no lane is idle when the run ends.
            epochs = min(epochs, math.ceil(self.recipe.max_tokens / sum(map(len, documents))) + 1)
        most = epochs * len(documents)
        if self.recipe.tokens_per_step is not None and self.rows > most:
            problem = (
                f"it makes {self.rows} lanes, and there are only {most} documents in {epochs} epochs; use a batch_size "
                f"of at most {most} instead, or more epochs"
            )
            raise FieldError("tokens_per_step", self.recipe.tokens_per_step, problem)
        return Lanes(documents, self.rows, self.length, epochs=epochs, seed=self.recipe.seed), epochs

    def tokens_per_step(self, dataset: Any, documents: Sequence[TokenizedDocument], epochs: int) -> float:
        """While no lane is idle, as some are at the end."""
        segments = sum(math.ceil(len(document) / self.length) for document in documents)
        return self.rows * sum(map(len, documents)) / segments

    def share(self, dataset: Any, step: int) -> float:
        """At the end lanes are idle, and a step with few tokens must not change as much as others."""
        return max(1, dataset.reading(step)) / dataset.lanes

    def pieces(self, length: int) -> Iterator[tuple[int, int]]:
        window = self.model.config.window  # whole segments would need far larger logits, and be no faster
        for start in range(0, length, window):
            yield start, start + window

    def carried(self, arguments: TrainingArguments) -> CarriedStates:
        return CarriedStates(self.rows, arguments)

    def decays(self, parameter: str) -> bool:
        # All matrices are weights of a module; scales, gates' biases, state ids and initial states are not.
        return parameter.endswith(".weight")


class CarriedStates:
    """The states of this process's lanes, a group of lanes for each batch of a step.

    Trainer deals batches out in turn: batch k of a step, with the lanes from k times its size on, goes to process
    k % processes. So a lane stays with its process, and comes back at the same turn of the next step.
    """

    def __init__(self, lanes: int, arguments: TrainingArguments):
        size, processes = arguments.per_device_train_batch_size, arguments.world_size
        turns = range(arguments.gradient_accumulation_steps)
        batches = [turn * processes + arguments.process_index for turn in turns]
        self.lanes, self.device = lanes, arguments.device
        self.groups = [range(batch * size, (batch + 1) * size) for batch in batches]
        self.states: list[BlockState | None] = [None for _ in turns]
        self.turn = 0

    def before(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch, with the states that its rows continue from."""
        return {**batch, "state": self.states[self.turn]}

    def after(self, state: BlockState) -> None:
        """Keeps the states that the batch has left."""
        # Back-propagation ends with the step. Contiguous, as from a checkpoint: other strides may round otherwise.
        self.states[self.turn] = state._map(lambda t: t.detach().contiguous())
        self.turn = (self.turn + 1) % len(self.states)

    # -- checkpoints: a file for each group, with the numbers of its lanes in its name

    def save(self, checkpoint: Path) -> None:
        checkpoint.mkdir(parents=True, exist_ok=True)
        for group, state in zip(self.groups, self.states, strict=True):
            assert state is not None  # checkpoints come after steps
            state.save(checkpoint / lanes_file(group, self.lanes))

    def load(self, checkpoint: Path) -> None:
        """Looks each lane up, since the number of processes, or of lanes at once, may have changed."""
        files = [(file, lanes_in(file)) for file in saved_lanes(checkpoint)]
        self.states = [self._load_group(files, group) for group in self.groups]
        self.turn = 0

    def _load_group(self, files: list[tuple[Path, range]], group: range) -> BlockState:
        parts = []
        for file, lanes in files:
            rows = [lane - lanes.start for lane in group if lane in lanes]
            if rows:
                state = BlockState.load(file)
                parts.append(state if len(rows) == state.batch_size else state.select(rows))
        if sum(part.batch_size for part in parts) < len(group):
            raise FileNotFoundError(
                f"{files[0][0].parent if files else 'the checkpoint'} lacks the carried state of some of the lanes "
                f"{group.start} to {group.stop - 1}: delete that folder, to resume from the checkpoint before"
            )
        return (parts[0] if len(parts) == 1 else BlockState.join(parts)).to(self.device)
