"""What the runs of the study `memory` do: train a model with a memory, and read stretches of texts with one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase, set_seed

from onward import WindowRecurrenceConfig, add_recurrence
from onward.data import Document
from onward.data.tokens import TokenizedDocument
from onward.evaluation import counted_flops_per_token
from onward.evaluation.cost import parameter_count
from onward.evaluation.memory_size import context_bytes, memory_bytes
from onward.models.pretrained import load_whole
from onward.models.window_recurrent import WindowRecurrentForCausalLM

from ..engine.planning import RunPlan, plan_of
from ..engine.study import Outcome
from ..engine.texts import some_of
from ..engine.trainings import not_done, recipe_of, train_once
from ..engine.work import Work
from .backbone import decoder_config, load
from .memory_rows import FULL, Reading, fields_of
from .stretches import losses_of, stretches_of

if TYPE_CHECKING:
    from .memory import MemorySizes


def config_of(reading: Reading, slots: int | None) -> WindowRecurrenceConfig:
    """With so many slots, if it has any."""
    fields = fields_of(reading.memory) | ({} if reading.slots is None else {"slots": slots})
    return WindowRecurrenceConfig(**fields, window=reading.window)


def train(sizes: MemorySizes, reading: Reading, seed: int, work: Work) -> Outcome:
    backbone, tokenizer = load(work, sizes.decoder)
    set_seed(seed)
    model = add_recurrence(backbone, config_of(reading, sizes.random_slots[-1]))
    same = {name: getattr(sizes, name) for name in ("lora_rank", "teacher_share", "schedule")}
    recipe = recipe_of(
        "window-recurrent",
        sizes,
        sizes.rate,
        sizes.tokens,
        seed,
        train="lora",
        carrier_learning_rate=sizes.carrier_rate_of(reading.memory),
        batch_size=sizes.rows,
        windows_per_segment=sizes.length // reading.window,
        teacher="full-context",
        random_slots=tuple(sizes.random_slots),
        gradient_checkpointing=False,
        patience=None,
        **same,
    )
    texts = (f"{reading.text}, of memories", partial(_training_texts, sizes, reading.text, work))
    return train_once(
        work, model, texts, _stretches(sizes, reading.text, "validation", tokenizer, work), tokenizer, recipe
    )


def _training_texts(sizes: MemorySizes, text: str, work: Work) -> Sequence[Document]:
    return some_of(work.corpus(text).train, sizes.train_bytes)


def _stretches(
    sizes: MemorySizes, text: str, split: str, tokenizer: PreTrainedTokenizerBase, work: Work
) -> list[TokenizedDocument]:
    """Cut once for all runs of a process."""
    count = sizes.validation_stretches if split == "validation" else sizes.test_stretches_of(text)

    def cut() -> list[TokenizedDocument]:
        return stretches_of(getattr(work.corpus(text), split), tokenizer, count, sizes.length, sizes.reach)

    return work.once(("stretches", text, split), cut)


def read(sizes: MemorySizes, reading: Reading, seed: int | None, swaps: bool, work: Work) -> Outcome:
    if seed is not None and work.outcome_of(reading.training(seed))["validation_loss"] is None:
        return not_done("its training", seed=seed)
    backbone, tokenizer = work.once("memory's backbone", lambda: load(work, sizes.decoder))
    if seed is None:
        model = add_recurrence(backbone, config_of(reading, reading.slots))
    else:
        model = _trained(reading, seed, work)
    model.eval()
    found = {}
    for split, memories in (("validation", ["true"]), ("test", ["true", "swapped"] if swaps else ["true"])):
        stretches = _stretches(sizes, reading.text, split, tokenizer, work)
        found[split] = losses_of(model, stretches, memories, sizes.scored_from)
    full = reading.memory == FULL
    return {
        "read": found,
        "state_bytes": context_bytes(model) if full else memory_bytes(model),
        "counted_flops": counted_flops_per_token(model),
        "tokens_per_second": found["test"]["true"]["tokens_per_second"],
        "parameters_added": parameter_count(model.carrier),
        **({} if seed is None else {"seed": seed}),
        "said": f"test {found['test']['true']['loss']:.4f} nats/token",
    }


def _trained(reading: Reading, seed: int, work: Work) -> Any:
    model = load_whole(WindowRecurrentForCausalLM, str(work.model_of(reading.training(seed))))
    if reading.slots:
        model.set_slots(reading.slots)
    return model


def plan(sizes: MemorySizes, window: int) -> RunPlan:
    """Of the backbone in windows, which does nearly all of the work. All windows of a segment are kept for gradients,
    and the teacher reads as many tokens again."""
    mask = torch.zeros(1, 1, window, window, device="meta")  # without one, transformers needs values to make it
    inputs: dict[str, Any] = {"attention_mask": mask, "use_cache": False}
    build = partial(AutoModelForCausalLM.from_config, decoder_config(sizes.decoder))
    window_plan = plan_of(build, window, sizes.rows, sizes.tokens, again=True, **inputs)
    return replace(window_plan, kept=window_plan.kept * (sizes.length // window))
