"""Which file of a model's folder is damaged: libraries that fail on one do not name it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open

from .files import DamagedFile
from .safe_json import field_of, read_json

OBJECTS: dict[str, tuple[str, ...]] = {
    "config.json": (),
    "generation_config.json": (),
    "tokenizer_config.json": (),
    "tokenizer.json": ("model",),
    "special_tokens_map.json": (),
    "model.safetensors.index.json": ("weight_map",),
}
"""What is JSON, and the fields that it must have."""


@contextmanager
def damage_told(place: str | os.PathLike) -> Iterator[None]:
    """Where loading from `place` fails, and a file there is damaged, the error names that file."""
    try:
        yield
    except DamagedFile:
        raise
    except Exception as error:
        refuse_damaged(Path(place), error)
        raise


def refuse_damaged(folder: Path, error: Exception) -> None:
    for name, needed in OBJECTS.items():
        if (file := folder / name).is_file():
            content = read_json(file, "part of a saved model")
            for field in needed:
                field_of(content, file, field)
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "pt") as opened:
                list(opened.keys())
        except SafetensorError as damage:
            raise DamagedFile(f"{file} is damaged: {damage}; save the model again, or take a copy of it") from error
    pickled = sorted(folder.glob("pytorch_model*.bin"))
    if pickled and not any(folder.glob("*.safetensors")) and not isinstance(error, (ValueError, ImportError)):
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        raise DamagedFile(
            f"{pickled[0]} is damaged, or holds no weights ({said}): use a model saved as safetensors"
        ) from error
