"""Files that are whole, readable and on the disk: what says that it is saved has gone through here."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class DamagedFile(ValueError):
    """A file does not hold what it must; the message names it, and what is wrong with it."""


def write_text(path: Path, text: str) -> None:
    with whole_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


@contextmanager
def whole_file(place: str | os.PathLike) -> Iterator[Path]:
    """A file to write, which then replaces the one there in one step, so that no one ever reads half of it, not even
    after a power failure."""
    place = Path(place)
    unfinished = place.with_name(f".{place.stem}-{os.getpid()}{place.suffix}")
    try:
        yield unfinished
        put_in_place(unfinished, place)
    finally:
        unfinished.unlink(missing_ok=True)


def put_in_place(unfinished: Path, place: Path) -> None:
    """Renames a finished file or folder; what it holds is on the disk before its name is there, and then the name."""
    settle(unfinished)
    unfinished.replace(place)
    _sync(place.absolute().parent)


def make_folder(folder: Path) -> None:
    """With all folders above it; what is saved in it later is not lost with its name."""
    if not folder.is_dir():
        make_folder(folder.absolute().parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.absolute().parent)


def put_all_in_place(unfinished: Path, folder: Path) -> None:
    """Moves what is in one folder into another, which holds other things too, and replaces what has the same names."""
    settle(unfinished)
    for part in unfinished.iterdir():
        if (folder / part.name).is_dir():
            shutil.rmtree(folder / part.name)
        part.replace(folder / part.name)
    _sync(folder)
    unfinished.rmdir()


@contextmanager
def whole_folder(place: Path) -> Iterator[Path]:
    """A folder to fill, which takes its place at once, and that of an older one, when all is in it. For one process at
    a time: what a killed one left is deleted by the next."""
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


def settle(path: Path) -> None:
    """Waits until a file, or a folder with all that is below it, is on the disk, with the rights that a new file
    has here: some libraries leave files that no one else may read."""
    path = Path(path)
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    rights = _usual_rights(path.absolute().parent if path.is_file() else path)
    for file in files:
        if rights is not None and file.stat().st_mode & 0o777 == 0o600 != rights:
            file.chmod(rights)
        _sync(file)
    if path.is_dir():
        for folder in [*(below for below in path.rglob("*") if below.is_dir()), path]:
            _sync(folder)


def _usual_rights(folder: Path) -> int | None:
    """What the umask leaves to a new file. It can only be asked for by changing it, for all threads."""
    if os.name == "nt":
        return None
    with tempfile.TemporaryDirectory(dir=folder, prefix=".rights-") as place:
        file = Path(place) / "new"
        file.touch()
        return file.stat().st_mode & 0o777


def _sync(path: Path) -> None:
    if path.is_dir() and os.name == "nt":  # Windows opens no folders
        return
    opened = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)  # Windows syncs what may be written
    try:
        os.fsync(opened)
    except OSError:
        if path.is_file():  # some network drives do not sync folders
            raise
    finally:
        os.close(opened)
