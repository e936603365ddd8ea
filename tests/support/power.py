"""A power failure, simulated: what is left of a folder is what was synced.

Of a file there is what it held when it was last synced, or nothing at all. Of a folder there are the names that it had
when it was last synced; or, since a disk may also have been quicker than it must be, the names that it had at the end.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

FAILED = 77  # the exit code of a process whose power has failed


Names = dict[str, tuple[int, bool]]  # of a folder: the inode of each, and whether it is a folder too


def _known(about: os.stat_result) -> tuple[int, bool]:
    return about.st_ino, stat.S_ISDIR(about.st_mode)


class Power:
    """Watches syncs and renames below a folder, from its making on. Files are known by their inodes, which are kept
    from being used again by keeping them open."""

    def __init__(self, root: Path):
        self.root = root
        self.files: dict[int, bytes] = {}
        self.folders: dict[int, Names] = {}
        self.opened: dict[int, int] = {}
        self.renames = 0
        self._sync = os.fsync
        opened = os.open(root, os.O_RDONLY)
        self._note(opened)
        os.close(opened)

    def _note(self, opened: int) -> None:
        about = os.fstat(opened)
        self.opened.setdefault(about.st_ino, os.dup(opened))
        if stat.S_ISDIR(about.st_mode):
            names = os.listdir(opened)
            self.folders[about.st_ino] = {name: _known(os.stat(name, dir_fd=opened)) for name in names}
        else:
            self.files[about.st_ino] = Path(f"/proc/self/fd/{opened}").read_bytes()

    def fail_after(self, renames: int, fail: Callable[[], None]) -> None:
        """From now on, syncs are noted instead of waited for; after so many renames `fail` is called."""
        os.fsync = self._note  # type: ignore[assignment]
        for name in ("rename", "replace"):
            self._count(name, renames, fail)

    def _count(self, name: str, renames: int, fail: Callable[[], None]) -> None:
        real = getattr(os, name)

        def counted(*args: object, **kwargs: object) -> None:
            real(*args, **kwargs)
            self.renames += 1
            if self.renames == renames:
                fail()

        setattr(os, name, counted)

    def leave(self, place: Path, names_kept: bool) -> None:
        """Writes what is left of the root to `place`."""
        self._leave_folder(os.stat(self.root).st_ino, self.root, place, names_kept)

    def _leave_folder(self, inode: int, now: Path | None, place: Path, names_kept: bool) -> None:
        place.mkdir()
        names = dict(self.folders.get(inode, {}))
        if names_kept and now is not None:
            names = {path.name: _known(path.stat()) for path in now.iterdir()}
        for name, (below, is_folder) in names.items():
            there = None if now is None else now / name
            there = there if there is not None and there.exists() and there.stat().st_ino == below else None
            if is_folder:
                self._leave_folder(below, there, place / name, names_kept)
            else:
                (place / name).write_bytes(self.files.get(below, b""))


def run_until_it_fails(root: Path, renames: int, left: Path, names_kept: bool, work: Callable[[], None]) -> None:
    """In a process of its own, which this ends. If there are fewer renames, the power fails when the work is done."""
    power = Power(root)

    def fail() -> None:
        power.leave(left, names_kept)
        os._exit(FAILED)

    power.fail_after(renames, fail)
    work()
    fail()
