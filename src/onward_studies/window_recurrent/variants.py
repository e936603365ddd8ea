"""Sizes that all studies of window recurrence share, and the variants of a model that they train."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from onward import WindowRecurrenceConfig

from ..engine.intervals import ABOUT_INTERVALS
from ..engine.sizes import CountOrZero, LearningRate, LearningRates, by_scale, scales_of
from .backbone import DECODERS, Decoder


def _spans(count: int) -> dict[str, Any]:
    return {"carrier": "spans", "history": [count]}


@dataclass(frozen=True)
class WindowSizes:
    """`overlaps` are those of the paper's tables, `more_overlaps` of plain windows only; `recurrent` are fields of the
    recurrent model's configuration. `rates` are tried on `probe_tokens`, for every kind of model (`kind_of`), on the
    corpus `tried_on` for all corpora if it is given. Steps are of `rows` segments of `windows_per_segment` windows;
    other windows have as many tokens in a step, not as many windows, and with `equal_steps` other overlaps, too. Models
    are evaluated on the first `held` validation and test documents: on `held_tokens` of each (of test documents
    `test_tokens`), or as many as their corpus asks for. With `train="carrier"` the backbone is frozen, and plain
    windows are not trained. Names of runs begin with `tag`."""

    decoder: Decoder = by_scale(*DECODERS.values())
    window: int = by_scale(24, 64, 300)
    # On a laptop the same parts of a window as the paper's: 0, 1/60, 1/30, 1/10, 1/6.
    overlaps: tuple[int, ...] = by_scale((0, 4), (0, 1, 2, 6, 11), (0, 5, 10, 30, 50))
    more_overlaps: tuple[int, ...] = by_scale((8,), (16, 21, 32, 43), (75, 100, 150, 200))
    recurrent: Mapping[str, Any] = by_scale(_spans(3), _spans(15), {"residual": False})
    tokens: int | None = by_scale(2_000, 200_000, None)
    epochs: float = by_scale(1000, 1000, 2)
    windows_per_segment: int = by_scale(4, 10, 20)
    rows: int = by_scale(4, 4, 8)
    rates: LearningRates = by_scale((1e-3, 3e-3), (3e-5, 1e-4, 3e-4), (2e-5, 5e-5, 1e-4))
    tried_on: str | None = by_scale(None, None, "wikipedia")
    carrier_rate: LearningRate | None = by_scale(1e-3, 1e-3, None)
    probe_tokens: int = by_scale(800, 60_000, 10_000_000)
    schedule: str = by_scale("linear", "linear", "constant")
    warmup_steps: CountOrZero = by_scale(1, 20, 100)
    evaluate_every: int = by_scale(2_000, 200_000, 2_000_000)
    patience: int | None = by_scale(None, None, 3)
    train_bytes: int | None = by_scale(20_000, 30_000_000, None)
    held: int | None = by_scale(3, 12, None)
    held_tokens: int | None = by_scale(150, 4_000, None)
    test_tokens: int | None = by_scale(150, 8_000, None)
    equal_steps: bool = by_scale(True, True, False)
    checkpointing: bool = by_scale(False, False, True)
    train: str = "all"
    tag: str = ""

    def trains(self, variant: Variant) -> bool:
        return self.train != "carrier" or variant.config.carrier != "none"


SCALES = scales_of(WindowSizes)
UNSAID = {"carrier": "pooled"}
"""Of variants that name no carrier. Names and settings of committed runs do not change with the library's defaults."""


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
        config = WindowRecurrenceConfig(**{**UNSAID, **chosen}, window=self.window, overlap=self.overlap)
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


def constant(sizes: WindowSizes, window: int) -> Variant:
    return Variant("constant", {**sizes.recurrent, "constant_of": "recurrent"}, window)


def kind_of(sizes: WindowSizes, variant: Variant) -> str:
    """Models of a kind have one learning rate: all with a memory, as it is mostly their backbone's; with a frozen
    backbone, each has its own."""
    return "recurrent" if variant.config.carrier != "none" and sizes.train == "all" else variant.label


# --- notes of reports


def about_recurrent(sizes: WindowSizes) -> str:
    """For a report that has the paper's figures beside it."""
    config = WindowRecurrenceConfig(**{**UNSAID, **sizes.recurrent})
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
