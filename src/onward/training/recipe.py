"""How to train: every choice by name, with the paper's as defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ..utils.fields import require_number

OPTIMIZERS = ("adamw", "adafactor")
# transformers' names; its "inverse_sqrt" is another, so that ours is made in optimizers.py.
SCHEDULES = {
    "constant": "constant_with_warmup",
    "linear": "linear",
    "cosine": "cosine",
    "inverse_sqrt": "inverse_sqrt",
}
TRAINED = ("all", "carrier", "lora")

PRESETS: dict[str, dict[str, Any]] = {
    "window-recurrent": {},
    # The paper names optimiser, learning rate, schedule, warm-up and tokens per step; the rest is ours. It trained for
    # 500,000 steps: max_tokens=65_536_000_000.
    "block-recurrent": {
        "optimizer": "adafactor",
        "learning_rate": 1.0,
        "schedule": "inverse_sqrt",
        "warmup_steps": 1000,
        "tokens_per_step": 32 * 4096,
        "max_grad_norm": 0.0,
        "epochs": 1,
        "evaluate_every_tokens": 20_000_000,
        "patience": None,
        "gradient_checkpointing": False,
    },
    # BERT's. It trained for 1,000,000 steps: max_tokens=131_072_000_000.
    "masked": {
        "learning_rate": 1e-4,
        "schedule": "linear",
        "warmup_steps": 10_000,
        "weight_decay": 0.01,
        "batch_size": 256,
        "epochs": 1,
        "evaluate_every_tokens": 20_000_000,
        "patience": None,
        "gradient_checkpointing": False,
    },
}
# Adafactor's rate is relative to the size of each parameter, AdamW's is not. The first, of 0.0016 at most, is ours; the
# second is T5's, which a masked language model's pretraining is most like.
WITH_OPTIMIZER: dict[tuple[str, str | None], dict[str, Any]] = {
    ("block-recurrent", "adamw"): {"learning_rate": 0.05, "max_grad_norm": 1.0},
    ("masked", "adafactor"): {"learning_rate": 0.01, "max_grad_norm": 0.0},
}


@dataclass(frozen=True)
class TrainingRecipe:
    """The defaults are those for window-recurrent models, the paper's where it names a value: Adam, 100 linear
    warm-up steps and then a constant learning rate, 2 epochs over segments of 20 windows, validation every 2
    million tokens, early stopping, the backbone trained too. It names no learning rate, batch size, patience or
    clipping: those are ours. `TrainingRecipe.preset("block-recurrent")` has the other paper's.

    Args:
        optimizer: "adamw", or "adafactor" with momentum, whose steps are relative to the size of each parameter.
        learning_rate: of everything that has no rate of its own below.
        backbone_learning_rate, carrier_learning_rate: None for `learning_rate`. A carrier starts from
            nothing, a backbone from its pretraining, so the carrier's is usually far larger. Window-recurrent
            models only, like `windows_per_segment`, `train` and `lora_rank`.
        batch_size: segments (window-recurrent) or lanes (block-recurrent) per update, over all processes.
        tokens_per_step: instead of `batch_size`; as many rows as make so many tokens, so that models with other
            segments get as much text per update.
        segments_at_once: how many of them one process reads at a time; None for all its share. Fewer need
            less memory and give the same updates.
        windows_per_segment: how far back-propagation goes.
        epochs, max_tokens: training ends with whichever comes first.
        schedule: "constant", "linear" or "cosine", after `warmup_steps` of linear warm-up, or half of all steps;
            or "inverse_sqrt": step n (from 1) has the rate min(1, n / warmup_steps) / sqrt(max(n, warmup_steps))
            times `learning_rate`.
        weight_decay: of matrices; not of norms, scales, biases, gates and what a document starts from.
        max_grad_norm: longer gradients are shortened to this; 0 for never.
        evaluate_every_tokens: the validation loss is measured this often, and at the end, and a checkpoint is
            saved each time. What is kept in the end is the model with the best.
        save_every_minutes, save_every_tokens: further checkpoints in between, so that a killed run loses less.
        save_total_limit: how many checkpoints stay; the best and the last always do.
        patience: stop after this many validations in a row without a new best; None for never.
        train: "all" parameters that are not frozen, the "carrier" alone, or carrier and "lora" adapters of
            the backbone, which are merged into it at the end.
        gradient_checkpointing: keep only the state between windows, and run each window again for its
            gradients. Of masked language models, what goes from layer to layer, and run each layer again.
        masked_share, whole_words, sequence_length: masked language models only. How many tokens are hidden; whether all
            pieces of a word at once; and how long rows are, None for all the positions that the model has.
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
        values = PRESETS[name] | WITH_OPTIMIZER.get((name, overrides.get("optimizer")), {})
        if "batch_size" in overrides:
            values.pop("tokens_per_step", None)
        return cls(**values | overrides)

    def __post_init__(self) -> None:
        self._choose("optimizer", OPTIMIZERS)
        self._choose("schedule", tuple(SCHEDULES))
        self._choose("train", TRAINED)
        for name in ("gradient_checkpointing", "bf16", "whole_words"):
            self._choose(name, (True, False))
        for name in ("learning_rate", "epochs", "masked_share"):
            require_number(self, name, above=0)
        if self.masked_share >= 1:
            raise ValueError(f"masked_share={self.masked_share!r}: something must be left to read; choose less than 1")
        for name in ("backbone_learning_rate", "carrier_learning_rate", "save_every_minutes"):
            require_number(self, name, above=0, or_none=True)
        for name in ("weight_decay", "max_grad_norm"):
            require_number(self, name, at_least=0)
        for name in ("warmup_steps", "seed"):
            require_number(self, name, at_least=0, whole=True)
        for name in (
            "batch_size",
            "windows_per_segment",
            "evaluate_every_tokens",
            "save_total_limit",
            "lora_rank",
        ):
            require_number(self, name, at_least=1, whole=True)
        for name in ("tokens_per_step", "segments_at_once", "max_tokens", "patience", "save_every_tokens"):
            require_number(self, name, at_least=1, whole=True, or_none=True)
        require_number(self, "sequence_length", at_least=3, whole=True, or_none=True)

    def _choose(self, name: str, allowed: tuple[Any, ...]) -> None:
        if getattr(self, name) not in allowed:
            listed = ", ".join(map(repr, allowed))
            raise ValueError(f"{name}={getattr(self, name)!r} is not known: choose one of {listed}")

    def rate_of(self, part: str) -> float:
        """The learning rate of the "backbone" or the "carrier"."""
        own = self.carrier_learning_rate if part == "carrier" else self.backbone_learning_rate
        return self.learning_rate if own is None else own

    def rows(self, length: int) -> int:
        """How many rows of `length` tokens make an update."""
        if self.tokens_per_step is None:
            return self.batch_size
        if self.tokens_per_step % length:
            fits = max(1, self.tokens_per_step // length) * length
            raise ValueError(
                f"tokens_per_step={self.tokens_per_step} is no multiple of a segment's {length} tokens: choose one, "
                f"such as {fits}"
            )
        return self.tokens_per_step // length

    def split_batch(self, processes: int, rows: int | None = None) -> tuple[int, int]:
        """How many of an update's rows one of the processes reads at once, and how often before the update."""
        rows = self.batch_size if rows is None else rows
        if rows % processes:
            given = f"batch_size={rows}" if self.tokens_per_step is None else f"a step of {rows} segments"
            raise ValueError(f"{given} cannot be shared by {processes} processes: choose a multiple of their number")
        share = rows // processes
        at_once = share if self.segments_at_once is None else min(self.segments_at_once, share)
        if share % at_once:
            raise ValueError(
                f"segments_at_once={at_once} does not divide a process's share of the batch, {share} segments"
                ": choose a divisor"
            )
        return at_once, share // at_once

    def refuse(self, names: tuple[str, ...], kind: str) -> None:
        """Refuses what was set of these fields, which mean nothing for models of this kind."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in names and value != field.default:
                raise ValueError(
                    f"{field.name}={value!r} means nothing for a {kind} model: leave it at {field.default!r}"
                )

    def that_shape_the_result(self) -> dict[str, Any]:
        """The fields that must not change when a run is taken up again."""
        free = ("segments_at_once", "save_every_minutes", "save_every_tokens", "save_total_limit")
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in free}
