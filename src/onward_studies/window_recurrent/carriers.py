"""`carriers` and `pretrained`: ours. Every carrier beside its controls: the same backbone, text, tokens and windows.

The longest context is a plain model of its own, trained on as many tokens in windows as long as the backbone allows,
and read with half of them before every token. What a carrier recovers is the share that it wins back of what that model
gains over plain windows; by content is what it loses when it reads the memory of another document.

`pretrained` asks the same of a model that others have pretrained, on far more text than there is here: SmolLM2-135M.
Its weights stay as they are, and only carriers are trained, so plain windows and the longest context are the model
itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from ..engine.intervals import UNSEEN, Interval, cell, differences, over, verdict
from ..engine.reporting import Claim, Report, Table, summary_of
from ..engine.study import Outcome, Run, Setting, Study, Work
from ..engine.training_runs import check_texts
from .backbone import CORPORA, Decoder
from .overlap import baseline
from .runs import OVER_SEEDS, Readings, Variant, WindowSizes, constant, recurrent, window_runs
from .runs import SCALES as WINDOW_SCALES

CORPUS = "books"
PAPERS = "pooled, the paper's"
PLAIN, LONGEST = "plain windows", "longest context"


@dataclass(frozen=True)
class Sizes(WindowSizes):
    """`carriers` are fields of their configurations, by name; `controls`, those that have a constant beside them."""

    carriers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    controls: tuple[str, ...] = ()
    longest: int = 512


def _carriers(spans: int, windows: int, window: int, fading: list[int]) -> dict[str, dict[str, Any]]:
    return {
        PAPERS: {"residual": False},
        "pooled": {},
        "spans": {"carrier": "spans", "history": [spans]},
        "every token": {"carrier": "spans", "history": [window - 1]},
        "every token of two windows": {"carrier": "spans", "history": [window - 1, window - 1]},
        "history": {"carrier": "spans", "history": [spans] * windows},
        "fading history": {"carrier": "spans", "history": fading},
    }


def _with(scale: str, carriers: Mapping[str, Mapping[str, Any]], longest: int) -> Sizes:
    controls = ("spans", "fading history")
    return Sizes(**vars(WINDOW_SCALES[scale]), carriers=carriers, controls=controls, longest=longest)


SCALES = {
    "smoke": _with("smoke", _carriers(3, 2, 24, [4, 2]), 64),
    "laptop": _with("laptop", _carriers(15, 4, 64, [63, 32, 16, 8, 4, 2, 1]), 512),
    "paper": _with("paper", _carriers(15, 3, 300, [299, 128, 32]), 1024),
}


def _pretrained(scale: str, **changes: Any) -> Sizes:
    """Overlaps are another study's."""
    chosen = {name: SCALES[scale].carriers[name] for name in (PAPERS, "pooled", "spans", "fading history")}
    own = replace(SCALES[scale], carriers=chosen, overlaps=(0,), more_overlaps=())
    return replace(own, train="carrier", carrier_rate=None, tag="pretrained-", **changes)


SMOLLM2 = Decoder(name="smollm2-135m")
PRETRAINED_SCALES = {
    "smoke": _pretrained("smoke"),
    "laptop": _pretrained(
        "laptop",
        decoder=SMOLLM2,
        tokens=20_000,
        probe_tokens=5_000,
        rates=(1e-3, 3e-3),
        rows=2,
        warmup_steps=4,
        evaluate_every=20_000,
        train_bytes=5_000_000,
        held=6,
        held_tokens=1_000,
        test_tokens=1_500,
    ),
    "paper": _pretrained(
        "laptop",
        decoder=SMOLLM2,
        tokens=20_000_000,
        probe_tokens=1_000_000,
        rates=(3e-4, 1e-3, 3e-3),
        rows=16,
        evaluate_every=2_000_000,
        train_bytes=None,
        held=None,
        held_tokens=None,
        test_tokens=None,
    ),
}
OF_BOOKS = {scale: {CORPUS: places[CORPUS]} for scale, places in CORPORA.items()}


def variants(sizes: Sizes) -> dict[str, Variant]:
    """By what tables call them. Those that the overlap tables have, too, are the same runs."""
    found = {
        PLAIN: baseline(sizes),
        LONGEST: Variant("full", {"carrier": "none"}, sizes.longest, 0, (sizes.longest // 2,)),
    }
    for name, fields in sizes.carriers.items():
        label = name.replace(", the ", "-").replace("'s", "").replace(" ", "-")
        known = fields == sizes.recurrent
        if name in sizes.controls:
            other = Variant(f"constant-{label}", {**fields, "constant_of": name}, sizes.window)
            found[constant_of(name)] = constant(sizes, sizes.window) if known else other
        found[name] = recurrent(sizes, sizes.window) if known else Variant(label, fields, sizes.window)
    return found


def constant_of(name: str) -> str:
    return f"constant for {name}"


def runs(setting: Setting) -> list[Run]:
    return window_runs(setting, CORPUS, list(variants(setting.sizes).values()))


# --- what they come to -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """A row of the table: a model, and how much of its window is read again."""

    variant: Variant
    overlap: int = 0

    @property
    def read(self) -> str:
        return f"overlap {self.overlap}" if self.overlap else "true"


def rows_of(sizes: Sizes) -> dict[str, Reading]:
    """By what tables call them: plain windows that overlap are what the FLOPs of a carrier could buy instead."""
    rows: dict[str, Reading] = {}
    for name, variant in variants(sizes).items():
        rows[name] = Reading(variant, sizes.longest // 2 if name == LONGEST else 0)
        if name == PLAIN:
            rows |= {f"{PLAIN}, {overlap} read again": Reading(variant, overlap) for overlap in variant.others}
    return rows


@dataclass(frozen=True)
class Found:
    """Test losses in nats per token, by row and seed, those of validation, by which the best carrier is chosen, and
    FLOPs per token."""

    loss: Mapping[str, Mapping[int, float]]
    swapped: Mapping[str, Mapping[int, float]]
    validation: Mapping[str, Mapping[int, float]]
    flops: Mapping[str, float]

    def gain(self, name: str) -> dict[int, float]:
        return differences(self.loss[PLAIN], self.loss[name])

    @property
    def ceiling(self) -> Interval | None:
        """What the longest context gains, if it gains something in every seed: else no share of it means anything."""
        gained = self.gain(LONGEST)
        interval = Interval.of(list(gained.values())) if gained else None
        return interval if interval is not None and min(interval.values) > 0 else None

    def recovered(self, name: str) -> dict[int, float]:
        if self.ceiling is None:
            return {}
        ours, full = self.gain(name), self.gain(LONGEST)
        return {seed: ours[seed] / full[seed] for seed in sorted(set(ours) & set(full))}

    def content(self, name: str) -> dict[int, float]:
        return differences(self.swapped[name], self.loss[name])

    def overlapping(self, name: str) -> str | None:
        """Plain windows that overlap as little as it takes to cost no less than this."""
        plain = {other: flops for other, flops in self.flops.items() if other.startswith(f"{PLAIN},")}
        dearer = [other for other, flops in plain.items() if flops >= self.flops[name]]
        return min(dearer, key=plain.__getitem__, default=None)


def read_all(sizes: Sizes, readings: Readings) -> Found:
    rows = rows_of(sizes)
    flops = {name: readings.flops(row.variant, row.overlap, "counted_flops") for name, row in rows.items()}
    loss = {name: readings.of(row.variant, row.read) for name, row in rows.items()}
    return Found(
        loss,
        {name: readings.of(row.variant, "swapped") for name, row in rows.items()},
        {name: readings.of(row.variant, row.read, "validation") for name, row in rows.items()},
        {name: count for name, count in flops.items() if count is not None},
    )


def report(title: str, setting: Setting, outcomes: Mapping[str, Outcome]) -> Report:
    sizes: Sizes = setting.sizes
    readings = Readings(setting, outcomes, CORPUS)
    found = read_all(sizes, readings)
    rows = []
    for name, row in rows_of(sizes).items():
        if not found.loss[name]:
            continue
        percent = {seed: 100 * share for seed, share in found.recovered(name).items()}
        shown = "" if name in (PLAIN, LONGEST) else cell(percent, 1)
        vectors = row.variant.config.vector_count if row.variant.config.carrier != "none" else 0
        added = next(o["parameters_added"] for o in readings.ended(row.variant).values() if "parameters_added" in o)
        perplexity = readings.of(row.variant, row.read, value="word_perplexity")
        rows.append(
            [
                name,
                str(vectors or ""),
                f"{added:,}" if vectors else "",
                f"{found.flops[name]:.3g}",
                cell(perplexity, 1),
                cell(over(found.loss[PLAIN], found.loss[name]), 4) if name != PLAIN else "",
                shown,
                cell(found.content(name), 4) if vectors else "",
            ]
        )
    claims = _claims(sizes, found)
    return Report(
        title,
        summary_of(claims),
        [Table("Every carrier", COLUMNS, rows)],
        {f"gain_{value}": plot(sizes, readings, value) for value in ("by_position", "by_window")} if rows else {},
        claims,
        (
            "± is half a 95 % interval over seeds (Student), of paired differences where two models are compared.",
            *_about_longest(sizes),
            "FLOPs are all matrix products of a window with a memory, carrier and language model head included, and "
            "what is read again"
            + ("; plain windows that overlap show what they do without a memory." if sizes.more_overlaps else "."),
            "By content: how much worse the model reads with the memory of another document.",
            *_about_rates(sizes),
            OVER_SEEDS,
        ),
    )


def _about_rates(sizes: Sizes) -> list[str]:
    if sizes.train != "all" or len(sizes.rates) < 2:
        return []
    tried = next((name for name, fields in sizes.carriers.items() if fields == sizes.recurrent), "no row here")
    told = f"Learning rates were tried for plain windows and for `recurrent`, which is {tried}"
    return [f"{told}: all with a memory have that one's."]


def _about_longest(sizes: Sizes) -> list[str]:
    windows = f"Windows of {sizes.window} tokens; the longest context is"
    before = f"{sizes.longest}, at least half of it before every token."
    if sizes.train == "all":
        return [f"{windows} a plain model trained and read with {before}"]
    return [
        f"{windows} the model as it is, read with {before}",
        "Only carriers are trained: what their constants gain is adaptation, which the longest context has none of.",
    ]


COLUMNS = (
    "carrier",
    "vectors",
    "parameters added",
    "FLOPs/token",
    "test perplexity, word level",
    "gain over plain, nats",
    "context recovered, %",
    "by content, nats",
)


def _claims(sizes: Sizes, found: Found) -> list[Claim]:
    """About the carrier that is best on validation."""
    ended = {name: sum(v.values()) / len(v) for name in sizes.carriers if (v := found.validation[name])}
    if not ended:
        return []
    best = min(ended, key=lambda name: ended[name])
    claims = []
    half = over(found.gain(best), {seed: gain / 2 for seed, gain in found.gain(LONGEST).items()})
    if half is not None:
        claim = "A carrier wins back half of what the longest context gains"
        shares = found.recovered(best)
        if shares:
            seen = f"{best} recovers {cell({seed: 100 * share for seed, share in shares.items()}, 1)} %"
            claims.append(Claim(claim, "ours", seen, verdict(half)))
        else:
            claims.append(Claim(claim, "ours", "the longest context itself gains nothing for sure", UNSEEN))
    ours, theirs = found.content(best), found.content(PAPERS)
    twice = over(ours, {seed: 2 * max(content, 0.0) for seed, content in theirs.items()})  # less than none is none
    if twice is not None and best != PAPERS:
        seen = f"{cell(ours, 4)} nats by content, the paper's {cell(theirs, 4)}"
        claims.append(Claim("It carries twice the content of the paper's module", "ours", seen, verdict(twice)))
    other = found.overlapping(best)
    gain = over(found.loss[other], found.loss[best]) if other else None
    if gain is not None:
        again = f"{other}, at {found.flops[str(other)] / found.flops[best]:.2f} of its FLOPs"
        claim = "It is better than plain windows that overlap, at no more FLOPs"
        claims.append(Claim(claim, "ours", f"{gain.text(4)} nats per token better than {again}", verdict(gain)))
    for name in sizes.controls:
        gain = over(found.loss[constant_of(name)], found.loss[name])
        if gain is not None:
            claim = f"{name.capitalize()} is better than a constant in its place"
            claims.append(Claim(claim, "ours", f"{gain.text(4)} nats per token better", verdict(gain)))
    return claims


LOOKS: tuple[dict[str, Any], ...] = (
    {"color": "0.7", "linestyle": "--", "marker": "+"},
    {"color": "0.55", "linestyle": "-", "marker": "o"},
    {"color": "0.45", "linestyle": "-.", "marker": "D"},
    {"color": "0.3", "linestyle": "--", "marker": "s"},
    {"color": "0.0", "linestyle": ":", "marker": "x"},
    {"color": "0.0", "linestyle": "--", "marker": "v"},
    {"color": "0.0", "linestyle": "-", "marker": "^"},
)
POINTS = 16


def plot(sizes: Sizes, readings: Readings, value: str) -> Figure:
    """How far below plain windows' the test loss is, along a window or from window to window of a document: neighbours
    together, where there are many. Losses themselves differ far more from place to place than between models."""
    figure = Figure(figsize=(7.6, 3.8), layout="constrained")
    panel = figure.subplots()
    base = _by_place(readings.curve(variants(sizes)[PLAIN], value=value))
    chosen = {name: variant for name, variant in variants(sizes).items() if name in sizes.carriers}
    for (name, variant), look in zip(chosen.items(), LOOKS, strict=False):
        ours = _by_place(readings.curve(variant, value=value))
        places = [place for place in base if place in ours]
        panel.plot(places, [base[p] - ours[p] for p in places], label=name, linewidth=1, markersize=4, **look)
    panel.axhline(0, color="0.6", linewidth=0.8, linestyle=":")
    panel.set_xlabel("position in the window (tokens)" if value == "by_position" else "window of the document")
    panel.set_ylabel("better than plain windows (nats per token)")
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def _by_place(curve: Sequence[float | None]) -> dict[float, float]:
    """Means of neighbours, by where the middle of them is."""
    known = [point for point in curve if point is not None]
    size = max(1, -(-len(known) // POINTS))
    parts = [known[start : start + size] for start in range(0, len(known), size)]
    return {size * i + (len(part) - 1) / 2: sum(part) / len(part) for i, part in enumerate(parts)}


def check(work: Work) -> None:
    check_texts(work, *work.setting.corpora)


def _study(name: str, title: str, corpora: Mapping[str, Any], scales: Mapping[str, Sizes]) -> Study:
    return Study(name, corpora, scales, runs, partial(report, title), check)


STUDIES = [
    _study(
        "carriers",
        "Carriers",
        CORPORA,
        SCALES,
    ),
    _study(
        "pretrained",
        "Carriers of a frozen SmolLM2-135M",
        {**OF_BOOKS, "smoke": CORPORA["smoke"]},
        PRETRAINED_SCALES,
    ),
]
