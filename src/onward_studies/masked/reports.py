"""`mlm` and `stability`: what the runs of BERT and its recurrent twin come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from onward.evaluation import plots
from onward.finetuning import RunResult, Summary, Sweep
from onward.finetuning.report import plot as plot_scores
from onward.finetuning.results import scores_of

from ..engine.figures import one_panel
from ..engine.intervals import ABOUT_INTERVALS, cell, over
from ..engine.outcomes import Outcomes
from ..engine.reporting import NOT_TOLD, Report, Table, judged, summary_of
from ..engine.study import Outcome, Study, StudySetting
from .runs import BASE, CORPORA, MODELS, OURS, SCALES, check, finetuning_run, order_run, pretrained_run, runs

STYLES = dict(zip(MODELS, (plots.STYLES[name] for name in ("plain", "recurrent", "constant")), strict=True))
BySeed = Mapping[int, float]


# --- lookups


def sweeps(setting: StudySetting, outcomes: Mapping[str, Outcome]) -> dict[str, dict[str, Sweep]]:
    """By task and model: the runs of all seeds together."""
    found: dict[str, dict[str, Sweep]] = {}
    for task in setting.sizes.tasks:
        of_task = Outcomes(setting, outcomes, partial(finetuning_run, task))
        for name in MODELS:
            of_seeds = of_task.of(name, "results").values()
            results = [RunResult(path=Path(), model=name, history=[], **r) for of_seed in of_seeds for r in of_seed]
            if results:
                results.sort(key=lambda result: (result.learning_rate, result.seed))
                found.setdefault(task, {})[name] = Sweep(Path(), name, {"task": task, "model": name}, results)
    return found


def best_scores(sweep: Sweep) -> dict[int, float]:
    """By seed, in percent, with the learning rate that is best on average: chosen by these same scores, as is usual."""
    by_rate = [[r for r in sweep.results if r.learning_rate == rate] for rate in sweep.learning_rates]
    best = max(by_rate, key=lambda results: sum(scores_of(results)) / len(results))
    return {r.seed: 100 * score for r, score in zip(best, scores_of(best), strict=True)}


def over_tasks(of_tasks: Mapping[str, Mapping[str, Sweep]], name: str, score: Callable[[Sweep], BySeed]) -> BySeed:
    """The mean over all tasks, by seed; only of seeds that have run on all of them."""
    scores = [score(models[name]) for models in of_tasks.values() if name in models]
    if not scores or len(scores) < len(of_tasks):
        return {}
    seeds = set.intersection(*map(set, scores))
    return {seed: fmean(of_task[seed] for of_task in scores) for seed in sorted(seeds)}


def over_rates(numbers_of: Callable[[Sequence[RunResult]], Sequence[float]], sweep: Sweep) -> BySeed:
    """The mean over all learning rates, by seed, in percent."""
    by_seed = {s: [r for r in sweep.results if r.seed == s] for s in sorted({r.seed for r in sweep.results})}
    return {seed: 100 * fmean(numbers_of(results)) for seed, results in by_seed.items()}


def _failed(results: Sequence[RunResult]) -> list[float]:
    return [float(result.failed()) for result in results]


def _against_base(name: str, values: Mapping[str, BySeed], digits: int) -> str:
    return "" if name == BASE else cell(over(values[name], values[BASE]), digits)


# --- mlm


def report_mlm(setting: StudySetting, outcomes: Mapping[str, Outcome]) -> Report:
    found, of_tasks = Outcomes(setting, outcomes, pretrained_run), sweeps(setting, outcomes)
    losses = {name: found.of(name, "validation_loss") for name in MODELS}
    scores = {name: over_tasks(of_tasks, name, best_scores) for name in MODELS}
    rows, tasks = [], []
    for name in MODELS:
        if not found.ended(name):
            continue
        hours = [seconds / 3600 for seconds in found.of(name, "training_seconds").values()]
        cells = [
            f"{found.first(name, 'parameters'):,}",
            f"{found.first(name, 'learning_rate'):g}",
            str(len(losses[name])),
            f"{fmean(hours):.2f}" if hours else "",
            cell(losses[name], 3),
            _against_base(name, losses, 3),
            cell(scores[name], 1),
            _against_base(name, scores, 1),
        ]
        rows.append([name, *cells, "+2.1 (10 tasks)" if name == OURS else ""])
        by_task = [cell(best_scores(models[name]), 1) if name in models else "" for models in of_tasks.values()]
        tasks.append([name, *by_task])
    tables = [Table("Pretraining and fine-tuned average", COLUMNS, rows)]
    if of_tasks:
        tables.append(Table("Fine-tuned scores, best learning rate", ["model", *of_tasks], tasks))
    if order := word_order_rows(setting, outcomes):
        tables.append(Table.of("Without the order of words", order))
    lower = ("Recurrence lowers the masked language model loss at equal parameters", NOT_TOLD)
    higher = ("Recurrence improves the fine-tuned average", "+2.1 points over 10 tasks")
    claims = judged([(*lower, losses[BASE], losses[OURS])], "nats", 3)
    claims += judged([(*higher, scores[OURS], scores[BASE])], "points", 1)
    told = [replace(claim, we_saw=f"{claim.we_saw}, stride 1 against BERT") for claim in claims]
    curves = {name: [curve for curve in found.of(name, "curve").values()] for name in MODELS}
    return Report(
        "BERT and its recurrent twin at equal parameters",
        summary_of(told),
        tables,
        {"pretraining": plot_curves(curves)} if rows else {},
        claims,
        NOTES,
    )


PRETRAINING_COLUMNS = (
    "parameters",
    "learning rate",
    "seeds",
    "hours of a run",
    "validation MLM loss, nats",
    "against BERT",
)
COLUMNS = ("model", *PRETRAINING_COLUMNS, "fine-tuned average", "against BERT", "the paper's")


def word_order_rows(setting: StudySetting, outcomes: Mapping[str, Outcome]) -> list[dict[str, str]]:
    found = Outcomes(setting, outcomes, order_run)
    losses = {name: (found.of(name, "in_order"), found.of(name, "shuffled")) for name in MODELS}
    return [
        {
            "model": name,
            "MLM loss, nats": cell(ordered, 3),
            "visible words shuffled": cell(mixed, 3),
            "what their order is worth": cell(over(mixed, ordered), 3),
        }
        for name, (ordered, mixed) in losses.items()
        if ordered
    ]


NOTES = (
    f"{ABOUT_INTERVALS}; differences are taken seed by seed. Each seed pretrains a model and fine-tunes it.",
    "Learning rates of pretraining were chosen on validation, by short runs, for BERT and for stride 1; stride 2 has "
    "that of stride 1.",
    "Shuffled: hidden words stay where they are, and the others change places. A model that reads as well knows a text "
    "by its words alone.",
    "Fine-tuned scores are in percent, with each model's and task's best learning rate, chosen by these same scores.",
)


def plot_curves(curves: Mapping[str, Sequence[Sequence[tuple[float, float]]]]) -> Figure:
    """Validation loss over tokens: every seed, and their mean."""
    figure, panel = one_panel(6.4, 4, "tokens read (millions)", "validation loss (nats per hidden token)")
    for name, of_seeds in curves.items():
        if not of_seeds:
            continue
        thin = {"color": STYLES[name]["color"], "linestyle": STYLES[name]["linestyle"], "linewidth": 0.5}
        for curve in of_seeds:
            panel.plot([tokens / 1e6 for tokens, _ in curve], [loss for _, loss in curve], **thin)
        means = [fmean(loss for _, loss in points) for points in zip(*of_seeds, strict=False)]
        tokens = [tokens / 1e6 for tokens, _ in of_seeds[0][: len(means)]]
        panel.plot(tokens, means, label=name, linewidth=1, markersize=4, **STYLES[name])
    panel.legend(frameon=False)
    return figure


# --- stability


def report_stability(setting: StudySetting, outcomes: Mapping[str, Outcome]) -> Report:
    of_tasks = sweeps(setting, outcomes)
    found = [(name, task, sweep) for task, models in of_tasks.items() for name, sweep in models.items()]
    rows = [_stability_row(*one) for one in found]
    scores, failed = (
        {name: over_tasks(of_tasks, name, partial(over_rates, numbers)) for name in MODELS}
        for numbers in (scores_of, _failed)
    )
    shown = [name for name in MODELS if scores[name]]
    totals = [
        [
            name,
            cell(failed[name], 1),
            _against_base(name, failed, 1),
            cell(scores[name], 1),
            _against_base(name, scores, 1),
        ]
        for name in shown
    ]
    fewer = (
        "Recurrence makes fine-tuning more stable over learning rates: fewer runs fail",
        "increased stability over a range of learning rates",
    )
    higher = ("Over all learning rates, its scores are higher (ours)", NOT_TOLD)
    claims = judged([(*fewer, failed[BASE], failed[OURS])], "% of all runs fewer", 1)
    claims += judged([(*higher, scores[OURS], scores[BASE])], "points", 1)
    columns = ("model", "failed runs, %", "against BERT", "mean score", "against BERT")
    return Report(
        "Fine-tuning over learning rates and seeds",
        summary_of(claims) if claims else "Nothing to compare yet.",
        [Table("All learning rates and tasks", columns, totals), Table.of("By task", rows)],
        {"scores": plot_scores([sweep for _, _, sweep in found])} if rows else {},
        claims,
        (
            "Over all tasks, learning rates and seeds, in percent, with half a 95 % interval over seeds (Student), of "
            "paired differences where two models are compared.",
            "A run has failed that scores no better than without a model, by the margin in docs/fine-tuning.md, or "
            "that ended with NaN.",
        ),
    )


def _stability_row(name: str, task: str, sweep: Sweep) -> dict[str, str]:
    summary = Summary.of(sweep)
    return {
        "model": name,
        "task": task,
        "runs": str(summary.runs),
        "mean over all rates": f"{100 * summary.mean:.1f}",
        "deviation": "" if summary.deviation is None else f"{100 * summary.deviation:.1f}",
        "worst": f"{100 * summary.worst:.1f}",
        "best rate's mean": f"{fmean(best_scores(sweep).values()):.1f}",
        "failed": f"{summary.failed:.0%}",
    }


STUDIES = [
    Study("mlm", CORPORA, SCALES, runs, report_mlm, check),
    Study("stability", CORPORA, SCALES, runs, report_stability, check),
]
