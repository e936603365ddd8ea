"""A study is a list of runs and what they come to. A run is done once, whoever needs it and whatever interrupts it.

    out/SCALE/runs/NAME/   a run: settings.json (what it is), precision.json (how it trains), outcome.json (it has
                           ended), and what it trained
    out/SCALE/STUDY/       table.md, figures, report.html, results.json

Studies in one folder share runs. The same command started twice works on two runs at once.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from onward.data import Corpus, fingerprint_of, load_corpus
from onward.training.checkpoints import all_checkpoints, discard_all
from onward.training.folders import folder_named, refuse_foreign, refuse_other
from onward.training.progress import RunsProgress
from onward.training.results import refuse_damaged
from onward.utils.fields import refuse_others
from onward.utils.files import DamagedFile, make_folder
from onward.utils.processes import is_first, losses_explained
from onward.utils.provenance import provenance
from onward.utils.quiet import quiet
from onward.utils.safe_json import field_of, read_json, without_infinities, write_json

from .planning import Plan
from .reporting import RESULTS, Report, write
from .together import Together, if_alone

SCALES = ("smoke", "laptop", "paper")
SETTINGS, PRECISION, OUTCOME, MODEL = "settings.json", "precision.json", "outcome.json", "model"
SWEEP = "sweep"  # of a run that fine-tunes: a folder in its own
KNOWN = "known_from"  # in the outcome of a run that ended elsewhere
SECONDS_BETWEEN_LOOKS = 5.0

Outcome = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """What a user chooses. `corpora` are names or paths by what a study calls them; `sizes` are the study's own, as the
    scale has them, or changed; `bf16`, whether trainings are in bfloat16: None where there are instructions for it."""

    scale: str = "laptop"
    seeds: int = 3
    corpora: Mapping[str, str] = field(default_factory=dict)
    sizes: Any = None
    bf16: bool | None = None

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds={self.seeds}: a study needs at least one")


@dataclass(frozen=True)
class Run:
    """`settings` are all that shapes the outcome, which `do` returns. `needs` names runs that must have ended before.
    `size` says how long it takes next to other runs, in tokens; `parts`, how often it trains; `plan`, what a run that
    trains a model would take at the papers' scale. `by` whom it is done where several processes work together: "all" of
    them, the "first" while the others wait, or "one" that was started alone. `outcome_only`: others need
    no more of it than its outcome, nothing that it leaves in its folder."""

    name: str
    settings: Mapping[str, Any]
    do: Callable[[Work], Outcome]
    needs: tuple[str, ...] = ()
    size: int = 1
    parts: int = 1
    plan: Callable[[], Plan] | None = None
    by: str = "all"
    outcome_only: bool = False


@dataclass(frozen=True)
class Study:
    """For each scale: `corpora`, what it reads, by the names that a user may give them; and
    `sizes`, a dataclass of all that differs between scales. `check` looks at what is read before hours are spent."""

    name: str
    corpora: Mapping[str, Mapping[str, str]]
    sizes: Mapping[str, Any]
    runs: Callable[[Setting], Sequence[Run]]
    report: Callable[[Setting, Mapping[str, Outcome]], Report]
    check: Callable[[Work], None] | None = None

    def setting(
        self,
        scale: str = "laptop",
        seeds: int = 3,
        corpora: Mapping[str, str] | None = None,
        changes: Mapping[str, Any] | None = None,
        bf16: bool | None = None,
    ) -> Setting:
        """Refuses what it does not know; a path without a name is the study's first corpus."""
        if scale not in SCALES:
            raise ValueError(f"scale={scale!r}: choose one of {', '.join(SCALES)}")
        known, sizes = self.corpora[scale], self.sizes[scale]
        given = {name or next(iter(known)): place for name, place in (corpora or {}).items()}
        for name in given:
            if name not in known:
                raise ValueError(f"study {self.name} reads no corpus {name!r}: it reads {', '.join(known) or 'none'}")
        refuse_others(type(sizes), [f.name for f in fields(sizes)], changes or {})
        for name, value in (changes or {}).items():
            _check_kind(name, value, getattr(sizes, name))
            _check_numbers(name, value, getattr(sizes, name))
        return Setting(scale, seeds, {**known, **given}, replace(sizes, **changes or {}), bf16)


def _check_kind(name: str, value: Any, known: Any) -> None:
    """A wrong kind would be found only after hours."""
    wider: dict[type, tuple[type, ...]] = {float: (int, float), tuple: (tuple, list)}
    kind = type(known)
    if kind not in (bool, int, float, tuple, str, dict):
        return
    if (isinstance(value, bool) and kind is not bool) or not isinstance(value, wider.get(kind, kind)):
        raise ValueError(f"{name}={value!r}: it must be of the kind of {known!r}")


def _check_numbers(name: str, value: Any, known: Any) -> None:
    """No size is below nothing; learning rates are more than that, and so is what a study has some of."""
    numbers = value if isinstance(value, list | tuple) else [value]
    some = "rate" in name or (isinstance(known, int | float) and known > 0 and name not in MAY_BE_NOTHING)
    for number in numbers:
        if isinstance(number, float) and not math.isfinite(number):
            raise ValueError(f"{name}={value!r}: {number!r} must be a finite number")
        if isinstance(number, int | float) and not isinstance(number, bool) and (number < 0 or (number == 0 and some)):
            raise ValueError(f"{name}={value!r}: {number!r} must be {'more than' if some else 'at least'} 0")
    if name.endswith("rates") and not numbers:
        raise ValueError(f"{name}={value!r}: give at least one learning rate")


MAY_BE_NOTHING = ("warmup", "warmup_steps", "distractors", "shown")


# --- doing it --------------------------------------------------------------------------------------


class Work:
    """What a run has at hand: its folder, the texts, what the runs before it have left, and the display."""

    def __init__(self, out: str | Path, setting: Setting, runs: Sequence[Run], display: RunsProgress | bool = False):
        self.out = folder_named(out, "out") / setting.scale
        self.setting, self.display = setting, display
        self.folder = self.out
        self._made: dict[Any, Any] = {}
        self._described = described(runs)
        for run in self._described:  # those that others need come first, and with them what is really different
            self.has_ended(run)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What many runs need, such as tokens of a corpus, is made by the first of them."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def corpus(self, name: str) -> Corpus:
        """Documents themselves are read when they are asked for."""
        return self.once(("corpus", name), lambda: load_corpus(self.setting.corpora[name]))

    def folder_of(self, run: str) -> Path:
        return self.out / "runs" / run

    def model_of(self, run: str, part: str = "") -> Path:
        """The model or the vocabulary that it has left, or a part of it. Others are made of it: nothing of it may have
        changed."""
        folder = self.folder_of(run) / MODEL / part
        refuse_damaged(folder, f"put a copy of it back; or delete {self.folder_of(run)}, and its run is done again")
        return folder

    def outcome_of(self, run: str) -> Outcome:
        file = self.folder_of(run) / OUTCOME
        with _unbroken(file, "delete it, and its run is done again"):
            found = read_json(file, "the outcome of a run")
            field_of(found, file, "settings", dict)
        return found

    def texts_of(self, run: str) -> dict[str, str]:
        """Fingerprints of the files that its settings name, by the names of corpora: paths alone do not tell texts
        apart."""
        settings = self._described[run]["settings"]
        named = [*settings.values(), *settings.get("corpora", {}).values()]
        places = {name: place for name, place in self.setting.corpora.items() if place in named}
        but = self.out.parent
        found = {n: self.once(("files", n), partial(fingerprint_of, place, but)) for n, place in places.items()}
        return {name: fingerprint for name, fingerprint in found.items() if fingerprint is not None}

    def _claimed(self, run: str) -> Outcome:
        return self._described[run]["settings"] | _labelled(self.texts_of(run))

    def has_ended(self, run: str) -> bool:
        if not (self.folder_of(run) / OUTCOME).is_file():
            return False
        self._check_same(run, self.outcome_of(run), self.folder_of(run))
        return True

    def _check_same(self, run: str, ended: Outcome, place: Path) -> None:
        """Refuses what has ended with other settings, which must not be mistaken for it."""
        of_run = {"settings": self._described[run]["settings"]}
        there = {"settings": ended["settings"]}
        if self.setting.bf16 is not None and "bf16" in ended:
            of_run, there = of_run | _precision(self.setting.bf16), there | _precision(ended["bf16"])
        if "needs" in ended:
            of_run, there = of_run | {"needs": self._described[run]["needs"]}, there | {"needs": ended["needs"]}
        known, texts = ended.get("texts", {}), self.texts_of(run)
        both = [name for name in texts if name in known]  # texts that are no longer there may be told of, still
        of_run |= _labelled({name: texts[name] for name in both})
        there |= _labelled({name: known[name] for name in both})
        refuse_other(place, f"run {run}", _flat(there), _flat(of_run))

    def in_bf16(self, fastest: bool) -> bool:
        """Whether this run trains in bfloat16: as the user has chosen, or if that is `fastest` here. A training that
        was begun goes on as it is."""
        file, chosen = self.folder / PRECISION, self.setting.bf16
        if file.is_file() and all_checkpoints(self.folder / MODEL):
            with _unbroken(file, f"delete {self.folder}, and start anew"):
                begun = field_of(read_json(file, "how a run trains"), file, "bf16", bool)
            if chosen is not None:
                refuse_other(self.folder, "training", _precision(begun), _precision(chosen))
            return begun
        bf16 = fastest if chosen is None else chosen
        if is_first():
            make_folder(self.folder)
            write_json(file, {"bf16": bf16})
        return bf16

    def take_over(self, outcomes: Mapping[str, Outcome], place: Path) -> None:
        """What has ended elsewhere, and was kept at `place`, has ended here too, as far as outcomes go."""
        for run, ended in outcomes.items():
            self._check_same(run, ended, place)
        for run, ended in outcomes.items():
            make_folder(self.folder_of(run))
            write_json(self.folder_of(run) / OUTCOME, {**ended, KNOWN: str(place)})

    def is_whole(self, run: Run) -> bool:
        """Whether it has left all that others may need, not only its outcome."""
        return run.outcome_only or KNOWN not in self.outcome_of(run.name)

    def forget(self, run: str) -> None:
        (self.folder_of(run) / OUTCOME).unlink(missing_ok=True)

    def check_claim(self, run: str) -> None:
        """What a folder holds before its run has ended gives way to what is wanted now, unless something would be lost
        by it, or another process is at it."""
        folder = self.folder_of(run)
        file = folder / SETTINGS
        if not file.is_file():
            refuse_foreign(folder, SETTINGS, (MODEL, SWEEP))
            return
        with if_alone(folder) as alone:
            if not alone or all_checkpoints(folder / MODEL) or _has_results(folder):
                with _unbroken(file, f"delete {folder}, and start anew"):
                    there = read_json(file, "the settings of a run")
                refuse_other(folder, "run", there, self._claimed(run))

    def claim(self, run: str) -> None:
        write_json(self.folder_of(run) / SETTINGS, self._claimed(run))

    def facts_of(self, run: str) -> Outcome:
        return {**self._described[run], "texts": self.texts_of(run)}

    def outcomes(self, runs: Sequence[Run]) -> dict[str, Outcome]:
        return {run.name: self.outcome_of(run.name) for run in runs if self.has_ended(run.name)}

    def best_of(self, runs: Sequence[str]) -> str:
        """The run with the lowest validation loss; those that ended with NaN have none."""
        losses = {run: self.outcome_of(run)["validation_loss"] for run in runs}
        ended = {run: loss for run, loss in losses.items() if loss is not None}
        if not ended:
            raise ArithmeticError(f"all of {', '.join(runs)} ended with NaN: give the study smaller learning rates")
        return min(ended, key=lambda run: ended[run])

    def best_rate(self, trials: Sequence[str], otherwise: float) -> float:
        """The learning rate of the best of these runs; the only one there is, where none were tried."""
        return self.outcome_of(self.best_of(trials))["learning_rate"] if trials else otherwise


def conduct(
    study: Study, setting: Setting, out: str | Path, progress: bool = True, known: Sequence[str | Path] = ()
) -> Report:
    """Does what has not been done yet, and writes what it comes to into `out`/`study.name`. `known` are folders that
    studies left, here or elsewhere: what ended there is not done again.

    Under `accelerate launch` or torchrun, processes share the training of every run; see `Run.by`.
    """
    with losses_explained(lambda: "Run the same command again: what has ended is kept, and the rest goes on"):
        return _conduct(study, setting, out, progress, known)


def _conduct(study: Study, setting: Setting, out: str | Path, progress: bool, known: Sequence[str | Path]) -> Report:
    together = Together()
    runs = [run for run in study.runs(setting) if run.by != "one" or together.count == 1]
    work = Work(out, setting, runs)
    if together.is_first:
        for folder in known:
            _take_over(Path(folder), runs, work)
        _forget_what_is_needed_whole(runs, work)
    together.wait()
    missing = [run for run in runs if not work.has_ended(run.name)]
    if missing and study.check is not None:
        study.check(work)
    for run in missing:
        work.check_claim(run.name)
    together.wait()
    if missing and progress and together.is_first:
        plan = f"{study.name}, {setting.scale} scale: {len(missing)} of {len(runs)} runs are left to do, in {work.out}"
        work.display = RunsProgress(sum(run.size for run in missing), "tokens", plan)
    ours: set[str] = set()
    try:
        while still := [run for run in runs if not work.has_ended(run.name)]:
            if isinstance(work.display, RunsProgress):
                for run in missing:
                    if run not in still and run.name not in ours:
                        work.display.leave_out(run.size)
            missing = still
            ready = [run for run in missing if all(map(work.has_ended, run.needs))]
            labels = {run.name: f"run {runs.index(run) + 1}/{len(runs)}, {run.name}" for run in ready}
            done = next((run.name for run in ready if _do(run, work, labels[run.name], together)), None)
            if done is None:
                time.sleep(SECONDS_BETWEEN_LOOKS)  # others have them in hand; if one is killed, its run is free again
            else:
                ours.add(done)
    finally:
        if isinstance(work.display, RunsProgress):
            work.display.close()
    return report(study, setting, out, written=together.is_first)


def _take_over(folder: Path, runs: Sequence[Run], work: Work) -> None:
    file = folder / RESULTS
    if not file.is_file():
        raise ValueError(f"{folder} holds no {RESULTS} of a study: give a copy of OUT/SCALE/STUDY")
    with _unbroken(file, "give a copy of OUT/SCALE/STUDY"):
        ended = field_of(read_json(file, "the results of a study"), file, "outcomes", dict)
        for name in ended:
            field_of(field_of(ended, file, name, dict), f"{file}, {name},", "settings", dict)
    missing = [run.name for run in runs if not work.has_ended(run.name)]
    work.take_over({name: ended[name] for name in missing if name in ended}, folder)


def _forget_what_is_needed_whole(runs: Sequence[Run], work: Work) -> None:
    """Of what ended elsewhere, outcomes are all that is known: where a run that is still to do needs more of another, a
    model or a vocabulary, that one is done again."""
    by_name = {run.name: run for run in runs}
    to_do = [run for run in runs if not work.has_ended(run.name)]
    while to_do:
        needed = [by_name[need] for need in to_do.pop().needs if need in by_name]
        again = [run for run in needed if work.has_ended(run.name) and not work.is_whole(run)]
        for run in again:
            work.forget(run.name)
        to_do += again


def report(study: Study, setting: Setting, out: str | Path, written: bool = True) -> Report:
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
    found = replace(found, notes=[*found.notes, *_without_numbers(outcomes), *_precisions(outcomes.values())])
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


def _without_numbers(outcomes: Mapping[str, Outcome]) -> list[str]:
    """What intervals are not of must be told: the seeds that are left may look better than all."""
    lost = [name for name, outcome in outcomes.items() if outcome.get("ended")]
    tuned = [result for outcome in outcomes.values() for result in outcome.get("results", [])]
    failed = sum(bool(result.get("ended")) for result in tuned)
    return [
        *([f"Ended with NaN, and in no figure: {', '.join(lost)}."] if lost else []),
        *([f"Of {len(tuned)} fine-tunings {failed} ended with NaN: they count as if no model were."] if failed else []),
    ]


def _precisions(outcomes: Iterable[Outcome]) -> list[str]:
    """Whoever compares should know where they differ, as those of several machines may."""
    trained = [bool(outcome.get("bf16")) for outcome in outcomes if "validation_loss" in outcome]
    if all(trained) or not any(trained):
        return []
    return [f"Of {len(trained)} trainings {sum(trained)} were in bfloat16, the others in float32: `bf16` in {RESULTS}."]


def described(runs: Sequence[Run]) -> dict[str, Outcome]:
    """By name, all that makes each run what it is: its settings, and digests of those of the runs that it needs."""
    found: dict[str, Outcome] = {}
    named = {run.name: run for run in runs}

    def describe(run: Run) -> Outcome:
        if run.name not in found:
            needs = {need: _digest(describe(named[need])) for need in run.needs if need in named}
            found[run.name] = {"settings": json.loads(json.dumps(dict(run.settings), default=str)), "needs": needs}
        return found[run.name]

    for run in runs:
        describe(run)
    return found


def _digest(description: Outcome) -> str:
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()[:16]


def _flat(description: Mapping[str, Any]) -> dict[str, Any]:
    """What differs is then told by its own name."""
    settings, needs = description["settings"], description.get("needs", {})
    others = {name: value for name, value in description.items() if name not in ("settings", "needs")}
    return {**settings, **others, **{f"what it needs, {name}": digest for name, digest in needs.items()}}


def _labelled(texts: Mapping[str, str]) -> Outcome:
    return {f"text of {name!r}": fingerprint for name, fingerprint in texts.items()}


def _precision(bf16: bool) -> dict[str, Any]:
    return {"--precision": "bfloat16" if bf16 else "float32"}


def _has_results(folder: Path) -> bool:
    return any(folder.glob(f"{SWEEP}/runs/*/result.json"))


def _do(run: Run, work: Work, label: str, together: Together) -> bool:
    """False if another process is at it."""
    folder, display = work.folder_of(run.name), work.display
    make_folder(folder)
    with if_alone(folder) as alone:
        if not alone:
            return False
        if work.has_ended(run.name):  # just now, elsewhere
            return False
        work.claim(run.name)
        if isinstance(display, RunsProgress):
            display.start_run(label, run.size, run.parts)
        facts = {"name": run.name, **work.facts_of(run.name)}
        work.folder, started = folder, time.monotonic()
        outcome: Outcome = {}
        if run.by == "all" or together.is_first:
            with quiet():
                outcome = run.do(work)
        facts["seconds"] = time.monotonic() - started
        together.wait()
        if together.is_first:
            content = {**outcome, **facts, "circumstances": provenance()}
            write_json(folder / OUTCOME, json.loads(json.dumps(without_infinities(content), default=str)))
            forget_checkpoints(folder)
        together.wait()
        if isinstance(display, RunsProgress):
            display.end_run(outcome.get("said", "ended"))
        return True


@contextmanager
def _unbroken(file: Path, instead: str) -> Iterator[None]:
    try:
        yield
    except DamagedFile as error:
        reason = str(error).removeprefix(f"{file} is damaged: ")
        raise DamagedFile(f"{file} is broken ({reason}): {instead}") from error


def forget_checkpoints(folder: Path) -> None:
    """A run that has ended needs none, and a hundred runs with theirs would fill a disk."""
    discard_all(folder / MODEL)
