"""`scale` and `ablations`: Table 2 and section 4.5 of "Block-Recurrent Transformers", on books."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from onward.evaluation import plots
from onward.models.block_recurrent.configuration_block_recurrent import BASE as PAPER_SIZES
from onward.models.block_recurrent.configuration_block_recurrent import layer_at

from ..engine.intervals import Interval, cell, differences, over, verdict
from ..engine.reporting import Claim, Report, Table, summary_of
from ..engine.study import Outcome, Run, Setting, Study, Work
from ..engine.training_runs import check_texts
from .runs import (
    BASELINE,
    LAPTOP,
    LAPTOP_OF_MANY,
    OVER_SEEDS,
    RECURRENT,
    SMOKE,
    BlockReadings,
    BlockSizes,
    Row,
    about_rates,
    about_starts,
    block_runs,
    controls_table,
)

CORPUS = "books"
CORPORA = {
    "smoke": {CORPUS: "shakespeare"},
    "laptop": {CORPUS: "pg19"},
    "paper": {CORPUS: "pg19-all"},
}


# --- Table 2 ---------------------------------------------------------------------------------------

# Bits per token, word-level perplexity.
PAPER_SCALE = {
    "Slide:13L:large": (3.39, 34.80),
    "Rec:lstm:single:large": (3.36, 33.72),
    "Rec:fixed:skip:large": (3.32, 32.34),
}
LARGE_STEPS = BlockSizes(tokens=200_000 * 4 * 131_072, tokens_per_step=4 * 131_072)
SCALE_ROWS = [Row(name) for name in PAPER_SCALE]


def report_scale(setting: Setting, outcomes: Mapping[str, Outcome]) -> Report:
    readings = BlockReadings(setting, outcomes, CORPUS)
    rows = []
    for row in SCALE_ROWS:
        bits = readings.of(row)
        if bits:
            parameters = next(iter(readings.of(row, "parameters").values()))
            words = cell(readings.of(row, "test_word_perplexity"), 1)
            told = [f"{number:g}" for number in PAPER_SCALE[row.name]]
            rows.append([row.name, f"{parameters:,}", cell(bits, 3), words, *told])
    lost, about_lost = controls_table({CORPUS: readings}, SCALE_ROWS)
    claims = []
    for better in SCALE_ROWS[:0:-1]:
        gain = over(readings.of(SCALE_ROWS[0]), readings.of(better))
        if gain is not None:
            saw = f"{PAPER_SCALE['Slide:13L:large'][0]:g} -> {PAPER_SCALE[better.name][0]:g}"
            claim = f"At twice the heads and MLP, {better.name} is better than one more layer"
            claims.append(Claim(claim, saw, f"{gain.text(4)} bits per token", verdict(gain)))
    return Report(
        "A larger size",
        summary_of(claims),
        [Table("Table 2", SCALE_COLUMNS, rows), *lost],
        {"bits": plot_scale(readings)} if rows else {},
        claims,
        (OVER_SEEDS, *about_rates({CORPUS: readings}, SCALE_ROWS), *about_starts(outcomes), *about_lost, OF_PG19),
    )


def plot_scale(readings: BlockReadings) -> Figure:
    """Every seed of every row: what differs between rows is small beside what differs between seeds."""
    figure = Figure(figsize=(6, 2.6), layout="constrained")
    panel = figure.subplots()
    for place, row in enumerate(SCALE_ROWS):
        for seed, bits in readings.of(row).items():
            panel.plot(bits, place, color="0.0", marker=plots.marker(seed), fillstyle="none", markersize=6)
    panel.set_yticks(range(len(SCALE_ROWS)), [row.name for row in SCALE_ROWS])
    panel.set_ylim(len(SCALE_ROWS) - 0.5, -0.5)
    panel.set_xlabel("test loss (bits per token); a sign for each seed")
    return figure


SCALE_COLUMNS = ("model", "parameters", "bits per token", "word perplexity", "paper, bits", "paper, word perplexity")
OF_PG19 = "The paper's columns are of PG19 and models of 320 to 375 million parameters, for the shape of the thing."


# --- section 4.5 -----------------------------------------------------------------------------------


def windows_of(sizes: BlockSizes) -> list[int]:
    """A quarter, a half, and all of the base model's."""
    window = sizes.changes.get("window", PAPER_SIZES["window"])
    return [window // 4, window // 2, window]


def window_row(preset: str, sizes: BlockSizes, window: int) -> Row:
    """Segments stay as long, and the recurrent model has as many states at every window."""
    base = windows_of(sizes)[-1]
    if window == base:
        return Row(preset)
    changes: dict[str, int] = {"window": window, "segment_length": 8 * base}
    if preset == RECURRENT:
        changes["num_states"] = base
    return Row(preset, f"{preset}, window {window}", changes)


def state_rows(sizes: BlockSizes) -> dict[int, Row]:
    """By how many states there are."""
    base = windows_of(sizes)[-1]
    numbers = (base // 8, base // 4, base // 2, base, 2 * base)
    return {n: Row(RECURRENT, "" if n == base else f"{RECURRENT}, {n} states", _states(n, base)) for n in numbers}


def _states(number: int, base: int) -> dict[str, int]:
    return {} if number == base else {"num_states": number}


def layer_rows(sizes: BlockSizes) -> dict[str, Row]:
    """One recurrent layer, two side by side, two far apart; and one more layer without."""
    depth = sizes.changes.get("num_hidden_layers", PAPER_SIZES["num_hidden_layers"])
    own = layer_at(10 / 12, depth)
    pairs = {"two side by side": [own - 1, own], "two far apart": [max(1, layer_at(4 / 12, depth)), own]}
    rows = {"one recurrent layer": Row(RECURRENT)}
    rows |= {name: Row(RECURRENT, f"{RECURRENT}, {name}", {"recurrent_layers": at}) for name, at in pairs.items()}
    deeper = {"num_hidden_layers": depth + 1, "recurrent_layers": [own]}
    return rows | {"one, and one more plain layer": Row(RECURRENT, f"{RECURRENT}, one more layer", deeper)}


def ablation_rows(sizes: BlockSizes) -> list[Row]:
    rows = [window_row(preset, sizes, window) for window in windows_of(sizes) for preset in (RECURRENT, BASELINE)]
    rows += [*state_rows(sizes).values(), *layer_rows(sizes).values()]
    return list({row.name: row for row in rows}.values())


def report_ablations(setting: Setting, outcomes: Mapping[str, Outcome]) -> Report:
    sizes: BlockSizes = setting.sizes
    readings = BlockReadings(setting, outcomes, CORPUS)
    by_window = {
        preset: {w: readings.of(window_row(preset, sizes, w)) for w in windows_of(sizes)}
        for preset in (BASELINE, RECURRENT)
    }
    by_states = {number: readings.of(row) for number, row in state_rows(sizes).items()}
    by_layers = {name: readings.of(row) for name, row in layer_rows(sizes).items()}
    windows = [[str(w), *(cell(by_window[preset][w], 3) for preset in by_window)] for w in windows_of(sizes)]
    base = by_states[windows_of(sizes)[-1]]
    tables = [
        Table("Window", ("window", *(f"{preset}, bits" for preset in by_window)), windows),
        Table("States", COLUMNS_OF_STATES, [_ablation(str(n), found, base) for n, found in by_states.items()]),
        Table("Recurrent layers", COLUMNS_OF_LAYERS, [_ablation(n, found, base) for n, found in by_layers.items()]),
    ]
    lost, about_lost = controls_table({CORPUS: readings}, ablation_rows(sizes))
    claims = _claims(sizes, by_window, by_states, by_layers)
    return Report(
        "Windows, states and recurrent layers",
        summary_of(claims),
        [*tables, *lost],
        {"windows_and_states": plot(by_window, by_states)} if base else {},
        claims,
        (
            OVER_SEEDS,
            "Segments and, over windows, states stay as they are in the base model.",
            _places(sizes),
            *about_rates({CORPUS: readings}, ablation_rows(sizes)),
            *about_starts(outcomes),
            *about_lost,
        ),
    )


def _places(sizes: BlockSizes) -> str:
    """Few layers leave little room between two."""
    placed = []
    for name, row in layer_rows(sizes).items():
        config = row.config(sizes)
        placed.append(f"{name}: {' and '.join(map(str, config.recurrent_layers))} of {config.num_hidden_layers}")
    return f"Which layers are recurrent: {'; '.join(placed)}. The paper's: 10; 9 and 10; 4 and 10 of 12."


COLUMNS_OF_STATES = ("states", "bits per token", "against the base model")
COLUMNS_OF_LAYERS = ("recurrent layers", "bits per token", "against the base model")
Found = Mapping[int, float]


def _ablation(name: str, found: Found, base: Found) -> list[str]:
    return [name, cell(found, 3), "" if found == base else cell(over(found, base), 4)]


def _claims(
    sizes: BlockSizes,
    by_window: Mapping[str, Mapping[int, Found]],
    by_states: Mapping[int, Found],
    by_layers: Mapping[str, Found],
) -> list[Claim]:
    small, *_, large = windows_of(sizes)
    lost = {preset: differences(found[small], found[large]) for preset, found in by_window.items()}
    gains: list[tuple[str, str, Interval | None]] = []
    less = over(lost[BASELINE], lost[RECURRENT])
    gains.append(("A smaller window costs less with recurrence", "a much smaller effect", less))
    ahead = over(by_window[BASELINE][small], by_window[RECURRENT][small])
    gains.append((f"Recurrence is better than one more layer, with windows of {small} (ours)", "not told", ahead))
    fewest = min(by_states)
    gains.append(
        ("Fewer states are worse", "reduces the accuracy", over(by_states[fewest], by_states[windows_of(sizes)[-1]]))
    )
    one = by_layers["one recurrent layer"]
    gains.append(
        ("A second recurrent layer far from the first helps", "an improvement", over(one, by_layers["two far apart"]))
    )
    gains.append(
        (
            "but one more plain layer is better than that (ours)",
            "as good or better",
            over(by_layers["two far apart"], by_layers["one, and one more plain layer"]),
        )
    )
    beside = over(one, by_layers["two side by side"])
    gains.append(("A second recurrent layer beside the first helps (ours)", "no improvement", beside))
    return [
        Claim(claim, saw, f"{gain.text(4)} bits per token", verdict(gain))
        for claim, saw, gain in gains
        if gain is not None
    ]


def plot(by_window: Mapping[str, Mapping[int, Found]], by_states: Mapping[int, Found]) -> Figure:
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    looks = {BASELINE: plots.STYLES["plain"], RECURRENT: plots.STYLES["recurrent"]}
    for (preset, found), aside in zip(by_window.items(), (0.97, 1.03), strict=True):
        _line(left, found, aside, label=preset, **looks[preset])
    _line(right, by_states, **looks[RECURRENT])
    left.set_xlabel("window (tokens)")
    right.set_xlabel("states")
    left.set_ylabel("test, bits per token")
    left.legend(frameon=False)
    return figure


def _line(panel: Any, found: Mapping[int, Found], aside: float = 1.0, **style: object) -> None:
    """A little `aside`, so that two lines' bars do not cover each other."""
    points = [(x, Interval.of(list(values.values()))) for x, values in found.items() if values]
    errors: Sequence[float] = [interval.half or 0 for _, interval in points]
    places, means = [x for x, _ in points], [interval.mean for _, interval in points]
    panel.errorbar([aside * x for x in places], means, yerr=errors, capsize=2, linewidth=1, markersize=4, **style)
    panel.set_xscale("log", base=2)
    panel.set_xticks(places, [str(place) for place in places])


def runs_of_scale(setting: Setting) -> list[Run]:
    return block_runs(setting, CORPUS, SCALE_ROWS)


def runs_of_ablations(setting: Setting) -> list[Run]:
    return block_runs(setting, CORPUS, ablation_rows(setting.sizes))


def check(work: Work) -> None:
    check_texts(work, CORPUS)


STUDIES = [
    Study(
        "scale",
        CORPORA,
        {"smoke": SMOKE, "laptop": LAPTOP, "paper": LARGE_STEPS},
        runs_of_scale,
        report_scale,
        check,
    ),
    Study(
        "ablations",
        CORPORA,
        {"smoke": SMOKE, "laptop": LAPTOP_OF_MANY, "paper": BlockSizes()},
        runs_of_ablations,
        report_ablations,
        check,
    ),
]
