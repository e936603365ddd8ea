"""Sizes that all studies of block-recurrent models share, and the rows of the paper's tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onward import BlockRecurrentConfig

from ..engine.sizes import CountOrZero, LearningRates, by_scale, scales_of

RECURRENT, BASELINE = "Rec:fixed:skip", "Slide:13L"


def small(width: int, layers: int, window: int) -> dict[str, Any]:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "window": window}
    return {**sizes, "num_attention_heads": 2, "dropout": 0.0}


@dataclass(frozen=True)
class BlockSizes:
    """`changes` are sizes of the 12-layer base model, of which every row keeps its proportion. `rates` are tried on
    `probe_tokens` for Slide:13L and Rec:fixed:skip, and the best on validation are taken for models without and with
    recurrence. Without a `vocabulary`, tokens are bytes. Training documents are cut into pieces of `piece` characters:
    otherwise rows with short segments, which have many in a step, would be trained on the beginnings of many documents,
    and others far into a few. `rows_at_once`: how many of a step's segments a process trains on at a time, as many as
    fit its memory; None for all its share."""

    changes: Mapping[str, Any] = by_scale(small(32, 3, 8), small(128, 6, 32), {})
    vocabulary: int | None = by_scale(300, 2_000, 32_000)
    # After a third of these tokens on a laptop, states of some seeds carry nothing yet.
    tokens: int = by_scale(600, 3_000_000, 65_536_000_000)
    tokens_per_step: int = by_scale(256, 2_048, 131_072)
    rows_at_once: int | None = None
    # In a training as short as a laptop's, linear is better: 4.52 instead of 4.64 nats, of Slide:13L on books.
    schedule: str = by_scale("inverse_sqrt", "linear", "inverse_sqrt")
    rates: LearningRates = by_scale((0.1, 1.0), (0.05, 0.1, 0.2), (1.0,))
    probe_tokens: int = by_scale(300, 400_000, 0)
    warmup_steps: CountOrZero = by_scale(1, 100, 1000)
    evaluate_every: int = by_scale(10_000, 500_000, 1_000_000_000)
    train_bytes: int | None = by_scale(20_000, 20_000_000, None)
    piece: int | None = by_scale(600, 60_000, None)
    held: int | None = by_scale(2, 8, None)
    held_tokens: int | None = by_scale(100, 4_000, None)


SCALES: dict[str, BlockSizes] = scales_of(BlockSizes)


@dataclass(frozen=True)
class FewerLayers(BlockSizes):
    """For studies of so many models that on a laptop each must be smaller."""

    changes: Mapping[str, Any] = by_scale(small(32, 3, 8), small(128, 4, 32), {})
    # After a third of these tokens on a laptop, states carry nothing yet, and seeds differ several times as much.
    tokens: int = by_scale(600, 1_200_000, 65_536_000_000)
    rates: LearningRates = by_scale((0.1, 1.0), (0.1, 0.2, 0.4), (1.0,))
    warmup_steps: CountOrZero = by_scale(1, 20, 1000)
    evaluate_every: int = by_scale(10_000, 600_000, 1_000_000_000)
    # Short, so that rows with long segments, few of which fill a step, see much the same texts as others.
    piece: int | None = by_scale(600, 8_000, None)


@dataclass(frozen=True)
class BlockRow:
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
