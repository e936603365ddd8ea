"""Window-recurrent models are trained on segments: state is carried within a segment, and each starts anew."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from ..data.segments import Segments
from ..data.tokens import TokenizedDocument
from ..models.window_recurrent import CARRIERS, WindowRecurrentForCausalLM, WindowRecurrentModel
from ..ops import windows
from ..utils.fields import FieldError
from .feed import MASKING_FIELDS, Feed

if TYPE_CHECKING:
    from .trainer import RecurrentTrainer


class SegmentFeed(Feed):
    kind = "window-recurrent"
    unused_fields = MASKING_FIELDS
    sampling = "random"
    runs_piecewise = True  # window by window
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
        try:
            yield
        finally:
            if trained == "lora":
                merge_lora(model)
            for parameter, flag in before.items():
                parameter.requires_grad_(flag)

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


def add_lora(model: WindowRecurrentForCausalLM, rank: int) -> None:
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise ModuleNotFoundError("train='lora' needs the package peft: pip install peft") from error
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="fan_in_fan_out")  # peft corrects it by itself
        model.backbone.add_adapter(LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"))


def merge_lora(model: WindowRecurrentForCausalLM) -> None:
    """Adds what the adapters learned to the backbone's own weights, and removes them."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in list(model.backbone.named_modules()):
        if isinstance(module, BaseTunerLayer):
            module.merge()
            parent: nn.Module = model.backbone.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], module.get_base_layer())
    model.backbone._hf_peft_config_loaded = False
    del model.backbone.peft_config
