"""Many runs that differ in learning rate and seed. Finished runs are never repeated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..training.checkpoints import discard_all
from ..training.folders import claimed, folder_named, refuse_foreign, refuse_other
from ..training.progress import RunsProgress
from ..utils.fields import FieldError
from ..utils.processes import refuse_several
from ..utils.safe_json import field_of, read_json, write_json
from .preparation import Preparation, prepare
from .recipe import FinetuningRecipe, check_learning_rate
from .report import REPORT_FILES, write
from .results import RESULT, RUNS, SWEEP, RunResult, Sweep
from .run import MODEL, run
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
    table and a picture of the scores.

    Called again, it resumes the first run that has not ended; with more learning rates or seeds, only missing runs are
    done. `name` is the model's in tables, its folder's name by default. `margin` replaces the one by which
    docs/fine-tuning.md defines a failed run. A display given as `progress` is shared with other runs and stays open.
    """
    rates = list(dict.fromkeys(float(rate) for rate in learning_rates))
    _check(rates, seeds)
    listed = range(seeds) if isinstance(seeds, int) else list(dict.fromkeys(seeds))
    refuse_several("fine-tuning")
    folder = folder_named(out, "out")
    refuse_foreign(folder, SWEEP, ("config.json", *REPORT_FILES))
    preparation = prepare(model, task, recipe, data=data, split=split, save_models=save_models)
    file, described = folder / SWEEP, preparation.described

    def check() -> None:
        """Refuses a folder with another sweep; one without a finished run gives way."""
        if file.is_file() and any(folder.glob(f"{RUNS}/*/{RESULT}")):
            there = read_json(file, "the settings of a sweep", "put a copy of it back, or choose another folder")
            refuse_other(folder, "sweep", field_of(there, file, "settings", dict), described)

    def claim() -> None:
        write_json(file, {"name": name or Path(str(model)).name, "settings": described})

    with claimed(folder, check, claim):
        _run_missing(preparation, [(rate, seed) for seed in listed for rate in rates], folder, progress)
    found = Sweep.read(folder)
    write([found], folder, margin)
    return found


def _check(rates: Sequence[float], seeds: int | Sequence[int]) -> None:
    if not rates:
        raise FieldError("learning_rates", rates, "it is empty; give at least one, such as 2e-5")
    for rate in rates:
        check_learning_rate(rate, "learning_rates")
    if not isinstance(seeds, int) and seeds and all(type(seed) is int and seed >= 0 for seed in seeds):
        return
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise FieldError("seeds", seeds, "it says how many runs each learning rate has, at least 1; or list the seeds")


def _run_missing(
    preparation: Preparation, runs: Sequence[tuple[float, int]], folder: Path, progress: bool | RunsProgress
) -> None:
    places = {pair: folder / RUNS / f"{pair[0]}-{pair[1]}" for pair in runs}
    ended = [place for place in places.values() if (place / RESULT).is_file()]
    for place in ended:
        discard_all(place)  # a run may have been killed just before it did so
    if preparation.save_models:
        _refuse_unsaved(ended)
    if len(ended) == len(runs):
        return
    examples = round(len(preparation.inputs.train) * preparation.recipe.epochs)
    shared = progress if isinstance(progress, RunsProgress) else None
    own = None
    if progress and shared is None:
        missing = len(runs) - len(ended)
        own = RunsProgress(missing * examples, "examples", _plan(preparation, missing, len(runs)))
    try:
        for number, ((rate, seed), place) in enumerate(places.items(), start=1):
            if place in ended:
                continue
            if own:
                task = preparation.inputs.task.name
                own.start_run(f"run {number}/{len(runs)}, {task}, {rate}, seed {seed}", examples)
            result = run(preparation, rate, seed, place, [shown for shown in (shared, own) if shown])
            if own:
                own.end_run(_said(result))
    finally:
        if own:
            own.close()


def _refuse_unsaved(ended: Sequence[Path]) -> None:
    lost = [place for place in ended if RunResult.read(place).ended is None and not (place / MODEL).is_dir()]
    if lost:
        problem = (
            f"{len(lost)} of the runs had ended without it, and their weights are gone; delete their folders (such as "
            f"{lost[0]}) to run them again, or choose another folder"
        )
        raise FieldError("save_models", True, problem)


def _plan(preparation: Preparation, missing: int, runs: int) -> str:
    inputs = preparation.inputs
    dropped = f"; {inputs.dropped} examples could not be used, and are left out" if inputs.dropped else ""
    return f"{missing} of {runs} runs are left to do. {inputs.task.name}: {inputs.fingerprint}{dropped}"


def _said(result: RunResult) -> str:
    if result.score is None:
        return f"failed, {result.ended}"
    return f"score {result.score:.4f}" + (f", failed ({result.trivial:.4f} needs no model)" if result.failed() else "")
