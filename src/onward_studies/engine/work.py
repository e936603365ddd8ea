"""What a run has at hand while it is done: its folder, the texts, what earlier runs have left, and the display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onward.data import Corpus, load_corpus
from onward.training.checkpoints import all_checkpoints
from onward.training.folders import refuse_other
from onward.training.progress import RunsProgress
from onward.training.results import refuse_damaged
from onward.utils.files import make_folder
from onward.utils.processes import is_first
from onward.utils.safe_json import field_of, read_json, write_json

from .describing import precision_facts
from .folders import MODEL, RunFolders, damage_explained
from .study import Run, StudySetting

PRECISION = "precision.json"  # in a run's folder: how it trains


class Work(RunFolders):
    def __init__(self, out: str | Path, setting: StudySetting, runs: Sequence[Run]):
        super().__init__(out, setting, runs)
        self.folder = self.out
        self.display: RunsProgress | None = None

    def corpus(self, name: str) -> Corpus:
        """Documents are loaded when they are asked for."""
        return self.once(("corpus", name), lambda: load_corpus(self.setting.corpora[name]))

    def model_of(self, run: str, part: str = "") -> Path:
        """The model or vocabulary that a run has left, or a part of it, which must be as it was written."""
        folder = self.folder_of(run) / MODEL / part
        refuse_damaged(folder, f"put a copy of it back; or delete {self.folder_of(run)}, and its run is done again")
        return folder

    def best_of(self, runs: Sequence[str]) -> str:
        """The run with the lowest validation loss; a run that ended with NaN has none."""
        losses = {run: self.outcome_of(run)["validation_loss"] for run in runs}
        ended = {run: loss for run, loss in losses.items() if loss is not None}
        if not ended:
            raise ArithmeticError(f"all of {', '.join(runs)} ended with NaN: give the study smaller learning rates")
        return min(ended, key=lambda run: ended[run])

    def in_bf16(self, fastest: bool) -> bool:
        """Whether this run trains in bfloat16: as the user has chosen, or else if that is `fastest` here. A training
        that has a checkpoint keeps its precision."""
        file, chosen = self.folder / PRECISION, self.setting.bf16
        if file.is_file() and all_checkpoints(self.folder / MODEL):
            with damage_explained(file, f"delete {self.folder}, and start anew"):
                begun = field_of(read_json(file, "how a run trains"), file, "bf16", bool)
            if chosen is not None:
                refuse_other(self.folder, "training", precision_facts(begun), precision_facts(chosen))
            return begun
        bf16 = fastest if chosen is None else chosen
        if is_first():
            make_folder(self.folder)
            write_json(file, {"bf16": bf16})
        return bf16
