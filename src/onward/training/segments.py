"""Window-recurrent models are trained on segments: state is carried within a segment, and each starts anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..data.segments import Segments
from ..data.tokens import TokenizedDocument
from ..models.window_recurrent import CARRIERS, WindowRecurrentForCausalLM, WindowRecurrentModel
from ..ops import windows
from ..utils.fields import FieldError
from .adapters import add_lora, merge_lora
from .feed import MASKING_FIELDS, Feed
from .sizes import check_sizes, drawn_size
from .teacher import Teacher, check_teacher, fingerprint

if TYPE_CHECKING:
    from .trainer import RecurrentTrainer


class SegmentFeed(Feed):
    kind = "window-recurrent"
    unused_fields = MASKING_FIELDS
    sampling = "random"
    runs_piecewise = True  # window by window
    model: WindowRecurrentForCausalLM
    teacher: Teacher | None = None

    def check(self) -> None:
        check_sizes(self.recipe, self.model)
        check_teacher(self.recipe, self.model, self.length)

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

    @contextmanager
    def trainable(self) -> Iterator[None]:
        """Inside this context only what the recipe names is trained. LoRA adapters are merged at the end."""
        model, trained = self.model, self.recipe.train
        if trained == "carrier" and not any(p.requires_grad for p in model.carrier.parameters()):
            problem = f"the carrier {model.config.carrier!r} has no trainable parameters; choose 'all' or 'lora'"
            raise FieldError("train", "carrier", problem)
        before = {parameter: parameter.requires_grad for parameter in model.parameters()}
        if trained != "all":
            model.backbone.requires_grad_(False)
        if trained == "lora":
            add_lora(model, self.recipe.lora_rank)
        if self.recipe.teacher is not None and self.recipe.teacher_share:
            self.teacher = Teacher(model.backbone, trained)
        try:
            yield
        finally:
            self.teacher = None
            if trained == "lora":
                merge_lora(model)
            for parameter, flag in before.items():
                parameter.requires_grad_(flag)

    def described(self) -> dict[str, Any]:
        if self.recipe.teacher is None or self.recipe.train != "all":
            return {}
        return {"teacher": fingerprint(self.model.backbone)}  # a checkpoint does not have it

    @contextmanager
    def during(self, step: int) -> Iterator[None]:
        """Gives the memory the size that is drawn for the step."""
        size, configured = drawn_size(self.recipe, self.model, step), self.model.config.slots
        if size is None:
            yield
            return
        self.model.set_slots(size)
        try:
            yield
        finally:
            self.model.set_slots(configured)

    def prepared(self, inputs: dict[str, Any]) -> dict[str, Any]:
        if self.teacher is None:
            return inputs
        lesson = self.teacher.lesson(inputs["input_ids"], inputs["attention_mask"], self.recipe.teacher_share)
        return {**inputs, "lesson": lesson}

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
