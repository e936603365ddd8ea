"""How to train: every choice by name, with the papers' values as defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ..utils.fields import FieldError, require_choice, require_number

OPTIMIZERS = ("adamw", "adafactor")
# transformers' names; its "inverse_sqrt" differs from the paper's, which is in optimizers.py.
SCHEDULES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine", "inverse_sqrt": "inverse_sqrt"}
TRAINED_PARTS = ("all", "carrier", "lora")
TEACHERS = ("full-context",)

_LARGE_CORPUS = {"epochs": 1, "evaluate_every_tokens": 20_000_000, "patience": None, "gradient_checkpointing": False}

PRESETS: dict[str, dict[str, Any]] = {
    "window-recurrent": {},
    # The paper names optimizer, learning rate, schedule, warm-up and tokens per step; the rest is ours. It trained for
    # 500,000 steps: max_tokens=65_536_000_000.
    "block-recurrent": {
        "optimizer": "adafactor",
        "learning_rate": 1.0,
        "schedule": "inverse_sqrt",
        "warmup_steps": 1000,
        "tokens_per_step": 32 * 4096,
        "max_grad_norm": 0.0,
        **_LARGE_CORPUS,
    },
    # BERT's. It trained for 1,000,000 steps: max_tokens=131_072_000_000.
    "masked": {
        "learning_rate": 1e-4,
        "schedule": "linear",
        "warmup_steps": 10_000,
        "weight_decay": 0.01,
        "batch_size": 256,
        **_LARGE_CORPUS,
    },
}
# Adafactor's rate is relative to the size of each parameter, AdamW's is not. The first, at most 0.0016 per step, is
# ours; the second is T5's, whose pretraining is most like a masked language model's.
PRESETS_WITH_OPTIMIZER: dict[tuple[str, str | None], dict[str, Any]] = {
    ("block-recurrent", "adamw"): {"learning_rate": 0.05, "max_grad_norm": 1.0},
    ("masked", "adafactor"): {"learning_rate": 0.01, "max_grad_norm": 0.0},
}


@dataclass(frozen=True)
class TrainingRecipe:
    """The defaults are for window-recurrent models, with the paper's values where it names them: Adam, 100 linear
    warm-up steps and then a constant learning rate, 2 epochs over segments of 20 windows, validation every 2
    million tokens, early stopping, the backbone trained too. It names no learning rate, batch size, patience or
    clipping: those are ours. `TrainingRecipe.preset("block-recurrent")` is the other paper's.

    Args:
        optimizer: "adamw", or "adafactor" with momentum, whose steps are relative to the size of each parameter.
        learning_rate: of every parameter without a rate of its own below.
        backbone_learning_rate, carrier_learning_rate: None for `learning_rate`. A carrier starts from
            nothing, a backbone from its pretraining, so the carrier's is usually far larger. Window-recurrent
            models only, like `windows_per_segment`, `train` and `lora_rank`.
        batch_size: segments (window-recurrent) or lanes (block-recurrent) per update, over all processes.
        tokens_per_step: replaces `batch_size`: as many rows as hold this many tokens, so that models with other
            segments get as much text per update.
        segments_at_once: rows that one process puts through the model at a time; None for all its share. Fewer need
            less memory and give the same updates.
        windows_per_segment: how far back-propagation through time goes.
        epochs, max_tokens: training ends with whichever comes first.
        schedule: "constant", "linear" or "cosine", after `warmup_steps` of linear warm-up, or half of all steps;
            or "inverse_sqrt": step n (from 1) has the rate min(1, n / warmup_steps) / sqrt(max(n, warmup_steps))
            times `learning_rate`.
        weight_decay: of matrices only: not of norms, scales, biases, gates and initial states.
        max_grad_norm: gradients are clipped to this norm; 0 for never.
        evaluate_every_tokens: how often the validation loss is measured and a checkpoint saved, beside the end of the
            run. The model with the best validation loss is kept.
        save_every_minutes, save_every_tokens: further checkpoints in between, so that a killed run loses less.
        save_total_limit: how many checkpoints stay; the best and the last always do.
        patience: stop after this many validations in a row without a new best; None for never.
        train: "all" parameters that are not frozen, the "carrier" alone, or carrier and "lora" adapters of
            the backbone, which are merged into it at the end.
        teacher: "full-context", the model as it was before training, without recurrence: it reads each segment in one
            piece, and training brings the model's predictions closer to its own. Window-recurrent models only.
        teacher_share: how much of the loss is the divergence from the teacher; the rest is that of the next token.
        random_slots: the least and the most slots that a memory has in training; each step draws a number between
            them, evenly on a logarithmic scale. What is learned then serves memories of all these sizes; validation
            is at the configured one. Carriers with slots only.
        gradient_checkpointing: keep only the state between windows, and compute each window again for its gradients;
            for masked language models, each layer.
        masked_share, whole_words, sequence_length: masked language models only. The share of tokens that are hidden;
            whether the pieces of a word are hidden together; and the length of rows, None for the model's positions.
    """

    optimizer: str = "adamw"
    learning_rate: float = 5e-5
    backbone_learning_rate: float | None = None
    carrier_learning_rate: float | None = 1e-3
    batch_size: int = 8
    tokens_per_step: int | None = None
    segments_at_once: int | None = None
    windows_per_segment: int = 20
    epochs: float = 2
    max_tokens: int | None = None
    schedule: str = "constant"
    warmup_steps: int = 100
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    evaluate_every_tokens: int = 2_000_000
    patience: int | None = 3
    save_every_minutes: float | None = 10
    save_every_tokens: int | None = None
    save_total_limit: int = 2
    train: str = "all"
    lora_rank: int = 16
    teacher: str | None = None
    teacher_share: float = 0.5
    random_slots: tuple[int, int] | None = None
    gradient_checkpointing: bool = True
    bf16: bool = False
    masked_share: float = 0.15
    whole_words: bool = False
    sequence_length: int | None = None
    seed: int = 0

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> TrainingRecipe:
        """The recipe for "window-recurrent", "block-recurrent" or "masked" models, with any field changed."""
        if name not in PRESETS:
            raise ValueError(f"no recipe {name!r}: choose one of {', '.join(map(repr, PRESETS))}")
        values = PRESETS[name] | PRESETS_WITH_OPTIMIZER.get((name, overrides.get("optimizer")), {})
        if "batch_size" in overrides:
            values.pop("tokens_per_step", None)
        return cls(**values | overrides)

    def __post_init__(self) -> None:
        require_choice(self, "optimizer", OPTIMIZERS)
        require_choice(self, "schedule", SCHEDULES)
        require_choice(self, "train", TRAINED_PARTS)
        if self.teacher is not None:
            require_choice(self, "teacher", TEACHERS)
        elif self.teacher_share != type(self).teacher_share:
            raise FieldError("teacher_share", self.teacher_share, "it means nothing without a teacher")
        require_number(self, "teacher_share", at_least=0, at_most=1)
        self._check_random_slots()
        for name in ("gradient_checkpointing", "bf16", "whole_words"):
            require_choice(self, name, (True, False))
        for name in ("learning_rate", "epochs", "masked_share"):
            require_number(self, name, above=0)
        if self.masked_share >= 1:
            raise FieldError("masked_share", self.masked_share, "some tokens must stay visible; choose less than 1")
        for name in ("backbone_learning_rate", "carrier_learning_rate", "save_every_minutes"):
            require_number(self, name, above=0, or_none=True)
        for name in ("weight_decay", "max_grad_norm"):
            require_number(self, name, at_least=0)
        for name in ("warmup_steps", "seed"):
            require_number(self, name, at_least=0, whole=True)
        for name in ("batch_size", "windows_per_segment", "evaluate_every_tokens", "save_total_limit", "lora_rank"):
            require_number(self, name, at_least=1, whole=True)
        for name in ("tokens_per_step", "segments_at_once", "max_tokens", "patience", "save_every_tokens"):
            require_number(self, name, at_least=1, whole=True, or_none=True)
        require_number(self, "sequence_length", at_least=3, whole=True, or_none=True)

    def _check_random_slots(self) -> None:
        given = self.random_slots
        if given is None:
            return
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            raise FieldError("random_slots", given, "it must be the least and the most, as in (16, 512)")
        if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in given) or given[0] > given[1]:
            problem = "it must be two whole numbers of at least 1, the smaller one first, as in (16, 512)"
            raise FieldError("random_slots", given, problem)
        object.__setattr__(self, "random_slots", tuple(given))

    def rate_of(self, part: str) -> float:
        """The learning rate of the "backbone" or the "carrier"."""
        own = self.carrier_learning_rate if part == "carrier" else self.backbone_learning_rate
        return self.learning_rate if own is None else own

    def rows(self, length: int) -> int:
        """The rows of `length` tokens in an update."""
        if self.tokens_per_step is None:
            return self.batch_size
        if self.tokens_per_step % length:
            fits = max(1, self.tokens_per_step // length) * length
            problem = f"it is not a multiple of a segment's {length} tokens; choose one, such as {fits}"
            raise FieldError("tokens_per_step", self.tokens_per_step, problem)
        return self.tokens_per_step // length

    def split_batch(self, processes: int, rows: int | None = None) -> tuple[int, int]:
        """The rows that one process puts through the model at once, and how often it does so for an update."""
        rows = self.batch_size if rows is None else rows
        if rows % processes:
            advice = f"cannot be shared by {processes} processes; choose a multiple of their number"
            if self.tokens_per_step is None:
                raise FieldError("batch_size", rows, f"it {advice}")
            raise FieldError("tokens_per_step", self.tokens_per_step, f"a step of {rows} segments {advice}")
        share = rows // processes
        at_once = share if self.segments_at_once is None else min(self.segments_at_once, share)
        if share % at_once:
            problem = f"it does not divide a process's share of the batch, {share} segments; choose a divisor"
            raise FieldError("segments_at_once", at_once, problem)
        return at_once, share // at_once

    def refuse(self, names: tuple[str, ...], kind: str) -> None:
        """Refuses fields that were set although they have no meaning for models of this kind."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in names and value != field.default:
                problem = f"it has no meaning for a {kind} model; leave it at {field.default!r}"
                raise FieldError(field.name, value, problem)

    def that_shape_the_result(self) -> dict[str, Any]:
        """The fields that must not change when a run resumes."""
        free = ("segments_at_once", "save_every_minutes", "save_every_tokens", "save_total_limit")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in free}
