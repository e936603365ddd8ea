"""Files that are whole, readable and on the disk. Everything that is reported as saved is written through here."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class DamagedFile(ValueError):
    """A file that was written by a program does not hold what it must. The message names it and says what is wrong."""


class DataError(ValueError):
    """Data that cannot be read. The message says which file, where in it, and what to do."""


def why_not_writable(place: Path) -> str | None:
    """Why a file or folder, which need not exist yet, cannot be written; None if it can. Tried, not only looked up:
    places such as /sys have the permission and refuse all the same."""
    there = next(parent for parent in (place, *place.absolute().parents) if parent.exists())
    if there != place and not there.is_dir():
        return f"{there} is a file, not a folder"
    try:
        with tempfile.TemporaryDirectory(dir=there if there.is_dir() else there.parent, prefix=".trial-"):
            return None if os.access(there, os.W_OK) else f"{there} cannot be written to (Permission denied)"
    except OSError as error:
        return f"{there} cannot be written to ({error.strerror})"


# --- whole files and folders -----------------------------------------------------------------------


def write_text(path: Path, text: str) -> None:
    with whole_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


@contextmanager
def whole_file(place: str | os.PathLike) -> Iterator[Path]:
    """A file to write, which replaces `place` in one step at the end. Nobody ever reads half of it, not even after a
    power failure."""
    place = Path(place)
    unfinished = place.with_name(f".{place.stem}-{os.getpid()}{place.suffix}")
    try:
        yield unfinished
        put_in_place(unfinished, place)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def whole_folder(place: Path) -> Iterator[Path]:
    """A folder to fill, which replaces `place` at the end. For one process at a time: it deletes what a killed one
    left."""
    unfinished = place.with_name(f".{place.name}-unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    make_folder(unfinished)
    try:
        yield unfinished
        if place.is_dir():
            shutil.rmtree(place)
        put_in_place(unfinished, place)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def make_folder(folder: Path) -> None:
    """Makes a folder and those above it, so that a power failure does not lose it with what is saved in it later."""
    if not folder.is_dir():
        make_folder(folder.absolute().parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.absolute().parent)


def put_in_place(unfinished: Path, place: Path) -> None:
    """Renames a finished file or folder. Its content is on the disk before the name is, and then the name."""
    settle(unfinished)
    unfinished.replace(place)
    _sync(place.absolute().parent)


def put_all_in_place(unfinished: Path, folder: Path) -> None:
    """Moves the content of one folder into another that holds other things too. Parts of the same name are replaced."""
    settle(unfinished)
    for part in unfinished.iterdir():
        if (folder / part.name).is_dir():
            shutil.rmtree(folder / part.name)
        part.replace(folder / part.name)
    _sync(folder)
    unfinished.rmdir()


# --- on the disk -----------------------------------------------------------------------------------


def settle(path: Path) -> None:
    """Waits until a file, or a folder with everything below it, is on the disk. Files that only their owner can read,
    as some libraries leave them, get the rights of a new file."""
    path = Path(path)
    rights = _usual_rights(path if path.is_dir() else path.absolute().parent)
    files_and_folders = [part for part in (path, *path.rglob("*")) if part.is_file() or part.is_dir()]
    for part in sorted(files_and_folders, key=Path.is_dir):  # files before the folders that list them
        if part.is_file() and rights is not None and part.stat().st_mode & 0o777 == 0o600 != rights:
            part.chmod(rights)
        _sync(part)


def _usual_rights(folder: Path) -> int | None:
    """The rights that the umask leaves to a new file. Asking for the umask itself would change it for all threads."""
    if os.name == "nt":
        return None
    with tempfile.TemporaryDirectory(dir=folder, prefix=".rights-") as place:
        file = Path(place) / "new"
        file.touch()
        return file.stat().st_mode & 0o777


def _sync(path: Path) -> None:
    if path.is_dir() and os.name == "nt":  # Windows opens no folders
        return
    opened = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)  # Windows syncs only writable files
    try:
        os.fsync(opened)
    except OSError:
        if path.is_file():  # some network drives do not sync folders
            raise
    finally:
        os.close(opened)
