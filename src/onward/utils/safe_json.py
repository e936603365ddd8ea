"""JSON that may be damaged or written by others: errors name the file, or the place in it."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .files import DamagedFile, DataError, write_text

HALF_A_CHARACTER = re.compile("[\ud800-\udfff]")
"""A surrogate without its partner. JSON can write one; UTF-8 and tokenizers cannot."""


# --- files that onward wrote -----------------------------------------------------------------------


def read_json(
    path: str | os.PathLike, what: str = "a file that onward wrote", remedy: str | None = None
) -> dict[str, Any]:
    """The object in a JSON file; anything else raises DamagedFile: the file should be `what`, and `remedy` says what
    to do."""
    path, advice = Path(path), f": {remedy}" if remedy else ""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or numbers and nesting beyond the limits
        raise DamagedFile(f"{path} is damaged: it should be {what}, and is no JSON ({error}){advice}") from error
    if not isinstance(content, dict):
        raise DamagedFile(
            f"{path} is damaged: it should be {what}, and holds {shown(content)} instead of an object{advice}"
        )
    return content


def field_of(content: dict[str, Any], path: str | os.PathLike, name: str, *kinds: type) -> Any:
    """A required field of a JSON file, of one of these kinds."""
    if name not in content:
        raise DamagedFile(f"{path} is damaged: it has no field {name!r}")
    if kinds and not isinstance(content[name], kinds):
        raise DamagedFile(f"{path} is damaged: its field {name!r} holds {shown(content[name])}")
    return content[name]


def shown(content: Any) -> str:
    """Content in an error: 80 characters of it at most."""
    text = json.dumps(content, ensure_ascii=False, default=repr)
    return text if len(text) <= 80 else f"{text[:77]}..."


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2) + "\n")


def without_infinities(value: Any) -> Any:
    """JSON has no infinity and no NaN: they become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: without_infinities(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_infinities(item) for item in value]
    return value


# --- data ------------------------------------------------------------------------------------------


def parse_json(text: str, where: str) -> Any:
    """The content of JSON text; `where` says where the text is, for errors."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        place = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
        raise DataError(f"{where}: not valid JSON: {error.msg} at {place}; correct it") from None
    except RecursionError:
        raise DataError(f"{where}: lists or objects are nested too deeply; correct it") from None
    except ValueError as error:  # a number of thousands of digits
        raise DataError(f"{where}: JSON that cannot be read: {error}; correct it") from None
    written = json.dumps(content, ensure_ascii=False) if re.search(r"\\u[dD][89a-fA-F]", text) else ""
    if half := HALF_A_CHARACTER.search(written):
        raise DataError(f"{where}: half a character, \\u{ord(half[0]):04x}, is not text; correct or remove it")
    return content
