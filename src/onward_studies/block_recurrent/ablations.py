"""`ablations`: section 4.5 of "Block-Recurrent Transformers", on books: windows, states, recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from onward.evaluation import plots
from onward.models.block_recurrent.configuration_block_recurrent import BASE as PAPER_SIZES
from onward.models.block_recurrent.configuration_block_recurrent import layer_at

from ..engine.intervals import Interval, cell, differences, over
from ..engine.reporting import NOT_TOLD, Claim, Compared, Report, Table, judged, summary_of
from ..engine.sizes import scales_of
from ..engine.study import Outcome, Run, Study, StudySetting
from ..engine.texts import check_texts
from .notes import BITS, OVER_SEEDS, about_trainings, controls_table
from .rows import BASELINE, RECURRENT, BlockRow, BlockSizes, FewerLayers
from .runs import block_outcomes, block_runs
from .scale import CORPORA, CORPUS

BySeed = Mapping[int, float]


def windows_of(sizes: BlockSizes) -> list[int]:
    """A quarter, a half, and all of the base model's."""
    window = sizes.changes.get("window", PAPER_SIZES["window"])
    return [window // 4, window // 2, window]


def window_row(preset: str, sizes: BlockSizes, window: int) -> BlockRow:
    """Segments stay as long, and the recurrent model has as many states with every window."""
    base = windows_of(sizes)[-1]
    if window == base:
        return BlockRow(preset)
    changes: dict[str, int] = {"window": window, "segment_length": 8 * base}
    if preset == RECURRENT:
        changes["num_states"] = base
    return BlockRow(preset, f"{preset}, window {window}", changes)


def state_rows(sizes: BlockSizes) -> dict[int, BlockRow]:
    """By the number of states."""
    base = windows_of(sizes)[-1]
    others = {
        n: BlockRow(RECURRENT, f"{RECURRENT}, {n} states", {"num_states": n}) for n in (base // 8, base // 4, base // 2)
    }
    more = BlockRow(RECURRENT, f"{RECURRENT}, {2 * base} states", {"num_states": 2 * base})
    return {**others, base: BlockRow(RECURRENT), 2 * base: more}


ONE, BESIDE, APART = "one recurrent layer", "two side by side", "two far apart"
DEEPER = "one, and one more plain layer"


def layer_rows(sizes: BlockSizes) -> dict[str, BlockRow]:
    depth = sizes.changes.get("num_hidden_layers", PAPER_SIZES["num_hidden_layers"])
    own = layer_at(10 / 12, depth)
    layers = {BESIDE: [own - 1, own], APART: [max(1, layer_at(4 / 12, depth)), own]}
    rows = {name: BlockRow(RECURRENT, f"{RECURRENT}, {name}", {"recurrent_layers": at}) for name, at in layers.items()}
    deeper = {"num_hidden_layers": depth + 1, "recurrent_layers": [own]}
    return {ONE: BlockRow(RECURRENT), **rows, DEEPER: BlockRow(RECURRENT, f"{RECURRENT}, one more layer", deeper)}


def ablation_rows(sizes: BlockSizes) -> list[BlockRow]:
    rows = [window_row(preset, sizes, window) for window in windows_of(sizes) for preset in (RECURRENT, BASELINE)]
    rows += [*state_rows(sizes).values(), *layer_rows(sizes).values()]
    return list({row.name: row for row in rows}.values())


def runs(setting: StudySetting) -> list[Run]:
    return block_runs(setting, CORPUS, ablation_rows(setting.sizes))


# --- what they come to


def report(setting: StudySetting, outcomes: Mapping[str, Outcome]) -> Report:
    sizes: BlockSizes = setting.sizes
    found = block_outcomes(setting, outcomes, CORPUS)
    by_window = {
        preset: {window: found.of(window_row(preset, sizes, window), BITS) for window in windows_of(sizes)}
        for preset in (BASELINE, RECURRENT)
    }
    by_states = {str(number): found.of(row, BITS) for number, row in state_rows(sizes).items()}
    by_layers = {name: found.of(row, BITS) for name, row in layer_rows(sizes).items()}
    windows = [
        {"window": str(w), **{f"{preset}, bits": cell(bits[w], 3) for preset, bits in by_window.items()}}
        for w in windows_of(sizes)
    ]
    tables = [
        Table.of("Window", windows),
        _against_base("States", "states", by_states, by_layers[ONE]),
        _against_base("Recurrent layers", "recurrent layers", by_layers, by_layers[ONE]),
    ]
    lost, about_lost = controls_table({CORPUS: found}, ablation_rows(sizes))
    claims = _claims(by_window, by_states, by_layers)
    return Report(
        "Windows, states and recurrent layers",
        summary_of(claims),
        [*tables, *lost],
        {"windows_and_states": plot(by_window, by_states)} if by_layers[ONE] else {},
        claims,
        (
            OVER_SEEDS,
            "Segments and, over windows, states stay as they are in the base model.",
            _places(sizes),
            *about_trainings({CORPUS: found}, ablation_rows(sizes), outcomes),
            *about_lost,
        ),
    )


def _against_base(title: str, column: str, bits: Mapping[str, BySeed], base: BySeed) -> Table:
    rows = [[name, cell(own, 3), "" if own == base else cell(over(own, base), 4)] for name, own in bits.items()]
    return Table(title, (column, "bits per token", "against the base model"), rows)


def _places(sizes: BlockSizes) -> str:
    """A model with few layers has little room between two of them."""
    placed = []
    for name, row in layer_rows(sizes).items():
        config = row.config(sizes)
        placed.append(f"{name}: {' and '.join(map(str, config.recurrent_layers))} of {config.num_hidden_layers}")
    return f"Which layers are recurrent: {'; '.join(placed)}. The paper's: 10; 9 and 10; 4 and 10 of 12."


def _claims(
    by_window: Mapping[str, Mapping[int, BySeed]], by_states: Mapping[str, BySeed], by_layers: Mapping[str, BySeed]
) -> list[Claim]:
    """Of two numbers of bits, the larger one is worse."""
    small, *_, large = by_window[BASELINE]
    lost = {preset: differences(bits[small], bits[large]) for preset, bits in by_window.items()}
    ahead = f"Recurrence is better than one more layer, with windows of {small} (ours)"
    fewest, one = next(iter(by_states.values())), by_layers[ONE]
    apart, beside = (
        "A second recurrent layer far from the first helps",
        "A second recurrent layer beside the first helps",
    )
    compared: list[Compared] = [
        ("A smaller window costs less with recurrence", "a much smaller effect", lost[BASELINE], lost[RECURRENT]),
        (ahead, NOT_TOLD, by_window[BASELINE][small], by_window[RECURRENT][small]),
        ("Fewer states are worse", "reduces the accuracy", fewest, one),
        (apart, "an improvement", one, by_layers[APART]),
        (
            "but one more plain layer is better than that (ours)",
            "as good or better",
            by_layers[APART],
            by_layers[DEEPER],
        ),
        (f"{beside} (ours)", "no improvement", one, by_layers[BESIDE]),
    ]
    return judged(compared, "bits per token")


def plot(by_window: Mapping[str, Mapping[int, BySeed]], by_states: Mapping[str, BySeed]) -> Figure:
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    looks = {BASELINE: plots.STYLES["plain"], RECURRENT: plots.STYLES["recurrent"]}
    for (preset, bits), aside in zip(by_window.items(), (0.97, 1.03), strict=True):
        _line(left, bits, aside, label=preset, **looks[preset])
    _line(right, {int(number): bits for number, bits in by_states.items()}, **looks[RECURRENT])
    left.set_xlabel("window (tokens)")
    right.set_xlabel("states")
    left.set_ylabel("test, bits per token")
    left.legend(frameon=False)
    return figure


def _line(panel: Any, bits: Mapping[int, BySeed], aside: float = 1.0, **style: object) -> None:
    """A little `aside`, so that two lines' bars do not cover each other."""
    points = [(x, Interval.of(list(values.values()))) for x, values in bits.items() if values]
    errors: Sequence[float] = [interval.half or 0 for _, interval in points]
    places, means = [x for x, _ in points], [interval.mean for _, interval in points]
    panel.errorbar([aside * x for x in places], means, yerr=errors, capsize=2, linewidth=1, markersize=4, **style)
    panel.set_xscale("log", base=2)
    panel.set_xticks(places, [str(place) for place in places])


STUDIES = [Study("ablations", CORPORA, scales_of(FewerLayers), runs, report, check_texts)]
