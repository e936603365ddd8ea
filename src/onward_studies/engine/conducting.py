"""Does the runs of a study, each once, and writes its report.

    OUT/SCALE/runs/NAME/   a run (`folders.py`)
    OUT/SCALE/STUDY/       table.md, figures, results.json, report.html

Studies in one folder share runs. The same command started twice works on two runs at once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

from onward.training.checkpoints import discard_all
from onward.training.progress import RunsProgress
from onward.utils.files import make_folder
from onward.utils.processes import launched, losses_explained
from onward.utils.provenance import provenance
from onward.utils.quiet import quiet
from onward.utils.safe_json import field_of, read_json, without_infinities, write_json

from .folders import MODEL, OUTCOME, damage_explained, if_alone
from .reporting import RESULTS, Report, write
from .study import Outcome, Run, Study, StudySetting
from .work import Work

SECONDS_BETWEEN_LOOKS = 5.0


def conduct(
    study: Study, setting: StudySetting, out: str | Path, progress: bool = True, known: Sequence[str | Path] = ()
) -> Report:
    """Does all runs that have not ended, and writes the report to OUT/SCALE/STUDY. Runs that ended in the `known`
    folders, which studies have left here or elsewhere, are not done again.

    Processes started by `accelerate launch` or torchrun share the training of every run; see `Run.by`.
    """
    with losses_explained(lambda: "Run the same command again: what has ended is kept, and the rest goes on"):
        return _conduct(study, setting, out, progress, known)


def _conduct(
    study: Study, setting: StudySetting, out: str | Path, progress: bool, known: Sequence[str | Path]
) -> Report:
    # What the first process does alone may take longer than the others would wait by default.
    processes = launched(timeout=timedelta(days=7))
    runs = [run for run in study.runs(setting) if run.by != "one" or processes.num_processes == 1]
    work = Work(out, setting, runs)
    if processes.is_main_process:
        for folder in known:
            _take_over(Path(folder), runs, work)
        _forget_incomplete(runs, work)
    processes.wait_for_everyone()
    missing = [run for run in runs if not work.has_ended(run.name)]
    if missing and study.check is not None:
        study.check(work)
    for run in missing:
        work.check_claim(run.name)
    processes.wait_for_everyone()
    if missing and progress and processes.is_main_process:
        plan = f"{study.name}, {setting.scale} scale: {len(missing)} of {len(runs)} runs are left to do, in {work.out}"
        work.display = RunsProgress(sum(run.size for run in missing), "tokens", plan)
    ours: set[str] = set()
    try:
        while still := [run for run in runs if not work.has_ended(run.name)]:
            if work.display:
                for run in missing:
                    if run not in still and run.name not in ours:
                        work.display.leave_out(run.size)
            missing = still
            ready = [run for run in missing if all(map(work.has_ended, run.needs))]
            labels = {run.name: f"run {runs.index(run) + 1}/{len(runs)}, {run.name}" for run in ready}
            done = next((run.name for run in ready if _do(run, work, labels[run.name])), None)
            if done is None:
                time.sleep(SECONDS_BETWEEN_LOOKS)  # other processes do them; if one is killed, its run is free again
            else:
                ours.add(done)
    finally:
        if work.display:
            work.display.close()
    return report(study, setting, out, written=processes.is_main_process)


def _do(run: Run, work: Work, label: str) -> bool:
    """Does a run; returns False if another process is doing it or has just done it."""
    processes, folder, display = launched(), work.folder_of(run.name), work.display
    make_folder(folder)
    with if_alone(folder) as alone:
        if not alone or work.has_ended(run.name):
            return False
        work.claim(run.name)
        if display:
            display.start_run(label, run.size, run.parts)
        facts = {"name": run.name, **work.facts_of(run.name)}
        work.folder, started = folder, time.monotonic()
        outcome: Outcome = {}
        if run.by == "all" or processes.is_main_process:
            with quiet():
                outcome = run.do(work)
        facts["seconds"] = time.monotonic() - started
        processes.wait_for_everyone()
        if processes.is_main_process:
            content = {**outcome, **facts, "circumstances": provenance()}
            write_json(folder / OUTCOME, json.loads(json.dumps(without_infinities(content), default=str)))
            discard_all(folder / MODEL)  # checkpoints of a hundred runs would fill a disk
        processes.wait_for_everyone()
        if display:
            display.end_run(outcome.get("said", "ended"))
        return True


# --- runs that ended elsewhere


def _take_over(folder: Path, runs: Sequence[Run], work: Work) -> None:
    file = folder / RESULTS
    if not file.is_file():
        raise ValueError(f"{folder} holds no {RESULTS} of a study: give a copy of OUT/SCALE/STUDY")
    with damage_explained(file, "give a copy of OUT/SCALE/STUDY"):
        ended = field_of(read_json(file, "the results of a study"), file, "outcomes", dict)
        for name in ended:
            field_of(field_of(ended, file, name, dict), f"{file}, {name},", "settings", dict)
    missing = [run.name for run in runs if not work.has_ended(run.name)]
    work.take_over({name: ended[name] for name in missing if name in ended}, folder)


def _forget_incomplete(runs: Sequence[Run], work: Work) -> None:
    """Only outcomes are known of runs that ended elsewhere. One whose model or vocabulary a run to do needs is done
    again."""
    by_name = {run.name: run for run in runs}
    to_do = [run for run in runs if not work.has_ended(run.name)]
    while to_do:
        needed = [by_name[need] for need in to_do.pop().needs if need in by_name]
        incomplete = [run for run in needed if work.has_ended(run.name) and not work.is_complete(run)]
        for run in incomplete:
            work.forget(run.name)
        to_do += incomplete


# --- the report


def report(study: Study, setting: StudySetting, out: str | Path, written: bool = True) -> Report:
    """What the runs that have ended come to."""
    runs = list(study.runs(setting))
    work = Work(out, setting, runs)
    outcomes = work.outcomes(runs)
    if not outcomes:
        raise ValueError(f"no run of {study.name} has ended in {work.out}: run the study first")
    found = study.report(setting, outcomes)
    if setting.scale == "smoke":
        claims = [replace(claim, verdict="none: so small a scale says nothing") for claim in found.claims]
        found = replace(found, claims=claims, summary="So small a scale says nothing: it shows that all of it runs.")
    found = replace(found, notes=[*found.notes, *_diverged(outcomes), *_precisions(outcomes.values())])
    facts = {
        "study": study.name,
        "scale": setting.scale,
        "seeds": setting.seeds,
        "corpora": dict(setting.corpora),
        "sizes": asdict(setting.sizes),
        "runs": f"{len(outcomes)} of {len(runs)} have ended",
        **provenance(),
    }
    if written:
        write(found, work.out / study.name, facts, outcomes)
    return found


def _diverged(outcomes: Mapping[str, Outcome]) -> list[str]:
    """Intervals leave these out, and the remaining seeds may look better than all would."""
    lost = [name for name, outcome in outcomes.items() if outcome.get("ended")]
    tuned = [result for outcome in outcomes.values() for result in outcome.get("results", [])]
    failed = sum(bool(result.get("ended")) for result in tuned)
    return [
        *([f"Ended with NaN, and in no figure: {', '.join(lost)}."] if lost else []),
        *([f"Of {len(tuned)} fine-tunings {failed} ended with NaN: they count as if no model were."] if failed else []),
    ]


def _precisions(outcomes: Iterable[Outcome]) -> list[str]:
    """Runs of several machines may differ in precision."""
    trained = [bool(outcome.get("bf16")) for outcome in outcomes if "validation_loss" in outcome]
    if all(trained) or not any(trained):
        return []
    return [f"Of {len(trained)} trainings {sum(trained)} were in bfloat16, the others in float32: `bf16` in {RESULTS}."]
