"""Many runs that differ in learning rate and seed: none is run twice, however often the sweep is interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..training.checkpoints import alone_in, discard_all
from ..training.claiming import folder_named, refuse_foreign, refuse_other
from ..training.many_runs import RunsProgress
from ..utils.files import make_folder
from ..utils.processes import refuse_several
from ..utils.safe_json import field_of, read_json, write_json
from .recipe import FinetuningRecipe, check_learning_rate
from .report import WRITTEN, write
from .result import RESULT, RunResult
from .run import MODEL, Setting, prepare, run
from .summary import RUNS, SWEEP, Sweep
from .tasks import Task


def sweep(
    model: str | Path,
    task: str | Task,
    out: str | Path,
    *,
    learning_rates: Sequence[float] = (2e-5, 3e-5, 5e-5),
    seeds: int | Sequence[int] = 3,
    recipe: FinetuningRecipe | None = None,
    data: str | Path | None = None,
    split: str = "validation",
    name: str | None = None,
    margin: float | None = None,
    save_models: bool = False,
    progress: bool | RunsProgress = True,
) -> Sweep:
    """Fine-tunes a model with every learning rate and the seeds 0, 1, ... (or those that are listed), and writes a
    table and a picture of it.

    Called again, it goes on with the first run that has not ended, from its last checkpoint; with more learning rates
    or seeds, only those that are missing are run. `name` is what the model is called in tables, its folder's name by
    default. `margin` is for those who define a failed run in another way than docs/fine-tuning.md does. A display given
    as `progress` has shown other runs before, and goes on.
    """
    rates = list(dict.fromkeys(float(rate) for rate in learning_rates))
    _check(rates, seeds)
    listed = range(seeds) if isinstance(seeds, int) else list(dict.fromkeys(seeds))
    refuse_several("fine-tuning")
    folder = folder_named(out, "out")
    refuse_foreign(folder, SWEEP, FOREIGN)
    setting = prepare(model, task, recipe, data=data, split=split, save_models=save_models)
    make_folder(folder)
    with alone_in(folder):
        _claim(folder, name or Path(str(model)).name, setting.described)
        _run_missing(setting, [(rate, seed) for seed in listed for rate in rates], folder, progress)
    found = Sweep.read(folder)
    write([found], folder, margin)
    return found


def _check(rates: Sequence[float], seeds: int | Sequence[int]) -> None:
    if not rates:
        raise ValueError("learning_rates is empty: give at least one, such as 2e-5")
    for rate in rates:
        check_learning_rate(rate)
    if not isinstance(seeds, int) and seeds and all(type(seed) is int and seed >= 0 for seed in seeds):
        return
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise ValueError(f"seeds={seeds!r}: it says how many runs each learning rate has, at least 1; or list them")


def _run_missing(
    setting: Setting, runs: Sequence[tuple[float, int]], folder: Path, progress: bool | RunsProgress
) -> None:
    missing = [pair for pair in runs if not (_place(folder, *pair) / RESULT).is_file()]
    for pair in set(runs) - set(missing):
        discard_all(_place(folder, *pair))  # where one was killed just then
    if setting.save_models:
        _refuse_unsaved([_place(folder, *pair) for pair in runs if pair not in missing])
    if not missing:
        return
    examples = round(len(setting.prepared.train) * setting.recipe.epochs)
    if isinstance(progress, RunsProgress):
        for rate, seed in missing:
            run(setting, rate, seed, _place(folder, rate, seed), [progress])
        return
    plan = _plan(setting, len(missing), len(runs))
    shown = RunsProgress(len(missing) * examples, "examples", plan) if progress else None
    try:
        for number, (rate, seed) in enumerate(runs, start=1):
            if (rate, seed) not in missing:
                continue
            if shown:
                label = f"run {number}/{len(runs)}, {setting.prepared.task.name}, {rate}, seed {seed}"
                shown.start_run(label, examples)
            result = run(setting, rate, seed, _place(folder, rate, seed), [shown] if shown else [])
            if shown:
                shown.end_run(_said(result))
    finally:
        if shown:
            shown.close()


def _refuse_unsaved(ended: Sequence[Path]) -> None:
    lost = [place for place in ended if RunResult.read(place).ended is None and not (place / MODEL).is_dir()]
    if lost:
        raise ValueError(
            f"save_models=True: {len(lost)} of the runs had ended without it, and their weights are gone: delete "
            f"their folders (such as {lost[0]}) to run them again, or choose another folder"
        )


def _plan(setting: Setting, missing: int, runs: int) -> str:
    prepared = setting.prepared
    dropped = f"; {prepared.dropped} examples could not be used, and are left out" if prepared.dropped else ""
    return f"{missing} of {runs} runs are left to do. {prepared.task.name}: {prepared.fingerprint}{dropped}"


def _said(result: RunResult) -> str:
    if result.score is None:
        return f"failed, {result.ended}"
    return f"score {result.score:.4f}" + (f", failed ({result.trivial:.4f} needs no model)" if result.failed() else "")


def _place(folder: Path, rate: float, seed: int) -> Path:
    return folder / RUNS / f"{rate}-{seed}"


# -- whose folder it is


FOREIGN = ("config.json", *WRITTEN)


def _claim(folder: Path, name: str, described: dict[str, Any]) -> None:
    """Refuses a folder that holds another sweep; one without a finished run gives way."""
    file = folder / SWEEP
    if file.is_file() and any(folder.glob(f"{RUNS}/*/{RESULT}")):
        there = read_json(file, "what the sweep in this folder is", "put a copy of it back, or choose another folder")
        refuse_other(folder, "sweep", field_of(there, file, "settings", dict), described)
    write_json(file, {"name": name, "settings": described})
