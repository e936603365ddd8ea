"""run.json, which says what run a folder holds, so that no other is ever mixed with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..data.tokens import TokenizedDocument
from ..models.checking import OURS
from ..utils.files import DamagedFile
from ..utils.safe_json import read_json, write_json
from .checkpoints import all_checkpoints
from .folders import claimed, refuse_foreign, refuse_other
from .recipe import TrainingRecipe

RUN, RESULT = "run.json", "training.json"
DOCUMENTS = "training documents"  # a field of every run.json


def describe(
    model: PreTrainedModel,
    recipe: TrainingRecipe,
    training: Sequence[TokenizedDocument],
    validation: Sequence[TokenizedDocument],
) -> dict[str, Any]:
    """All settings that shape a run's result, and must be the same when it resumes."""
    config = model.config.to_diff_dict()
    for name in ("transformers_version", "_name_or_path", "architectures", "use_cache", "dtype"):
        config.pop(name, None)
    config["model_type"] = model.config.model_type.removeprefix(OURS)  # as runs of version 0.1 have it
    described = {
        **{f"recipe.{name}": value for name, value in recipe.that_shape_the_result().items()},
        **{f"model.{name}": value for name, value in config.items()},
        DOCUMENTS: _fingerprint(training),
        "validation documents": _fingerprint(validation),
    }
    return json.loads(json.dumps(described, default=str))


def _fingerprint(documents: Sequence[TokenizedDocument]) -> str:
    digest = hashlib.sha256()
    for document in documents:
        digest.update(len(document).to_bytes(8, "little") + document.ids.numpy().tobytes())
    return f"{len(documents)} with {sum(map(len, documents)):,} tokens, {digest.hexdigest()[:16]}"


def claimed_for_training(
    folder: Path, described: dict[str, Any], model: PreTrainedModel, resume: bool
) -> AbstractContextManager[None]:
    """Holds the folder for this run. A run that has saved nothing yet gives way to another."""

    def check() -> None:
        if _holds_run(folder):
            _refuse_other_run(folder, described, resume)
        else:
            _refuse_unfit(folder, model)

    def claim() -> None:
        if not _holds_run(folder):
            write_json(folder / RUN, described)

    return claimed(folder, check, claim)


def refuse_folders(folders: Sequence[Path]) -> None:
    """Checks the folders of several runs before the first begins, so that the last is not refused hours later."""
    for folder in folders:
        if not _holds_run(folder):
            refuse_foreign(folder, RUN)


def _holds_run(folder: Path) -> bool:
    return bool(all_checkpoints(folder)) or (folder / RESULT).is_file()


def _refuse_unfit(folder: Path, model: PreTrainedModel) -> None:
    """Refuses the folder of another program's files, and the one that the model was loaded from."""
    refuse_foreign(folder, RUN)
    parts = [part for part in (model, getattr(model, "backbone", None)) if part is not None]
    if any(part.name_or_path and Path(part.name_or_path).expanduser().resolve() == folder for part in parts):
        raise FileExistsError(
            f"{folder} is where the model comes from, which would be overwritten: choose another folder, such as "
            f"{folder / 'run'}"
        )
    file = folder / RUN
    if file.is_file() and DOCUMENTS not in read_json(file, "what a run is", "delete it to begin one here"):
        raise FileExistsError(f"{file} is no run of onward's, and would be overwritten: choose another folder")


def _refuse_other_run(folder: Path, described: dict[str, Any], resume: bool) -> None:
    file = folder / RUN
    if not file.is_file():
        raise FileExistsError(
            f"{folder} holds checkpoints that onward did not make ({RUN} is missing): choose another folder"
        )
    if not resume:
        raise FileExistsError(f"{folder} holds a run already: pass resume=True to resume it, or choose another folder")
    there = read_json(file, "what the run in this folder is", "put a copy of it back, or choose another folder")
    if DOCUMENTS not in there:
        raise DamagedFile(f"{file} is damaged: it does not say of which documents the run is; put a copy of it back")
    # A run that was begun before the recipe had a field resumes with the field's default.
    defaults = {f"recipe.{name}": value for name, value in TrainingRecipe().that_shape_the_result().items()}
    refuse_other(folder, "run", defaults | there, described)
