"""Window-recurrent models are trained on segments: state is carried within a segment, and each starts anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..data.segments import Segments
from ..data.tokens import TokenizedDocument
from ..models.window_recurrent import CARRIERS, WindowRecurrentForCausalLM, WindowRecurrentModel
from ..ops import windows
from .feed import MASKING_FIELDS, Feed
from .trainable import trainable

if TYPE_CHECKING:
    from .trainer import RecurrentTrainer


class SegmentFeed(Feed):
    kind = "window-recurrent"
    unused_fields = MASKING_FIELDS
    sampling = "random"
    model: WindowRecurrentForCausalLM

    @property
    def length(self) -> int:
        config = self.model.config
        return windows.segment_length(self.recipe.windows_per_segment, config.window, config.overlap)

    def data(self, documents: Sequence[TokenizedDocument]) -> tuple[Dataset, int]:
        return Segments(documents, self.length, min_length=min(2, self.length)), 1

    def check_documents(self, documents: Sequence[TokenizedDocument]) -> None:
        window, longest = self.model.config.window, max(map(len, documents))
        if self.model.config.carrier != "none" and longest < window + 2:
            raise ValueError(
                f"the training documents are too short: the longest has {longest} tokens and fits into one "
                f"window of {window}, so that nothing is ever carried; use longer documents or a smaller window"
            )

    def pieces(self, length: int) -> Iterator[tuple[int, int]]:
        for window in windows.windows(length, self.model.config.window, self.model.config.overlap):
            yield window.scored, window.stop

    @property
    def runs_piecewise(self) -> bool:
        return True  # window by window

    def trainable(self) -> AbstractContextManager[None]:
        return trainable(self.model, self.recipe)

    def learning_rate(self, parameter: str) -> float:
        return self.recipe.rate_of("carrier" if parameter.startswith("carrier.") else "backbone")

    def before_first_step(self, trainer: RecurrentTrainer) -> None:
        """Starts the carrier "constant" from the mean memory that the carrier it stands for has after the first
        batch."""
        if self.model.config.carrier != "constant":
            return
        with torch.random.fork_rng():
            batch = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
            ids, mask = batch["input_ids"], batch["attention_mask"]
            # The logits are not needed; one is the fewest that can be asked for.
            run = partial(self.model, ids, mask, use_cache=False, logits_to_keep=1)
            memories = real_memories(self.model, run)
        # Each process has another part of the batch.
        reduce = trainer.accelerator.reduce
        sums = [reduce(m.sum(0, keepdim=True), reduction="sum") for m in memories]
        count = reduce(torch.tensor(len(memories[0]), device=trainer.args.device), reduction="sum")
        if count > 0:
            self.model.carrier.start_from(tuple(total / count for total in sums))  # type: ignore[operator]


@torch.no_grad()
def real_memories(model: WindowRecurrentModel, run: Callable[[], Any]) -> list[Tensor]:
    """The memories that a new carrier of the kind that the model's constant stands for has after `run`, of the rows
    that carry something; floating-point parts only."""
    constant, was_training = model.carrier, model.training
    model.carrier = CARRIERS[model.config.stands_for](model.config).to(model.device, model.dtype)
    model.eval()
    try:
        state = run().state
    finally:
        model.carrier = constant
        model.train(was_training)
    rows = torch.tensor(state.has_memory, device=model.device)
    return [part[rows] for part in state.memory if part.is_floating_point()]
