"""A table, results.json and a picture of one sweep, or of several models and tasks side by side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import cycle, zip_longest
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..evaluation import plots
from ..utils.files import make_folder, write_text
from ..utils.markdown import markdown_table
from ..utils.provenance import provenance
from ..utils.safe_json import read_json, without_infinities, write_json
from .results import SWEEP, RunResult, Summary, Sweep, scores_of, summarize
from .tasks import TASKS

SUMMARY_COLUMNS: dict[str, Callable[[Summary], str]] = {
    "model": lambda row: row.model,
    "task": lambda row: row.task,
    "learning rate": lambda row: "all" if row.learning_rate is None else f"{row.learning_rate:g}",
    "runs": lambda row: str(row.runs),
    "mean": lambda row: _percent(row.mean),
    "deviation": lambda row: _percent(row.deviation),
    "best": lambda row: _percent(row.best),
    "worst": lambda row: _percent(row.worst),
    "failed": lambda row: f"{row.failed:.0%}",
    "mean of the others": lambda row: _percent(row.mean_of_others),
}

TABLE, RESULTS, PICTURE = "table.md", "results.json", "scores"
REPORT_FILES = (TABLE, RESULTS, f"{PICTURE}.*")


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def compare(folders: Sequence[str | Path], out: str | Path, margin: float | None = None) -> list[Sweep]:
    """Joins sweeps of several models and tasks into one table and one picture, in `out`."""
    if not folders:
        raise ValueError("there are no sweeps to compare: name at least one folder")
    sweeps = [Sweep.read(folder) for folder in folders]
    seen: dict[tuple[str, str], Path] = {}
    for sweep in sweeps:
        other = seen.setdefault((sweep.task, sweep.name), sweep.folder)
        if other is not sweep.folder:
            raise ValueError(
                f"{other} and {sweep.folder} are both sweeps of {sweep.name!r} on {sweep.task}: run one of them again "
                "with another name, which repeats no training"
            )
    folder = Path(out).expanduser()
    if (folder / SWEEP).is_file() and folder.resolve() not in [sweep.folder.resolve() for sweep in sweeps]:
        raise FileExistsError(f"{folder} holds a sweep with a table of its own: choose another folder")
    there = folder / RESULTS
    if there.is_file() and "summaries" not in read_json(there, "results of sweeps", "delete it to write another"):
        raise FileExistsError(f"{there} is not of sweeps, and would be overwritten: choose another folder")
    write(sweeps, folder, margin)
    return sweeps


def write(sweeps: Sequence[Sweep], folder: Path, margin: float | None = None) -> None:
    make_folder(folder)
    write_text(folder / TABLE, markdown(sweeps, margin))
    content = {
        **provenance(),
        "notes": _notes(sweeps, margin),
        "summaries": [asdict(row) for sweep in sweeps for row in summarize(sweep, margin)],
        "runs": [_as_dict(sweep, margin) for sweep in sweeps],
    }
    write_json(folder / RESULTS, without_infinities(content))
    plots.save(plot(sweeps, margin), folder / PICTURE)


def _as_dict(sweep: Sweep, margin: float | None) -> dict[str, Any]:
    names = ("learning_rate", "seed", "score", "metrics", "trivial", "margin", "ended", "steps", "seconds")
    runs = [{**{n: getattr(r, n) for n in names}, "failed": r.failed(margin)} for r in sweep.results]
    return {"name": sweep.name, "settings": sweep.settings, "runs": runs}


# --- the table -------------------------------------------------------------------------------------


def markdown(sweeps: Sequence[Sweep], margin: float | None = None) -> str:
    """Every learning rate of one sweep; of several sweeps, the best learning rate by its mean and all runs together."""
    rows = summarize(sweeps[0], margin) if len(sweeps) == 1 else _best_and_all(sweeps, margin)
    lines = [[cell(row) for cell in SUMMARY_COLUMNS.values()] for row in rows]
    text = markdown_table(list(SUMMARY_COLUMNS), lines, words=["model", "task"])
    return f"{text}\n" + "".join(f"- {note}\n" for note in _notes(sweeps, margin))


def _best_and_all(sweeps: Sequence[Sweep], margin: float | None) -> list[Summary]:
    order = list(dict.fromkeys(sweep.task for sweep in sweeps))
    rows = []
    for sweep in sorted(sweeps, key=lambda sweep: order.index(sweep.task)):
        *by_rate, over_all = summarize(sweep, margin)
        rows += [max(by_rate, key=lambda row: row.mean), over_all]
    return rows


def _notes(sweeps: Sequence[Sweep], margin: float | None) -> list[str]:
    """What one must know to interpret the numbers."""
    notes = ["Scores are in percent, of the model after its last step."]
    for task in dict.fromkeys(sweep.task for sweep in sweeps):
        same = [sweep for sweep in sweeps if sweep.task == task]
        result = same[0].results[0]
        limit = result.trivial + (result.margin if margin is None else margin)
        metric = " and ".join(TASKS[task].main or TASKS[task].metrics) if task in TASKS else "the task's metric"
        notes.append(
            f"{task}: {metric}. Without a model {_percent(result.trivial)}; a run has failed at {_percent(limit)} or "
            "less, or with NaN."
        )
        if different := _differences(same):
            notes.append(f"**{task}: the sweeps differ in {', '.join(different)}**, so their rows are not comparable.")
    if len(sweeps) > 1:
        notes.append("The first row of a model has its best learning rate, chosen by these same scores.")
    return notes


def _differences(sweeps: Sequence[Sweep]) -> list[str]:
    facts = [{**sweep.settings, "learning rates": sweep.learning_rates, "seeds": sweep.seeds} for sweep in sweeps]
    names = dict.fromkeys(name for fact in facts for name in fact if name != "model")
    return [name for name in names if any(fact.get(name) != facts[0].get(name) for fact in facts)]


# --- the picture -----------------------------------------------------------------------------------


def plot(sweeps: Sequence[Sweep], margin: float | None = None) -> Figure:
    """Score by learning rate, a panel for each task: every run a point, failed ones crossed out; the mean a line."""
    tasks = list(dict.fromkeys(sweep.task for sweep in sweeps))
    names = list(dict.fromkeys(sweep.name for sweep in sweeps))
    looks = dict(zip(names, cycle(style for style in plots.STYLES.values() if style["marker"] != "x"), strict=False))
    across = len(tasks) if len(tasks) < 4 else math.ceil(math.sqrt(len(tasks)))
    down = math.ceil(len(tasks) / across)
    figure = Figure(figsize=(max(5.4, 4.2 * across), 0.4 + 3.4 * down), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False)
    for panel, task in zip_longest(panels.flat, tasks):
        if task is None:
            panel.axis("off")
        else:
            _plot_task(panel, task, [sweep for sweep in sweeps if sweep.task == task], looks, margin)
    for left in panels[:, 0]:
        left.set_ylabel("score (%)")
    look: dict[str, Any] = {"fillstyle": "none", "markersize": 6, "linewidth": 1.2}
    handles = [Line2D([], [], label=name, **look, **looks[name]) for name in names]
    handles.append(Line2D([], [], linestyle="", marker="x", color="0.0", markersize=4, label="failed"))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)
    return figure


def _plot_task(
    panel: Any, task: str, sweeps: Sequence[Sweep], looks: Mapping[str, dict[str, Any]], margin: float | None
) -> None:
    for number, sweep in enumerate(sweeps):
        aside = 1.04 ** (number - (len(sweeps) - 1) / 2)  # keeps models from hiding each other
        _plot_sweep(panel, sweep, looks[sweep.name], aside, margin)
    results = [result for sweep in sweeps for result in sweep.results]
    limit = results[0].trivial + (results[0].margin if margin is None else margin)
    panel.axhline(100 * limit, color="0.6", linewidth=0.8, linestyle=(0, (1, 3)))
    panel.set_xscale("log")
    rates = sorted({result.learning_rate for result in results})
    panel.set_xticks(rates, [f"{rate:g}" for rate in rates], rotation=30)
    panel.minorticks_off()
    panel.set_title(task)
    panel.set_xlabel("learning rate (dotted: failed at or below)")


def _plot_sweep(panel: Any, sweep: Sweep, style: dict[str, Any], aside: float, margin: float | None) -> None:
    at = {rate: [r for r in sweep.results if r.learning_rate == rate] for rate in sweep.learning_rates}
    means = [100 * statistics.fmean(scores_of(results)) for results in at.values()]
    panel.plot([aside * rate for rate in at], means, linewidth=1.2, color=style["color"], linestyle=style["linestyle"])

    def points(results: Sequence[RunResult], **look: Any) -> None:
        rates, scores = [aside * r.learning_rate for r in results], [100 * score for score in scores_of(results)]
        panel.plot(rates, scores, linestyle="", color=style["color"], **look)

    points(sweep.results, marker=style["marker"], markersize=6, fillstyle="none")
    points([r for r in sweep.results if r.failed(margin)], marker="x", markersize=4)
