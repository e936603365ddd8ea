"""What the runs of `mlm` and `stability` come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from onward.evaluation import plots
from onward.finetuning import RunResult, Summary, Sweep
from onward.finetuning.report import plot as plot_scores
from onward.finetuning.results import scores_of

from ..engine.intervals import cell, over, verdict
from ..engine.reporting import Claim, Report, Table
from ..engine.study import Outcome, Setting
from .runs import BASE, MODELS, OURS, order_run, slug

STYLES = dict(zip(MODELS, (plots.STYLES[name] for name in ("plain", "recurrent", "constant")), strict=True))


def pretrained(setting: Setting, outcomes: Mapping[str, Outcome]) -> dict[str, dict[int, Outcome]]:
    """By model and seed."""
    names = {name: {seed: f"mlm-{slug(name)}-seed{seed}" for seed in range(setting.seeds)} for name in MODELS}
    return {
        name: {seed: outcomes[run] for seed, run in runs.items() if run in outcomes} for name, runs in names.items()
    }


def sweeps(setting: Setting, outcomes: Mapping[str, Outcome]) -> dict[str, dict[str, Sweep]]:
    """By task and model: the runs of all seeds together."""
    found: dict[str, dict[str, Sweep]] = {}
    for task in setting.sizes.tasks:
        for name in MODELS:
            runs = [outcomes.get(f"{task}-{slug(name)}-seed{seed}") for seed in range(setting.seeds)]
            results = [
                RunResult(path=Path(), model=name, history=[], **result)
                for outcome in runs
                if outcome is not None
                for result in outcome["results"]
            ]
            if results:
                results.sort(key=lambda result: (result.learning_rate, result.seed))
                found.setdefault(task, {})[name] = Sweep(Path(), name, {"task": task, "model": name}, results)
    return found


def best_scores(sweep: Sweep) -> dict[int, float]:
    """By seed, in percent, with the learning rate that is best on average: chosen by these same scores, as is usual."""
    by_rate = {
        rate: [result for result in sweep.results if result.learning_rate == rate] for rate in sweep.learning_rates
    }
    best = max(by_rate.values(), key=lambda results: sum(scores_of(results)) / len(results))
    return {r.seed: 100 * score for r, score in zip(best, scores_of(best), strict=True)}


def averages(of_tasks: Mapping[str, Mapping[str, Sweep]], name: str) -> dict[int, float]:
    """The mean over all tasks, by seed; only of seeds that have run on all of them."""
    scores = [best_scores(models[name]) for models in of_tasks.values() if name in models]
    if not scores or len(scores) < len(of_tasks):
        return {}
    seeds = set.intersection(*map(set, scores))
    return {seed: sum(of_task[seed] for of_task in scores) / len(scores) for seed in sorted(seeds)}


def report_mlm(setting: Setting, outcomes: Mapping[str, Outcome]) -> Report:
    runs, of_tasks = pretrained(setting, outcomes), sweeps(setting, outcomes)
    losses = {
        name: {seed: run["validation_loss"] for seed, run in of_seeds.items() if run["validation_loss"] is not None}
        for name, of_seeds in runs.items()
    }
    scores = {name: averages(of_tasks, name) for name in MODELS}
    rows, tasks = [], []
    for name, of_seeds in runs.items():
        if not of_seeds:
            continue
        first = next(iter(of_seeds.values()))
        hours = [run["training_seconds"] / 3600 for run in of_seeds.values() if "training_seconds" in run]
        rows.append(
            [
                name,
                f"{first['parameters']:,}",
                f"{first['learning_rate']:g}",
                str(len(losses[name])),
                f"{sum(hours) / len(hours):.2f}" if hours else "",
                cell(losses[name], 3),
                "" if name == BASE else cell(over(losses[name], losses[BASE]), 3),
                cell(scores[name], 1),
                "" if name == BASE else cell(over(scores[name], scores[BASE]), 1),
                "+2.1 (10 tasks)" if name == OURS else "",
            ]
        )
        by_task = [cell(best_scores(models[name]), 1) if name in models else "" for models in of_tasks.values()]
        tasks.append([name, *by_task])
    columns = (
        "model",
        "parameters",
        "learning rate",
        "seeds",
        "hours of a run",
        "validation MLM loss, nats",
        "against BERT",
        "fine-tuned average",
        "against BERT",
        "the paper's",
    )  #
    tables = [Table("Pretraining and fine-tuned average", columns, rows)]
    if of_tasks:
        tables.append(Table("Fine-tuned scores, best learning rate", ["model", *of_tasks], tasks))
    if order := word_order_rows(setting, outcomes):
        tables.append(Table("Without the order of words", ORDER, order))
    better = [over(losses[BASE], losses[OURS]), over(scores[OURS], scores[BASE])]
    claims = [
        Claim(what, saw, f"{gain.text(digits)} {unit}", verdict(gain))
        for what, saw, unit, digits, gain in (
            ("Recurrence lowers the masked language model loss at equal parameters", "not told", "nats", 3, better[0]),
            ("Recurrence improves the fine-tuned average", "+2.1 points over 10 tasks", "points", 1, better[1]),
        )
        if gain is not None
    ]
    summary = " ".join(f"{claim.claim}: {claim.verdict} ({claim.we_saw}, stride 1 against BERT)." for claim in claims)
    return Report(
        "BERT and its recurrent twin at equal parameters",
        summary or "Too little has run to say anything yet.",
        tables,
        {"pretraining": plot_curves(runs)} if any(runs.values()) else {},
        claims,
        NOTES,
    )


ORDER = ("model", "MLM loss, nats", "visible words shuffled", "what their order is worth")


def word_order_rows(setting: Setting, outcomes: Mapping[str, Outcome]) -> list[list[str]]:
    rows = []
    for name in MODELS:
        runs = {seed: outcomes.get(order_run(name, seed), {}) for seed in range(setting.seeds)}
        ordered, mixed = (
            {seed: run[read] for seed, run in runs.items() if read in run} for read in ("in_order", "shuffled")
        )
        if ordered:
            rows.append([name, cell(ordered, 3), cell(mixed, 3), cell(over(mixed, ordered), 3)])
    return rows


NOTES = (
    "± is half a 95 % interval over seeds (Student); differences are taken seed by seed. Each seed pretrains a model "
    "and fine-tunes it.",
    "Learning rates of pretraining were chosen on validation, by short runs, for BERT and for stride 1; stride 2 has "
    "that of stride 1.",
    "Shuffled: hidden words stay where they are, and the others change places. A model that reads as well knows a text "
    "by its words alone.",
    "Fine-tuned scores are in percent, with each model's and task's best learning rate, chosen by these same scores.",
)


def plot_curves(runs: Mapping[str, Mapping[int, Outcome]]) -> Figure:
    """Validation loss over tokens, the mean of the seeds there are."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    panel = figure.subplots()
    for name, of_seeds in runs.items():
        curves = [outcome["curve"] for outcome in of_seeds.values() if "curve" in outcome]
        if not curves:
            continue
        points = [[tokens / 1e6 for tokens, _ in curve] for curve in curves]
        losses = [[loss for _, loss in curve] for curve in curves]
        for x, y in zip(points, losses, strict=True):
            panel.plot(x, y, color=STYLES[name]["color"], linestyle=STYLES[name]["linestyle"], linewidth=0.5)
        means = [sum(column) / len(column) for column in zip(*losses, strict=False)]
        panel.plot(points[0][: len(means)], means, label=name, linewidth=1, markersize=4, **STYLES[name])
    panel.set_xlabel("tokens read (millions)")
    panel.set_ylabel("validation loss (nats per hidden token)")
    panel.legend(frameon=False)
    return figure


def report_stability(setting: Setting, outcomes: Mapping[str, Outcome]) -> Report:
    of_tasks = sweeps(setting, outcomes)
    columns = ("model", "task", "runs", "mean over all rates", "deviation", "worst", "best rate's mean", "failed")
    rows = []
    for task, models in of_tasks.items():
        for name, found in models.items():
            all_of_them, best = Summary.of(found), best_scores(found)
            spread = "" if all_of_them.deviation is None else f"{100 * all_of_them.deviation:.1f}"
            rows.append(
                [
                    name,
                    task,
                    str(all_of_them.runs),
                    f"{100 * all_of_them.mean:.1f}",
                    spread,
                    f"{100 * all_of_them.worst:.1f}",
                    f"{sum(best.values()) / len(best):.1f}",
                    f"{all_of_them.failed:.0%}",
                ]  #
            )
    scores = {name: over_all_rates(of_tasks, name, scores_of) for name in MODELS}
    failed = {name: over_all_rates(of_tasks, name, _failed) for name in MODELS}
    totals = [
        [
            name,
            cell(failed[name], 1),
            "" if name == BASE else cell(over(failed[name], failed[BASE]), 1),
            cell(scores[name], 1),
            "" if name == BASE else cell(over(scores[name], scores[BASE]), 1),
        ]
        for name in MODELS
        if scores[name]
    ]
    fewer, better = over(failed[BASE], failed[OURS]), over(scores[OURS], scores[BASE])
    claims = []
    if fewer is not None and better is not None:
        saw = "increased stability over a range of learning rates"
        what = "Recurrence makes fine-tuning more stable over learning rates: fewer runs fail"
        claims.append(Claim(what, saw, f"{fewer.text(1)} % of all runs fewer", verdict(fewer)))
        what = "Over all learning rates, its scores are higher (ours)"
        claims.append(Claim(what, "not told", f"{better.text(1)} points", verdict(better)))
    return Report(
        "Fine-tuning over learning rates and seeds",
        " ".join(f"{claim.claim}: {claim.verdict} ({claim.we_saw})." for claim in claims) or "Nothing to compare yet.",
        [
            Table("All learning rates and tasks", TOTALS, totals),
            Table("By task", columns, rows),
        ],
        {"scores": plot_scores([found for models in of_tasks.values() for found in models.values()])} if rows else {},
        claims,
        (
            "Over all tasks, learning rates and seeds, in percent, with half a 95 % interval over seeds (Student), of "
            "paired differences where two models are compared.",
            "A run has failed that scores no better than without a model, by the margin in docs/fine-tuning.md, or "
            "that ended with NaN.",
        ),
    )


TOTALS = ("model", "failed runs, %", "against BERT", "mean score", "against BERT")


def over_all_rates(
    of_tasks: Mapping[str, Mapping[str, Sweep]], name: str, numbers_of: Callable[[Sequence[RunResult]], Sequence[float]]
) -> dict[int, float]:
    """By seed, in percent: the mean of these numbers of the runs with all learning rates, and of that over tasks. Only
    of seeds that have run on all tasks."""
    of_seeds: dict[int, list[float]] = {}
    for models in of_tasks.values():
        results = models[name].results if name in models else []
        for seed in sorted({result.seed for result in results}):
            numbers = numbers_of([result for result in results if result.seed == seed])
            of_seeds.setdefault(seed, []).append(fmean(numbers))
    return {seed: 100 * fmean(means) for seed, means in of_seeds.items() if len(means) == len(of_tasks)}


def _failed(results: Sequence[RunResult]) -> list[float]:
    return [float(result.failed()) for result in results]
