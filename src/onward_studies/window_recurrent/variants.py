"""Sizes that all studies of window recurrence share, and the variants of a model that they train."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onward import WindowRecurrenceConfig

from ..engine.intervals import ABOUT_INTERVALS
from ..engine.sizes import CountOrZero, LearningRate, LearningRates, by_scale
from .backbone import DECODERS, Decoder


@dataclass(frozen=True)
class WindowSizes:
    """`overlaps` are those of the paper's tables, `more_overlaps` of plain windows only; `recurrent` are fields of the
    recurrent model's configuration. `rates` are tried on `probe_tokens`, for every kind of model (`kind_of`), on the
    corpus `tried_on` for all corpora if it is given. Steps are of `rows` segments of `windows_per_segment` windows;
    other windows have as many tokens in a step, not as many windows, and with `equal_steps` other overlaps, too. Models
    are evaluated on the first `held` validation and test documents: on `held_tokens` of each (of test documents
    `test_tokens`), or as many as their corpus asks for. With `train="carrier"` the backbone is frozen, and plain
    windows are not trained. Names of runs begin with `tag`."""

    decoder: Decoder = DECODERS["paper"]
    window: int = 300
    overlaps: tuple[int, ...] = (0, 5, 10, 30, 50)
    more_overlaps: tuple[int, ...] = (75, 100, 150, 200)
    recurrent: Mapping[str, Any] = field(default_factory=lambda: {"residual": False})
    tokens: int | None = None
    epochs: float = 2
    windows_per_segment: int = 20
    rows: int = 8
    rates: LearningRates = (2e-5, 5e-5, 1e-4)
    tried_on: str | None = "wikipedia"
    carrier_rate: LearningRate | None = None
    probe_tokens: int = 10_000_000
    schedule: str = "constant"
    warmup_steps: CountOrZero = 100
    evaluate_every: int = 2_000_000
    patience: int | None = 3
    train_bytes: int | None = None
    held: int | None = None
    held_tokens: int | None = None
    test_tokens: int | None = None
    equal_steps: bool = False
    checkpointing: bool = True
    train: str = "all"
    tag: str = ""

    def trains(self, variant: Variant) -> bool:
        return self.train != "carrier" or variant.config.carrier != "none"


SCALES = by_scale(
    WindowSizes,
    {
        "decoder": (DECODERS["smoke"], DECODERS["laptop"]),
        "window": (24, 64),
        "overlaps": ((0, 4), (0, 1, 2, 6, 11)),  # on a laptop the paper's parts of a window: 0, 1/60, 1/30, 1/10, 1/6
        "more_overlaps": ((8,), (16, 21, 32, 43)),
        "recurrent": ({"carrier": "spans", "history": [3]}, {"carrier": "spans", "history": [15]}),
        "tokens": (2_000, 200_000),
        "epochs": (1000, 1000),
        "windows_per_segment": (4, 10),
        "rows": (4, 4),
        "rates": ((1e-3, 3e-3), (3e-5, 1e-4, 3e-4)),
        "tried_on": (None, None),
        "carrier_rate": (1e-3, 1e-3),
        "probe_tokens": (800, 60_000),
        "schedule": ("linear", "linear"),
        "warmup_steps": (1, 20),
        "evaluate_every": (2_000, 200_000),
        "patience": (None, None),
        "train_bytes": (20_000, 30_000_000),
        "held": (3, 12),
        "held_tokens": (150, 4_000),
        "test_tokens": (150, 8_000),
        "equal_steps": (True, True),
        "checkpointing": (False, False),
    },
)


@dataclass(frozen=True)
class Variant:
    """A model to be trained: what it carries, and its windows. `others`: overlaps it is evaluated with, too."""

    label: str
    fields: Mapping[str, Any]
    window: int
    overlap: int = 0
    others: tuple[int, ...] = ()

    @property
    def config(self) -> WindowRecurrenceConfig:
        chosen = dict(self.fields)
        constant_of = chosen.pop("constant_of", None)  # a control for the recurrent model with these fields
        config = WindowRecurrenceConfig(**chosen, window=self.window, overlap=self.overlap)
        return config.with_carrier("constant") if constant_of else config

    @property
    def carries(self) -> bool:
        return self.config.carrier not in ("none", "constant")

    @property
    def name(self) -> str:
        overlap = f"-overlap{self.overlap}" if self.overlap else ""
        return f"{self.label}-window{self.window}{overlap}"

    def read_with(self, overlap: int) -> str:
        """What outcomes call an evaluation with this overlap."""
        return "true" if overlap == self.overlap else f"overlap {overlap}"


def plain_windows(window: int, others: Iterable[int] = ()) -> Variant:
    return Variant("plain", {"carrier": "none"}, window, 0, tuple(others))


def baseline(sizes: WindowSizes) -> Variant:
    """Trained without overlap, and evaluated with any."""
    return plain_windows(sizes.window, (*sizes.overlaps[1:], *sizes.more_overlaps))


def recurrent(sizes: WindowSizes, window: int, overlap: int = 0) -> Variant:
    return Variant("recurrent", sizes.recurrent, window, overlap)


def constant(sizes: WindowSizes, window: int, overlap: int = 0) -> Variant:
    return Variant("constant", {**sizes.recurrent, "constant_of": "recurrent"}, window, overlap)


def kind_of(sizes: WindowSizes, variant: Variant) -> str:
    """Models of a kind have one learning rate: all with a memory, as it is mostly their backbone's; with a frozen
    backbone, each has its own."""
    return "recurrent" if variant.config.carrier != "none" and sizes.train == "all" else variant.label


# --- notes of reports


def about_recurrent(sizes: WindowSizes) -> str:
    """For a report that has the paper's figures beside it."""
    config = WindowRecurrenceConfig(**sizes.recurrent)
    if config.carrier == "pooled" and not config.residual:
        return "recurrent is the paper's module."
    return (
        f"recurrent is our carrier {config.carrier!r} with its defaults, not the paper's module to the letter, which "
        "needs far more training than there is here before its content counts; the study carriers has both."
    )


OVER_SEEDS = (
    "Intervals are over seeds only: test documents are the same for all, and so is the backbone where one machine has "
    "done all runs."
)
CLAIMS_PAIRED = f"{ABOUT_INTERVALS}; claims are about paired differences of test losses."
