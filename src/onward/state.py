"""The carried state: a plain value, never changed in place."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .utils.files import whole_file


def map_tensors(fn: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Applies `fn` to every tensor in nested tuples and dictionaries."""
    if isinstance(value, Tensor):
        return fn(value)
    if isinstance(value, tuple):
        items = (map_tensors(fn, item) for item in value)
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        return {key: map_tensors(fn, item) for key, item in value.items()}
    return value


def where_rows(rows: Tensor, yes: Any, no: Any) -> Any:
    """Row by row the one or the other of two equally shaped nests of tensors. rows: [B] bool."""
    if isinstance(yes, Tensor):
        return torch.where(rows.view(-1, *[1] * (yes.dim() - 1)), yes, no)
    items = (where_rows(rows, a, b) for a, b in zip(yes, no, strict=True))
    return type(yes)(*items) if hasattr(yes, "_fields") else tuple(items)


class CarriedState:
    """What the states of all models can do. `_map` applies a function to every tensor."""

    @property
    def batch_size(self) -> int:
        raise NotImplementedError

    def _map(self, fn: Callable[[Tensor], Tensor]) -> Self:
        raise NotImplementedError

    def detach(self) -> Self:
        """The same values, cut off from the graph: back-propagation ends here."""
        return self._map(Tensor.detach)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Moved to a device, or floating-point values cast to a dtype."""
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        return self._map(lambda t: t.to(device, dtype if t.is_floating_point() else None, non_blocking))

    def _check_rows(self, rows: Sequence[int] | Tensor) -> list[int]:
        order = rows.tolist() if isinstance(rows, Tensor) else list(rows)
        if any(isinstance(row, (bool, np.bool_)) for row in order):
            raise TypeError(f"rows are given by their numbers, got {order}: reset(marks) is what takes True and False")
        if order and not 0 <= min(order) <= max(order) < self.batch_size:
            raise IndexError(f"rows {order} of a state of {self.batch_size} rows")
        return order

    def _check_marks(self, rows: Sequence[bool] | Tensor) -> list[bool]:
        marks = rows.tolist() if hasattr(rows, "tolist") else rows
        if not isinstance(marks, Sequence) or not all(isinstance(mark, (bool, np.bool_)) for mark in marks):
            given = f"{rows.dtype} {tuple(rows.shape)}" if isinstance(rows, Tensor) else repr(rows)
            raise TypeError(f"starts_document, or marks to reset, must be one True or False per row, got {given}")
        marks = [bool(mark) for mark in marks]
        if len(marks) != self.batch_size:
            raise ValueError(f"starts_document, or marks to reset, has {len(marks)} values for {self.batch_size} rows")
        return marks


def save_tensors(path: str | Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    if not Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(f"{path} cannot be written: there is no folder {Path(path).absolute().parent}")
    with whole_file(path) as unfinished:
        save_file(
            {name: t.detach().contiguous() for name, t in tensors.items()},
            unfinished,
            metadata={"onward_state": json.dumps(facts)},
        )


def load_tensors(path: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {}).get("onward_state", "null"))
            # As copies: in a file tensors begin anywhere, and on some processors a product's last bit hangs on that.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a readable state file: {error}") from error
    except json.JSONDecodeError:
        facts = None
    if not isinstance(facts, dict):
        raise ValueError(f"{path} is a safetensors file, but not a state saved by onward")
    if facts.get("kind", "window") != kind:
        raise ValueError(
            f"{path} is the state of a {facts.get('kind', 'window')}-recurrent model, not of a {kind}-recurrent one"
        )
    return tensors, facts


@dataclass(frozen=True)
class OpenWindow:
    """The window that more tokens may still join. Row r holds its last `fill[r]` columns of `ids`.

    Rows are aligned at the right, like the cache, so that new tokens stand next to the old ones. `cached[r]`
    is either 0 (the tokens will be read again) or `fill[r]`.
    """

    ids: Tensor  # [B, C]
    fill: tuple[int, ...]
    cached: tuple[int, ...]
    cache: tuple[tuple[Tensor, Tensor], ...] | None = None  # per layer: keys and values [B, H, C, D]
    summary: tuple[Tensor, ...] | None = None  # what the carrier has gathered from the cached tokens
    inserted: dict[int, tuple[Tensor, Tensor]] | None = None  # per layer: the memory's keys and values

    def trimmed(self) -> OpenWindow:
        """Without the columns that no row holds any more: readers take the widest row to fill them all."""
        ids = self.ids[:, self.ids.shape[1] - max(self.fill, default=0) :]
        slots = max(self.cached, default=0)
        if self.cache is None or not slots:
            return OpenWindow(ids, self.fill, self.cached)
        drop = self.cache[0][0].shape[2] - slots
        cache = tuple((key[:, :, drop:], value[:, :, drop:]) for key, value in self.cache)
        return replace(self, ids=ids, cache=cache)


@dataclass(frozen=True)
class WindowState(CarriedState):
    """All that a window-recurrent model carries from one call to the next; every tensor has the batch first."""

    model: str  # which model it belongs to
    memory: tuple[Tensor, ...]
    has_memory: tuple[bool, ...]  # False while a row is in the first window of its document
    open: OpenWindow
    prefix: Tensor | None = None  # [B, P], aligned at the right: what every window of the row begins with
    prefix_fill: tuple[int, ...] = ()
    pooled: Tensor | None = None  # [B, k]: the largest of the windows' first vectors, for classification

    @property
    def batch_size(self) -> int:
        return len(self.has_memory)

    def _map(self, fn: Callable[[Tensor], Tensor]) -> WindowState:
        opened = replace(self.open, **{f.name: map_tensors(fn, getattr(self.open, f.name)) for f in fields(OpenWindow)})
        return replace(
            self,
            memory=map_tensors(fn, self.memory),
            prefix=map_tensors(fn, self.prefix),
            pooled=map_tensors(fn, self.pooled),
            open=opened,
        )

    def select(self, rows: Sequence[int] | Tensor) -> WindowState:
        """The given rows in the given order: reorders beams, repeats rows, drops rows."""
        order = self._check_rows(rows)
        index = torch.tensor(order, dtype=torch.long, device=self.open.ids.device)
        state = self._map(lambda t: t.index_select(0, index.to(t.device)))

        def pick(values: tuple) -> tuple:
            return tuple(values[r] for r in order)

        return replace(
            state,
            has_memory=pick(self.has_memory),
            prefix_fill=pick(self.prefix_fill) if self.prefix_fill else (),
            open=replace(state.open, fill=pick(self.open.fill), cached=pick(self.open.cached)).trimmed(),
        )

    def reset(self, rows: Sequence[bool] | Tensor) -> WindowState:
        """Lets the marked rows start a new document: nothing of the old one can be seen any more."""
        marks = self._check_marks(rows)

        def keep(values: tuple, empty: Any) -> tuple:
            return tuple(empty if mark else value for value, mark in zip(values, marks, strict=True))

        pooled = self.pooled
        if pooled is not None:
            pooled = pooled.masked_fill(torch.tensor(marks, device=pooled.device)[:, None], -torch.inf)
        return replace(
            self,
            pooled=pooled,
            has_memory=keep(self.has_memory, False),
            prefix_fill=keep(self.prefix_fill, 0) if self.prefix_fill else (),
            open=replace(self.open, fill=keep(self.open.fill, 0), cached=keep(self.open.cached, 0)).trimmed(),
        )

    def swap_memories(self, order: Sequence[int]) -> WindowState:
        """Gives row r the memory of row order[r], leaving its tokens alone: the control for content.

        Only between windows: inside one, the memory has already been mixed into the cache.
        """
        if any(self.open.cached):
            raise ValueError("memories can only be swapped at a window's edge; this state is inside a window")
        self._check_rows(order)
        if len(order) != self.batch_size:
            raise ValueError(f"{len(order)} memories for a state of {self.batch_size} rows")
        index = torch.tensor(list(order), dtype=torch.long)
        return replace(
            self,
            memory=map_tensors(lambda t: t.index_select(0, index.to(t.device)), self.memory),
            has_memory=tuple(self.has_memory[r] for r in order),
        )

    def save(self, path: str | Path) -> None:
        """Writes the state to a .safetensors file."""
        tensors = {f"memory.{i}": t for i, t in enumerate(self.memory)} | {"open.ids": self.open.ids}
        tensors |= {name: t for name in ("prefix", "pooled") if (t := getattr(self, name)) is not None}
        if self.open.cache is not None:
            for i, (key, value) in enumerate(self.open.cache):
                tensors |= {f"open.cache.{i}.key": key, f"open.cache.{i}.value": value}
        tensors |= {f"open.summary.{i}": t for i, t in enumerate(self.open.summary or ())}
        for layer, (key, value) in (self.open.inserted or {}).items():
            tensors |= {f"open.inserted.{layer}.key": key, f"open.inserted.{layer}.value": value}
        facts = {
            "model": self.model,
            "has_memory": self.has_memory,
            "prefix_fill": self.prefix_fill,
            "fill": self.open.fill,
            "cached": self.open.cached,
        }
        save_tensors(path, tensors, facts)

    @classmethod
    def load(cls, path: str | Path) -> WindowState:
        """Reads what `save` wrote."""
        tensors, facts = load_tensors(path, "window")

        def numbered(prefix: str) -> tuple[Tensor, ...]:
            names = sorted((n for n in tensors if n.startswith(prefix)), key=lambda n: int(n[len(prefix) :]))
            return tuple(tensors[n] for n in names)

        def pairs(prefix: str) -> dict[int, tuple[Tensor, Tensor]]:
            layers = sorted({int(n[len(prefix) :].split(".")[0]) for n in tensors if n.startswith(prefix)})
            return {i: (tensors[f"{prefix}{i}.key"], tensors[f"{prefix}{i}.value"]) for i in layers}

        return cls(
            model=facts["model"],
            memory=numbered("memory."),
            has_memory=tuple(facts["has_memory"]),
            prefix=tensors.get("prefix"),
            pooled=tensors.get("pooled"),
            prefix_fill=tuple(facts["prefix_fill"]),
            open=OpenWindow(
                ids=tensors["open.ids"],
                fill=tuple(facts["fill"]),
                cached=tuple(facts["cached"]),
                cache=tuple(pairs("open.cache.").values()) or None,
                summary=numbered("open.summary.") or None,
                inserted=pairs("open.inserted.") or None,
            ),
        )


__all__ = [
    "CarriedState",
    "OpenWindow",
    "WindowState",
    "load_tensors",
    "map_tensors",
    "save_tensors",
    "where_rows",
]
