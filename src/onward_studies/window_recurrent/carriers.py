"""`carriers` and `pretrained` (ours): every carrier beside its controls, on equal terms.

The longest context is a plain model trained on as many tokens, in windows as long as the backbone allows, and evaluated
with at least half a window before every token. A carrier recovers a share of that model's gain over plain windows; its
gain by content is what it loses with the memory of another document.

`pretrained` asks the same of SmolLM2-135M, which was pretrained on far more text. Its weights are frozen and only
carriers are trained, so plain windows and the longest context are the model itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from ..engine.figures import one_panel
from ..engine.intervals import ABOUT_INTERVALS, UNSEEN, cell, differences
from ..engine.outcomes import Outcomes
from ..engine.reporting import Claim, Report, Table, judged, summary_of
from ..engine.sizes import by_scale, scales_of
from ..engine.study import Outcome, Run, Study, StudySetting
from ..engine.texts import check_texts
from .backbone import CORPORA, Decoder
from .runs import measure, window_outcomes, window_runs
from .variants import OVER_SEEDS, Variant, WindowSizes, baseline, constant, recurrent

CORPUS = "books"
PAPERS = "pooled, the paper's"
PLAIN, LONGEST = "plain windows", "longest context"


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


@dataclass(frozen=True)
class CarrierSizes(WindowSizes):
    """`carriers` are fields of their configurations, by name; `controls`, those that have a constant beside them."""

    carriers: Mapping[str, Mapping[str, Any]] = by_scale(
        _carriers(3, 2, 24, [4, 2]),
        _carriers(15, 4, 64, [63, 32, 16, 8, 4, 2, 1]),
        _carriers(15, 3, 300, [299, 128, 32]),
    )
    controls: tuple[str, ...] = ("spans", "fading history")
    longest: int = by_scale(64, 512, 1024)


SCALES = scales_of(CarrierSizes)


def _pretrained(scale: str, **changes: Any) -> CarrierSizes:
    """Without overlaps, which other studies have."""
    chosen = {name: SCALES[scale].carriers[name] for name in (PAPERS, "pooled", "spans", "fading history")}
    own = replace(SCALES[scale], carriers=chosen, overlaps=(0,), more_overlaps=())
    return replace(own, train="carrier", carrier_rate=None, tag="pretrained-", **changes)


_ON_A_LAPTOP = {
    "decoder": Decoder(name="smollm2-135m"),
    "tokens": 20_000,
    "probe_tokens": 5_000,
    "rates": (1e-3, 3e-3),
    "rows": 2,
    "warmup_steps": 4,
    "evaluate_every": 20_000,
    "train_bytes": 5_000_000,
    "held": 6,
    "held_tokens": 1_000,
    "test_tokens": 1_500,
}
_AS_IN_PAPERS = {
    "decoder": Decoder(name="smollm2-135m"),
    "tokens": 20_000_000,
    "probe_tokens": 1_000_000,
    "rates": (3e-4, 1e-3, 3e-3),
    "rows": 16,
    "evaluate_every": 2_000_000,
    **dict.fromkeys(("train_bytes", "held", "held_tokens", "test_tokens")),
}
PRETRAINED_SCALES = {
    "smoke": _pretrained("smoke"),
    "laptop": _pretrained("laptop", **_ON_A_LAPTOP),
    "paper": _pretrained("laptop", **_AS_IN_PAPERS),
}
ONLY_BOOKS = {scale: {CORPUS: places[CORPUS]} for scale, places in CORPORA.items()}


def variants(sizes: CarrierSizes) -> dict[str, Variant]:
    """By their names in the table. Variants that the overlap tables also have share their runs."""
    longest = Variant("full", {"carrier": "none"}, sizes.longest, 0, (sizes.longest // 2,))
    found = {PLAIN: baseline(sizes), LONGEST: longest}
    for name, fields in sizes.carriers.items():
        label = name.replace(", the ", "-").replace("'s", "").replace(" ", "-")
        shared = fields == sizes.recurrent
        if name in sizes.controls:
            own = Variant(f"constant-{label}", {**fields, "constant_of": name}, sizes.window)
            found[constant_of(name)] = constant(sizes, sizes.window) if shared else own
        found[name] = recurrent(sizes, sizes.window) if shared else Variant(label, fields, sizes.window)
    return found


def constant_of(name: str) -> str:
    return f"constant for {name}"


def runs(setting: StudySetting) -> list[Run]:
    return window_runs(setting, CORPUS, list(variants(setting.sizes).values()))


# --- what they come to


class CarrierRows:
    """The rows of the table, each a variant evaluated with an overlap, and their measures: test and validation losses
    by seed, and FLOPs per token. Plain windows that overlap show what the FLOPs of a carrier could buy instead."""

    def __init__(self, sizes: CarrierSizes, found: Outcomes):
        self.rows: dict[str, tuple[Variant, int]] = {}
        for name, variant in variants(sizes).items():
            self.rows[name] = variant, sizes.longest // 2 if name == LONGEST else 0
            if name == PLAIN:
                self.rows |= {f"{PLAIN}, {overlap} read again": (variant, overlap) for overlap in variant.others}
        of_rows = self.rows.items()
        self.loss, self.validation, self.perplexity = (
            {name: found.of(v, measure(value, v.read_with(overlap), split)) for name, (v, overlap) in of_rows}
            for value, split in (("loss", "test"), ("loss", "validation"), ("word_perplexity", "test"))
        )
        self.swapped = {name: found.of(variant, measure(read="swapped")) for name, (variant, _) in of_rows}
        flops = {name: found.first(variant, f"counted_flops/{overlap}") for name, (variant, overlap) in of_rows}
        self.flops = {name: count for name, count in flops.items() if count is not None}
        self.added = {name: found.first(variant, "parameters_added") for name, (variant, _) in of_rows}

    def gain(self, name: str) -> dict[int, float]:
        return differences(self.loss[PLAIN], self.loss[name])

    def recovered(self, name: str) -> dict[int, float]:
        """In percent of what the longest context gains; empty unless it gains something in every seed."""
        ours, longest = self.gain(name), self.gain(LONGEST)
        if min(longest.values(), default=0) <= 0:
            return {}
        return {seed: 100 * ours[seed] / longest[seed] for seed in sorted(set(ours) & set(longest))}

    def content(self, name: str) -> dict[int, float]:
        return differences(self.swapped[name], self.loss[name])

    def overlapping(self, name: str) -> str | None:
        """Plain windows with the smallest overlap that costs at least as much as this."""
        plain = {other: flops for other, flops in self.flops.items() if other.startswith(f"{PLAIN},")}
        dearer = [other for other, flops in plain.items() if flops >= self.flops[name]]
        return min(dearer, key=plain.__getitem__, default=None)


def report(title: str, setting: StudySetting, outcomes: Mapping[str, Outcome]) -> Report:
    sizes: CarrierSizes = setting.sizes
    found = window_outcomes(setting, outcomes, CORPUS)
    table = CarrierRows(sizes, found)
    rows = []
    for name, (variant, _) in table.rows.items():
        if not table.loss[name]:
            continue
        vectors = variant.config.vector_count if variant.config.carrier != "none" else 0
        cells = {
            "carrier": name,
            "vectors": str(vectors or ""),
            "parameters added": f"{table.added[name]:,}" if vectors else "",
            "FLOPs/token": f"{table.flops[name]:.3g}",
            "test perplexity, word level": cell(table.perplexity[name], 1),
            "gain over plain, nats": cell(table.gain(name), 4) if name != PLAIN else "",
            "context recovered, %": "" if name in (PLAIN, LONGEST) else cell(table.recovered(name), 1),
            "by content, nats": cell(table.content(name), 4) if vectors else "",
        }
        rows.append(cells)
    claims = _claims(sizes, table)
    return Report(
        title,
        summary_of(claims),
        [Table.of("Every carrier", rows)],
        {f"gain_{value}": plot(sizes, found, value) for value in ("by_position", "by_window")} if rows else {},
        claims,
        _notes(sizes),
    )


def _notes(sizes: CarrierSizes) -> list[str]:
    windows = f"Windows of {sizes.window} tokens; the longest context is"
    before = f"{sizes.longest}, at least half of it before every token."
    longest = [
        f"{windows} the model as it is, read with {before}",
        "Only carriers are trained: what their constants gain is adaptation, which the longest context has none of.",
    ]
    if sizes.train == "all":
        longest = [f"{windows} a plain model trained and read with {before}"]
    tried = next((name for name, fields in sizes.carriers.items() if fields == sizes.recurrent), "no row here")
    told = f"Learning rates were tried for plain windows and for `recurrent`, which is {tried}"
    return [
        f"{ABOUT_INTERVALS}, of paired differences where two models are compared.",
        *longest,
        "FLOPs are all matrix products of a window with a memory, carrier and language model head included, and "
        "what is read again"
        + ("; plain windows that overlap show what they do without a memory." if sizes.more_overlaps else "."),
        "By content: how much worse the model reads with the memory of another document.",
        *([f"{told}: all with a memory have that one's."] if sizes.train == "all" and len(sizes.rates) > 1 else []),
        OVER_SEEDS,
    ]


def _claims(sizes: CarrierSizes, table: CarrierRows) -> list[Claim]:
    """About the carrier that is best on validation."""
    ended = {name: fmean(losses.values()) for name in sizes.carriers if (losses := table.validation[name])}
    if not ended:
        return []
    best = min(ended, key=lambda name: ended[name])
    half = {seed: gain / 2 for seed, gain in table.gain(LONGEST).items()}
    won_back = judged(
        [("A carrier wins back half of what the longest context gains", "ours", table.gain(best), half)], ""
    )
    if shares := table.recovered(best):
        won_back = [replace(claim, we_saw=f"{best} recovers {cell(shares, 1)} %") for claim in won_back]
    else:
        unseen = "the longest context itself gains nothing for sure"
        won_back = [replace(claim, we_saw=unseen, verdict=UNSEEN) for claim in won_back]
    content, papers = table.content(best), table.content(PAPERS)
    twice = {seed: 2 * max(less, 0.0) for seed, less in papers.items()}  # less than no content is none
    more = judged([("It carries twice the content of the paper's module", "ours", content, twice)], "")
    seen = f"{cell(content, 4)} nats by content, the paper's {cell(papers, 4)}"
    claims = [*won_back, *(replace(claim, we_saw=seen) for claim in more if best != PAPERS)]
    if other := table.overlapping(best):
        claim = "It is better than plain windows that overlap, at no more FLOPs"
        costs = f"{other}, at {table.flops[other] / table.flops[best]:.2f} of its FLOPs"
        compared = (claim, "ours", table.loss[other], table.loss[best])
        claims += judged([compared], f"nats per token better than {costs}")
    controls = [
        (f"{name.capitalize()} is better than a constant in its place", "ours", table.loss[constant_of(name)], losses)
        for name, losses in table.loss.items()
        if name in sizes.controls
    ]
    return [*claims, *judged(controls, "nats per token better")]


LINE_STYLES: tuple[dict[str, Any], ...] = (
    {"color": "0.7", "linestyle": "--", "marker": "+"},
    {"color": "0.55", "linestyle": "-", "marker": "o"},
    {"color": "0.45", "linestyle": "-.", "marker": "D"},
    {"color": "0.3", "linestyle": "--", "marker": "s"},
    {"color": "0.0", "linestyle": ":", "marker": "x"},
    {"color": "0.0", "linestyle": "--", "marker": "v"},
    {"color": "0.0", "linestyle": "-", "marker": "^"},
)
POINTS = 16


def plot(sizes: CarrierSizes, found: Outcomes, value: str) -> Figure:
    """How far the test loss is below plain windows', along a window or from window to window of a document. Losses
    themselves differ far more from place to place than between models."""
    where = "position in the window (tokens)" if value == "by_position" else "window of the document"
    figure, panel = one_panel(7.6, 3.8, where, "better than plain windows (nats per token)")
    chosen = variants(sizes)
    base = _by_place(found, chosen[PLAIN], value)
    for name, look in zip((name for name in chosen if name in sizes.carriers), LINE_STYLES, strict=False):
        ours = _by_place(found, chosen[name], value)
        places = [place for place in base if place in ours]
        panel.plot(places, [base[p] - ours[p] for p in places], label=name, linewidth=1, markersize=4, **look)
    panel.axhline(0, color="0.6", linewidth=0.8, linestyle=":")
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def _by_place(found: Outcomes, variant: Variant, value: str) -> dict[float, float]:
    """The mean over seeds: of neighbouring places together, where there are many, by the middle of them."""
    curves = found.of(variant, measure(value)).values()
    known = [sum(points) / len(points) for points in zip(*curves, strict=False) if None not in points]
    size = max(1, -(-len(known) // POINTS))
    parts: list[Sequence[float]] = [known[start : start + size] for start in range(0, len(known), size)]
    return {size * i + (len(part) - 1) / 2: sum(part) / len(part) for i, part in enumerate(parts)}


STUDIES = [
    Study("carriers", CORPORA, SCALES, runs, partial(report, "Carriers"), check_texts),
    Study(
        "pretrained",
        {**ONLY_BOOKS, "smoke": CORPORA["smoke"]},
        PRETRAINED_SCALES,
        runs,
        partial(report, "Carriers of a frozen SmolLM2-135M"),
        check_texts,
    ),
]
