"""JSON in files: half a file, or something else in its place, is refused by the file's name."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .files import DamagedFile, write_text


def read_json(
    path: str | os.PathLike, what: str = "a file that onward wrote", remedy: str | None = None
) -> dict[str, Any]:
    """The object in a JSON file. Half a file, or a list or nothing in its place, is refused by the file's name; a
    `remedy` says what to do then."""
    path, advice = Path(path), f": {remedy}" if remedy else ""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, or numbers and nesting beyond all measure
        raise DamagedFile(f"{path} is damaged: it should be {what}, and is no JSON ({error}){advice}") from error
    if not isinstance(content, dict):
        raise DamagedFile(
            f"{path} is damaged: it should be {what}, and holds {_short(content)} instead of an object{advice}"
        )
    return content


def field_of(content: dict[str, Any], path: str | os.PathLike, name: str, *kinds: type) -> Any:
    """A field that a JSON file must have, of one of these kinds."""
    if name not in content:
        raise DamagedFile(f"{path} is damaged: it has no field {name!r}")
    if kinds and not isinstance(content[name], kinds):
        raise DamagedFile(f"{path} is damaged: its field {name!r} holds {_short(content[name])}")
    return content[name]


def _short(content: Any) -> str:
    text = json.dumps(content)
    return text if len(text) <= 40 else f"{text[:40]}..."


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


def without_infinities(value: Any) -> Any:
    """JSON has no word for what is not a finite number: null stands for it."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: without_infinities(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_infinities(item) for item in value]
    return value
