"""Claims an output folder for one run, and refuses to overwrite anything that a run did not write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..utils.fields import FieldError
from ..utils.files import make_folder
from ..utils.locks import locked
from ..utils.processes import told_by_the_first

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
        raise FieldError(name, place, "it names no folder; give one, or '.' for the current folder")
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
