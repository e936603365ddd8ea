"""Sizes that all studies of block-recurrent models share, and the rows of the paper's tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from onward import BlockRecurrentConfig

from ..engine.sizes import CountOrZero, LearningRates, by_scale

RECURRENT, BASELINE = "Rec:fixed:skip", "Slide:13L"


@dataclass(frozen=True)
class BlockSizes:
    """`changes` are sizes of the 12-layer base model, of which every row keeps its proportion. `rates` are tried on
    `probe_tokens` for Slide:13L and Rec:fixed:skip, and the best on validation are taken for models without and with
    recurrence. Without a `vocabulary`, tokens are bytes. Training documents are cut into pieces of `piece` characters:
    otherwise rows with short segments, which have many in a step, would be trained on the beginnings of many documents,
    and others far into a few. `rows_at_once`: how many of a step's segments a process trains on at a time, as many as
    fit its memory; None for all its share."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    vocabulary: int | None = 32_000
    tokens: int = 65_536_000_000
    tokens_per_step: int = 131_072
    rows_at_once: int | None = None
    schedule: str = "inverse_sqrt"
    rates: LearningRates = (1.0,)
    probe_tokens: int = 0
    warmup_steps: CountOrZero = 1000
    evaluate_every: int = 1_000_000_000
    train_bytes: int | None = None
    piece: int | None = None
    held: int | None = None
    held_tokens: int | None = None


SMALL = {"num_attention_heads": 2, "dropout": 0.0}
SCALES: dict[str, BlockSizes] = by_scale(
    BlockSizes,
    {
        "changes": (
            {**SMALL, "hidden_size": 32, "num_hidden_layers": 3, "window": 8},
            {**SMALL, "hidden_size": 128, "num_hidden_layers": 6, "window": 32},
        ),
        "vocabulary": (300, 2_000),
        "tokens": (600, 3_000_000),  # after a third of the latter, states of some seeds carry nothing yet
        "tokens_per_step": (256, 2_048),
        # In so short a training linear is better: 4.52 instead of 4.64 nats, of Slide:13L on books.
        "schedule": ("inverse_sqrt", "linear"),
        "rates": ((0.1, 1.0), (0.05, 0.1, 0.2)),
        "probe_tokens": (300, 400_000),
        "warmup_steps": (1, 100),
        "evaluate_every": (10_000, 500_000),
        "train_bytes": (20_000, 20_000_000),
        "piece": (600, 60_000),
        "held": (2, 8),
        "held_tokens": (100, 4_000),
    },
)
LAPTOP_FEWER_LAYERS = replace(  # for studies of so many models that each must be smaller
    SCALES["laptop"],
    changes={**SCALES["laptop"].changes, "num_hidden_layers": 4},
    tokens=1_200_000,  # after a third of them states carry nothing yet, and seeds differ several times as much
    rates=(0.1, 0.2, 0.4),
    warmup_steps=20,
    evaluate_every=600_000,
    piece=8_000,  # so that rows with long segments, few of which fill a step, see much the same texts as others
)


@dataclass(frozen=True)
class Row:
    """A preset, under its own name or, with something changed, another."""

    preset: str
    label: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.label or self.preset

    @property
    def slug(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    def config(self, sizes: BlockSizes, **more: Any) -> BlockRecurrentConfig:
        return BlockRecurrentConfig.preset(self.preset, **{**sizes.changes, **self.changes, **more})

    def has_states(self, sizes: BlockSizes) -> bool:
        return bool(self.config(sizes).recurrent_layers)
