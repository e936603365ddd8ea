"""States in files: safetensors, with everything else as JSON in the metadata. All of a file is checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..utils.files import DamagedFile, whole_file
from .fingerprints import Fingerprint, Origin


def named_tensors(nest: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of nested tuples and dictionaries by flat names, "3.cell.opened.keys"."""
    if isinstance(nest, Tensor):
        yield prefix.rstrip("."), nest
    elif nest is not None:
        items = (
            nest if isinstance(nest, dict) else dict(zip(getattr(nest, "_fields", range(len(nest))), nest, strict=True))
        )
        for name, item in items.items():
            yield from named_tensors(item, f"{prefix}{name}.")


def save_tensors(path: str | Path, tensors: dict[str, Tensor], facts: dict[str, Any], weights: Origin | None) -> None:
    path = Path(path)
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {path.absolute().parent}")
    fingerprint = None if weights is None else weights.fingerprint
    if fingerprint is not None:
        facts = {**facts, "weights": fingerprint.as_json()}
    whole = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    facts = json.loads(json.dumps(facts))  # as they are loaded
    with whole_file(path) as unfinished:
        save_file(whole, unfinished, metadata={"onward_state": json.dumps({**facts, "sha256": _digest(whole, facts)})})


def _digest(tensors: dict[str, Tensor], facts: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class StateFile:
    """The content of a state file, taken out piece by piece; each piece is checked as it is taken."""

    def __init__(self, path: str | Path, kind: str):
        self.path = path
        try:
            with safe_open(path, "pt") as file:
                facts = json.loads((file.metadata() or {}).get("onward_state", "null"))
                # Copies, since the alignment of tensors in a file can change the last bit of a product.
                self.tensors: dict[str, Tensor] = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise DamagedFile(f"{path} is not a readable state file: {error}") from error
        except (json.JSONDecodeError, RecursionError):
            facts = None
        if not isinstance(facts, dict):
            raise DamagedFile(f"{path} is a safetensors file, but not a state saved by onward")
        if facts.get("kind", "window") != kind:
            raise ValueError(
                f"{path} is the state of a {facts.get('kind', 'window')}-recurrent model, not of a {kind}-recurrent one"
            )
        written = facts.pop("sha256", None)  # files of version 0.1 may lack it
        self._facts = facts
        if written is not None and written != _digest(self.tensors, facts):
            raise self.damaged("it does not hold what was written to it")

    def damaged(self, what: str) -> DamagedFile:
        return DamagedFile(f"{self.path} is a damaged state file: {what}")

    # -- facts

    @property
    def version(self) -> int:
        return self.number("version") if "version" in self._facts else 1

    def text(self, name: str) -> str:
        return self._fact(name, str)

    def number(self, name: str) -> int:
        return self._whole(name, self._fact(name, int))

    def numbers(self, name: str, count: int | None = None) -> tuple[int, ...]:
        """Whole numbers of at least 0, one for each row."""
        return tuple(self._whole(name, value) for value in self._list(name, count))

    def marks(self, name: str) -> tuple[bool, ...]:
        listed = self._list(name, None)
        if not all(isinstance(value, bool) for value in listed):
            raise self.damaged(f"{name} holds {listed}, and not true and false")
        return tuple(listed)

    def weights(self) -> Origin | None:
        """None for files of version 0.1, which only tell the form of their model."""
        if "weights" not in self._facts:
            return None
        try:
            return Origin(Fingerprint.from_json(self._facts["weights"]))
        except ValueError as error:
            raise self.damaged(str(error)) from error

    def _fact(self, name: str, kind: type) -> Any:
        value = self._facts.get(name)
        if not isinstance(value, kind):
            raise self.damaged(f"{name} is missing" if name not in self._facts else f"{name} holds {value!r}")
        return value

    def _list(self, name: str, count: int | None) -> list[Any]:
        listed = self._fact(name, list)
        if count is not None and len(listed) != count:
            raise self.damaged(f"{name} has {len(listed)} values for {count} rows")
        return listed

    def _whole(self, name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.damaged(f"{name} holds {value!r}, and not a whole number of at least 0")
        return value

    # -- tensors

    def _pop(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise self.damaged(f"{name} is missing")
        return self.tensors.pop(name)

    def take(self, name: str, shape: Sequence[int | None], of_ids: bool = False) -> Tensor:
        """A tensor of this shape, None for any size."""
        tensor = self._pop(name)
        fits = tensor.dim() == len(shape) and all(
            want in (None, have) for want, have in zip(shape, tensor.shape, strict=True)
        )
        if not fits:
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            raise self.damaged(f"{name} has the shape {tuple(tensor.shape)}, and not ({wanted})")
        if of_ids == tensor.is_floating_point() or tensor.is_complex():
            raise self.damaged(f"{name} holds {tensor.dtype}")
        return tensor.long() if of_ids else tensor

    def take_rows(self, name: str, rows: int) -> Tensor:
        """A tensor of any kind with the batch first, for what carriers define themselves."""
        tensor = self._pop(name)
        if not tensor.dim() or len(tensor) != rows:
            raise self.damaged(f"{name} has the shape {tuple(tensor.shape)} for {rows} rows")
        return tensor

    def numbered(self, prefix: str, rows: int) -> tuple[Tensor, ...]:
        found: list[Tensor] = []
        while f"{prefix}{len(found)}" in self.tensors:
            found.append(self.take_rows(f"{prefix}{len(found)}", rows))
        return tuple(found)

    def pairs(self, prefix: str, rows: int) -> dict[int, tuple[Tensor, Tensor]]:
        """Keys and values of some layers."""
        numbers = [name.removeprefix(prefix).split(".")[0] for name in self.tensors if name.startswith(prefix)]
        return {
            layer: (self.take_rows(f"{prefix}{layer}.key", rows), self.take_rows(f"{prefix}{layer}.value", rows))
            for layer in sorted({int(number) for number in numbers if number.isdecimal()})
        }

    def has(self, prefix: str) -> bool:
        return any(name.startswith(prefix) for name in self.tensors)

    def refuse_more(self) -> None:
        if self.tensors:
            raise self.damaged(f"it has other tensors than the state it describes: {', '.join(sorted(self.tensors))}")
