"""Which file of a saved model is damaged. The libraries that fail to load it do not name it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open

from .files import DamagedFile
from .safe_json import field_of, read_json

REQUIRED_FIELDS: dict[str, tuple[str, ...]] = {
    "config.json": (),
    "generation_config.json": (),
    "tokenizer_config.json": (),
    "tokenizer.json": ("model",),
    "special_tokens_map.json": (),
    "model.safetensors.index.json": ("weight_map",),
}
"""By JSON files."""


@contextmanager
def damage_told(place: str | os.PathLike) -> Iterator[None]:
    """If loading from `place` fails and a file there is damaged, the error names that file."""
    try:
        yield
    except DamagedFile:
        raise
    except Exception as error:
        _refuse_damaged(Path(place), error)
        raise


def _refuse_damaged(folder: Path, error: Exception) -> None:
    for name, fields in REQUIRED_FIELDS.items():
        if (file := folder / name).is_file():
            content = read_json(file, "part of a saved model")
            for field in fields:
                field_of(content, file, field)
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "pt") as opened:
                list(opened.keys())
        except SafetensorError as damage:
            raise DamagedFile(f"{file} is damaged: {damage}; save the model again, or restore a copy of it") from error
    pickled = sorted(folder.glob("pytorch_model*.bin"))
    if pickled and not any(folder.glob("*.safetensors")) and not isinstance(error, (ValueError, ImportError)):
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        raise DamagedFile(
            f"{pickled[0]} is damaged, or holds no weights ({said}): use a model saved as safetensors"
        ) from error
