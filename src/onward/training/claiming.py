"""Whose folder it is: a run has one for itself, and writes over nothing that is not its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..utils.files import DamagedFile, make_folder
from ..utils.processes import told_by_the_first
from ..utils.safe_json import read_json, write_json
from .checkpoints import all_checkpoints, alone_in
from .recipe import TrainingRecipe

RUN, RESULT = "run.json", "training.json"
OF_EVERY_RUN = "training documents"  # in run.json
OF_MODELS = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "recurrence.safetensors",
    "model.safetensors.index.json",
    "pytorch_model*.bin",
    "*.gguf",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)
"""What models and their tokenizers are saved in. A README.md is kept as it is."""


def folder_named(place: str | Path, name: str = "output_dir") -> Path:
    """Where a run goes, all links followed. Nothing is no name: it would be the folder that one happens to be in."""
    if not str(place).strip():
        raise ValueError(f"{name}={place!r} names no folder: give one, or '.' for the one that you are in")
    return Path(place).expanduser().resolve()


def refuse_foreign(folder: Path, mark: str, patterns: Iterable[str] = OF_MODELS) -> None:
    """What a run would write over, in a folder without the `mark` of one, is someone else's."""
    if (folder / mark).is_file():
        return
    found = sorted({file.name for pattern in patterns for file in folder.glob(pattern)})
    if found:
        raise FileExistsError(
            f"{folder} holds {', '.join(found[:3])}{' and more' if found[3:] else ''}, which is no run of onward's "
            f"({mark} is missing), and would be written over or mixed with one: choose another folder, such as "
            f"{folder / 'run'}"
        )


def refuse_source(folder: Path, model: PreTrainedModel) -> None:
    """The folder that a model comes from is kept as it is. One inside it is another folder."""
    parts = [part for part in (model, getattr(model, "backbone", None)) if part is not None]
    if any(part.name_or_path and Path(part.name_or_path).expanduser().resolve() == folder for part in parts):
        raise FileExistsError(
            f"{folder} is where the model comes from, which would be written over: choose another folder, such as "
            f"{folder / 'run'}"
        )


def refuse_other(folder: Path, what: str, there: dict[str, Any], described: dict[str, Any]) -> None:
    """Two runs, or sweeps, in one folder must be the same."""
    names = [name for name in {**there, **described} if there.get(name) != described.get(name)]
    if names:
        listed = "; ".join(f"{n}: {there.get(n)!r} there, {described.get(n)!r} here" for n in names[:5])
        raise FileExistsError(
            f"{folder} holds a {what} with other settings ({listed}): choose another folder, or the settings of that "
            f"{what} to go on with it"
        )


# -- of a training


@contextmanager
def claimed(folder: Path, described: dict[str, Any], model: PreTrainedModel, resume: bool) -> Iterator[None]:
    """While this is entered the folder is this run's alone. Whoever is refused leaves it as it was: so a run is written
    down only by the one that has the lock, and in a folder of someone else's there is not even that."""

    def check() -> int:
        if _holds_run(folder):
            _refuse_other_run(folder, described, resume)
        else:
            _refuse_unfit(folder, model)
        return 0

    def claim() -> int:
        check()  # again: someone may just have gone
        if not _holds_run(folder):  # one that has saved nothing yet gives way
            write_json(folder / RUN, described)
        return 0

    told_by_the_first(check)
    make_folder(folder)
    with alone_in(folder):
        told_by_the_first(claim)
        yield


def _holds_run(folder: Path) -> bool:
    return bool(all_checkpoints(folder)) or (folder / RESULT).is_file()


def _refuse_unfit(folder: Path, model: PreTrainedModel) -> None:
    refuse_foreign(folder, RUN)
    refuse_source(folder, model)
    file = folder / RUN
    if file.is_file() and OF_EVERY_RUN not in read_json(file, "what a run is", "delete it to begin one here"):
        raise FileExistsError(f"{file} is no run of onward's, and would be written over: choose another folder")


def _refuse_other_run(folder: Path, described: dict[str, Any], resume: bool) -> None:
    file = folder / RUN
    if not file.is_file():
        raise FileExistsError(
            f"{folder} holds checkpoints that onward did not make ({RUN} is missing): choose another folder"
        )
    if not resume:
        raise FileExistsError(f"{folder} holds a run already: pass resume=True to go on, or choose another folder")
    there = read_json(file, "what the run in this folder is", "put a copy of it back, or choose another folder")
    if OF_EVERY_RUN not in there:
        raise DamagedFile(f"{file} is damaged: it does not say of which documents the run is; put a copy of it back")
    refuse_other(folder, "run", _defaults() | there, described)


def _defaults() -> dict[str, Any]:
    """Of a recipe's fields: a run that was begun before there were such fields goes on."""
    return {f"recipe.{name}": value for name, value in TrainingRecipe().that_shape_the_result().items()}


def refuse_folders(folders: Sequence[Path]) -> None:
    """For several runs, one after the other: what the last would be refused is known before the first begins."""
    for folder in folders:
        if not _holds_run(folder):
            refuse_foreign(folder, RUN)
