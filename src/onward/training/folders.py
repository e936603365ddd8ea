"""Claims an output folder for one run, and refuses to overwrite anything that a run did not write.

Its run.json says which run a folder holds, so that no other is ever mixed with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedModel

from ..data.tokens import TokenizedDocument
from ..models.checking import MODEL_TYPE_PREFIX
from ..utils.fields import FieldError
from ..utils.files import DamagedFile, make_folder
from ..utils.locks import locked
from ..utils.processes import told_by_the_first
from ..utils.safe_json import read_json, write_json
from .checkpoints import all_checkpoints
from .recipe import TrainingRecipe

RUN, RESULT = "run.json", "training.json"
DOCUMENTS = "training documents"  # a field of every run.json
MODEL_FILES = (
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
"""Files of a saved model and its tokenizer. A README.md is not among them: an existing one is kept."""


def folder_named(place: str | Path, name: str = "output_dir") -> Path:
    """The folder of a run, with all links resolved. An empty name is refused: it would be the current folder."""
    if not str(place).strip():
        raise FieldError(name, str(place), "it names no folder; give one, or '.' for the current folder")
    return Path(place).expanduser().resolve()


def refuse_foreign(folder: Path, mark: str, patterns: Iterable[str] = MODEL_FILES) -> None:
    """Refuses a folder with files that a run would overwrite, unless the file `mark` shows that a run wrote them."""
    if (folder / mark).is_file():
        return
    found = sorted({file.name for pattern in patterns for file in folder.glob(pattern)})
    if found:
        raise FileExistsError(
            f"{folder} holds {', '.join(found[:3])}{' and more' if found[3:] else ''}, which is no run of onward's "
            f"({mark} is missing), and would be overwritten or mixed with one: choose another folder, such as "
            f"{folder / 'run'}"
        )


def refuse_other(folder: Path, what: str, there: dict[str, Any], described: dict[str, Any]) -> None:
    """Refuses to continue a run, or a sweep, with other settings than it was begun with."""
    names = [name for name in {**there, **described} if there.get(name) != described.get(name)]
    if names:
        listed = "; ".join(f"{n}: {there.get(n)!r} there, {described.get(n)!r} here" for n in names[:5])
        raise FileExistsError(
            f"{folder} holds a {what} with other settings ({listed}): choose another folder, or the settings of that "
            f"{what} to resume it"
        )


@contextmanager
def claimed(folder: Path, check: Callable[[], None], claim: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Holds the folder for one run. `check` raises where the folder must not be used; it runs before anything is
    written, and again under the lock, since another run may just have ended. Only then `claim` writes whose it is."""
    _first_process(check)
    make_folder(folder)
    with alone_in(folder):
        _first_process(check, claim)
        yield


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Locks a folder, since two runs in one would destroy each other's checkpoints. Of several processes of one run the
    first holds the lock."""
    with ExitStack() as held:

        def lock() -> None:
            try:
                held.enter_context(locked(folder / ".lock", wait=False))
            except BlockingIOError:
                raise FileExistsError(
                    f"another process is training in {folder}: wait until it ends, or choose another folder"
                ) from None

        _first_process(lock)
        yield


def _first_process(*steps: Callable[[], None]) -> None:
    def take() -> int:
        for step in steps:
            step()
        return 0

    told_by_the_first(take)


# -- of a training


# Of a model's configuration: or it follows from the rest.
_SHAPES_NO_RESULT = (
    *("transformers_version", "_name_or_path", "architectures", "use_cache", "dtype"),
    *("slot_shapes", "tokens_at_once"),
)


def describe(
    model: PreTrainedModel,
    recipe: TrainingRecipe,
    training: Sequence[TokenizedDocument],
    validation: Sequence[TokenizedDocument],
) -> dict[str, Any]:
    """All settings that shape a run's result, and must be the same when it resumes."""
    own = model.config.own_fields() if hasattr(model.config, "own_fields") else ()  # defaults may change
    config = {name: getattr(model.config, name) for name in own} | model.config.to_diff_dict()
    for name in _SHAPES_NO_RESULT:
        config.pop(name, None)
    config["model_type"] = model.config.model_type.removeprefix(MODEL_TYPE_PREFIX)  # as runs of version 0.1 have it
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
            _refuse_other_run(folder, described, model, resume)
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


def _refuse_other_run(folder: Path, described: dict[str, Any], model: PreTrainedModel, resume: bool) -> None:
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
    defaults = _defaults(model)
    refuse_other(folder, "run", _in_one_form(defaults | there), _in_one_form(described))


def _defaults(model: PreTrainedModel) -> dict[str, Any]:
    """Of fields that the recipe, or the model's configuration, may not have had when a run was begun."""
    recipe = {f"recipe.{name}": value for name, value in TrainingRecipe().that_shape_the_result().items()}
    config = cast(Any, type(model.config))
    own = config.own_fields() if hasattr(config, "own_fields") else ()
    fields = {name: getattr(config, name, None) for name in own} | {name: _THEN[name] for name in _THEN if name in own}
    return json.loads(json.dumps({**recipe, **{f"model.{name}": value for name, value in fields.items()}}, default=str))


_THEN = {"carrier": "pooled", "stands_for": "pooled"}
"""Defaults of version 0.1, whose runs did not say what was as by default."""


def _in_one_form(settings: dict[str, Any]) -> dict[str, Any]:
    """A history of one window was the default of version 0.1; now it is None, which means the same."""
    settings = {name: value for name, value in settings.items() if name.removeprefix("model.") not in _SHAPES_NO_RESULT}
    if settings.get("model.carrier") != "constant":
        settings.pop("model.stands_for", None)
    return settings | ({"model.history": None} if settings.get("model.history") == 1 else {})
