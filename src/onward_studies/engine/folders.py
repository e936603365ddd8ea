"""The folders of runs, OUT/SCALE/runs/NAME: which have ended, and which may be begun.

    settings.json    what the run is; written when it begins
    outcome.json     the run has ended
    model, sweep     what it trained

A run of the same name with other settings is refused, unless nothing of it would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from onward.data import fingerprint_of
from onward.training.checkpoints import all_checkpoints
from onward.training.folders import alone_in, folder_named, refuse_foreign, refuse_other
from onward.utils.files import DamagedFile, make_folder
from onward.utils.processes import FirstProcessFailed
from onward.utils.safe_json import field_of, read_json, write_json

from .describing import described, flat, precision_facts, text_facts
from .study import Outcome, Run, StudySetting

SETTINGS, OUTCOME, MODEL, SWEEP = "settings.json", "outcome.json", "model", "sweep"
KNOWN_FROM = "known_from"  # in the outcome of a run that ended elsewhere


class RunFolders:
    def __init__(self, out: str | Path, setting: StudySetting, runs: Sequence[Run]):
        self.out, self.setting = folder_named(out, "out") / setting.scale, setting
        self._made: dict[Any, Any] = {}
        self._described = described(runs)
        for run in self._described:  # in the order of needs: the first refusal names what really differs
            self.has_ended(run)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What many runs use, such as the tokens of a corpus, is made by the first of them."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def folder_of(self, run: str) -> Path:
        return self.out / "runs" / run

    # --- runs that have ended

    def has_ended(self, run: str) -> bool:
        if not (self.folder_of(run) / OUTCOME).is_file():
            return False
        self._refuse_other(run, self.outcome_of(run), self.folder_of(run))
        return True

    def outcome_of(self, run: str) -> Outcome:
        file = self.folder_of(run) / OUTCOME
        with damage_explained(file, "delete it, and its run is done again"):
            found = read_json(file, "the outcome of a run")
            field_of(found, file, "settings", dict)
        return found

    def outcomes(self, runs: Sequence[Run]) -> dict[str, Outcome]:
        return {run.name: self.outcome_of(run.name) for run in runs if self.has_ended(run.name)}

    def facts_of(self, run: str) -> Outcome:
        return {**self._described[run], "texts": self._texts_of(run)}

    def _refuse_other(self, run: str, ended: Outcome, place: Path) -> None:
        """Refuses an outcome of other settings, needs, texts or, if one is chosen, precision."""
        here: Outcome = {"settings": self._described[run]["settings"]}
        there: Outcome = {"settings": ended["settings"]}
        if self.setting.bf16 is not None and "bf16" in ended:
            here, there = here | precision_facts(self.setting.bf16), there | precision_facts(ended["bf16"])
        if "needs" in ended:
            here, there = here | {"needs": self._described[run]["needs"]}, there | {"needs": ended["needs"]}
        texts, known = self._texts_of(run), ended.get("texts", {})
        both = texts.keys() & known.keys()  # a text that is gone may still have results
        here |= text_facts({name: texts[name] for name in both})
        there |= text_facts({name: known[name] for name in both})
        refuse_other(place, f"run {run}", flat(there), flat(here))

    def _texts_of(self, run: str) -> dict[str, str]:
        """By corpus, fingerprints of the files that the run's settings name: a path does not tell texts apart."""
        settings = self._described[run]["settings"]
        named = [*settings.values(), *settings.get("corpora", {}).values()]
        places = {name: place for name, place in self.setting.corpora.items() if place in named}
        ours = self.out.parent
        found = {n: self.once(("files", n), partial(fingerprint_of, place, ours)) for n, place in places.items()}
        return {name: fingerprint for name, fingerprint in found.items() if fingerprint is not None}

    # --- runs that ended elsewhere

    def take_over(self, outcomes: Mapping[str, Outcome], place: Path) -> None:
        """Runs that ended elsewhere, whose outcomes are kept at `place`, have ended here too."""
        for run, ended in outcomes.items():
            self._refuse_other(run, ended, place)
        for run, ended in outcomes.items():
            make_folder(self.folder_of(run))
            write_json(self.folder_of(run) / OUTCOME, {**ended, KNOWN_FROM: str(place)})

    def is_complete(self, run: Run) -> bool:
        """Whether it has left all that other runs may need, and not only its outcome."""
        return run.outcome_only or KNOWN_FROM not in self.outcome_of(run.name)

    def forget(self, run: str) -> None:
        (self.folder_of(run) / OUTCOME).unlink(missing_ok=True)

    # --- runs that begin

    def check_claim(self, run: str) -> None:
        """Refuses the folder of another run if that one is at work, or has saved something that would be lost."""
        folder = self.folder_of(run)
        file = folder / SETTINGS
        if not file.is_file():
            refuse_foreign(folder, SETTINGS, (MODEL, SWEEP))
            return
        with if_alone(folder) as alone:
            if not alone or all_checkpoints(folder / MODEL) or any(folder.glob(f"{SWEEP}/runs/*/result.json")):
                with damage_explained(file, f"delete {folder}, and start anew"):
                    there = read_json(file, "the settings of a run")
                refuse_other(folder, "run", there, self._claim_of(run))

    def claim(self, run: str) -> None:
        write_json(self.folder_of(run) / SETTINGS, self._claim_of(run))

    def _claim_of(self, run: str) -> Outcome:
        return self._described[run]["settings"] | text_facts(self._texts_of(run))


@contextmanager
def if_alone(folder: Path) -> Iterator[bool]:
    """Gives False if another process, not launched with this one, is at work in the folder."""
    with ExitStack() as held:
        try:
            held.enter_context(alone_in(folder))
            alone = True
        except (FileExistsError, FirstProcessFailed):
            alone = False
        yield alone


@contextmanager
def damage_explained(file: Path, remedy: str) -> Iterator[None]:
    try:
        yield
    except DamagedFile as error:
        reason = str(error).removeprefix(f"{file} is damaged: ")
        raise DamagedFile(f"{file} is broken ({reason}): {remedy}") from error
