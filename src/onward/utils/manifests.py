"""Hashes of files, written beside them, by which a file that has changed since is found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .files import DamagedFile
from .safe_json import field_of, read_json

MANIFEST = "manifest.json"

Listed = dict[str, dict[str, Any]]


def listing(folder: Path, files: Iterable[Path]) -> Listed:
    """Lengths and hashes of these files, by their names in the folder. A gigabyte takes about a second."""
    return {
        file.relative_to(folder).as_posix(): {"bytes": file.stat().st_size, "sha256": _hash(file)}
        for file in sorted(files)
    }


def _hash(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def write_manifest(folder: Path) -> None:
    """Lists everything in the folder: call it last, before the folder is put in its place."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != MANIFEST]
    (folder / MANIFEST).write_text(json.dumps({"files": listing(folder, files)}, indent=1) + "\n", encoding="utf-8")


def has_manifest(folder: Path) -> bool:
    return (folder / MANIFEST).exists()


def fault_in(folder: Path, thorough: bool = True) -> str | None:
    """Which file is not as it was written, and why; None if all are. Without `thorough`, only lengths are compared."""
    place = folder / MANIFEST
    try:
        listed = field_of(read_json(place, "a list of hashes"), place, "files", dict)
    except DamagedFile as error:
        return str(error)
    return fault_among(folder, listed, thorough) if listed else f"{place} is damaged: it lists no file"


def fault_among(folder: Path, listed: Listed, thorough: bool = True) -> str | None:
    for name, known in listed.items():
        file = folder / name
        if not file.is_file():
            return f"{file} is missing"
        wanted, size = known.get("bytes") if isinstance(known, dict) else known, file.stat().st_size
        if not isinstance(known, dict) or size != wanted:
            return f"{file} is damaged: it has {size} bytes, and had {wanted} when it was written"
        if thorough and _hash(file) != known.get("sha256"):
            return f"{file} is damaged: its content is not what was written (sha256)"
    return None
