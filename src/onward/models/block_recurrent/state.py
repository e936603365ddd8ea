"""What a block-recurrent model carries: per layer the last keys and values, state vectors, remembered tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..fingerprints import Origin
from ..state import CarriedState, map_tensors
from ..state_files import StateFile, save_tensors


class Opened(NamedTuple):
    """What is known of a block before its first token. S states, H heads."""

    keys: Tensor  # [B, H, S, D]: of the states, for tokens and states to read
    values: Tensor  # [B, H, S, D]
    queries: Tensor  # [B, H, S, D]: to the tokens
    read_states: Tensor  # [B, H, S, D]: what the states read in each other
    # What they read in the block before, had they read it alone, [B, H, S, D], and its weight beside other tokens: the
    # logarithm of the sum of its scores' exponentials, [B, H, S], -inf for no block. In carried states always there.
    read_before: Tensor | None = None
    weight_before: Tensor | None = None


class CellState(NamedTuple):
    vectors: Tensor  # [B, S, d]
    opened: Opened | None = None  # None where every row stands between two blocks


class Pairs(NamedTuple):
    """Keys and values [B, H, n, D] of tokens, aligned at the right."""

    keys: Tensor
    values: Tensor


class LayerState(NamedTuple):
    recent: Pairs  # of at most W tokens
    cell: CellState | None = None
    memory: Pairs | None = None


@dataclass(frozen=True, repr=False)
class BlockState(CarriedState):
    """All that a block-recurrent model carries from one call to the next; every tensor has the batch first.

    What of it a row may look at follows from `tokens` alone, how many the row has read since its document's start.
    """

    model: str  # which model it belongs to
    tokens: tuple[int, ...]
    layers: tuple[LayerState, ...]
    weights: Origin | None = None  # that made it, where they are known

    @property
    def batch_size(self) -> int:
        return len(self.tokens)

    @property
    def dtypes(self) -> set[torch.dtype]:
        """More than one only after autocast, which works with tokens in another than with states."""
        cells = (layer.cell.vectors.dtype for layer in self.layers if layer.cell is not None)
        return {layer.recent.keys.dtype for layer in self.layers} | set(cells)

    def __repr__(self) -> str:
        return f"BlockState(tokens={self.tokens}, model={self.model!r})"

    def _map(self, fn: Callable[[Tensor], Tensor]) -> BlockState:
        return replace(self, layers=map_tensors(fn, self.layers))

    def select(self, rows: Sequence[int] | Tensor) -> BlockState:
        """The given rows in the given order: reorders beams, repeats rows, drops rows."""
        order = self._check_rows(rows)
        index = torch.tensor(order, dtype=torch.long)
        state = self._map(lambda t: t.index_select(0, index.to(t.device)))
        return replace(state, tokens=tuple(self.tokens[r] for r in order))

    def reset(self, rows: Sequence[bool] | Tensor) -> BlockState:
        """Lets the marked rows start a new document: nothing of the old one can be seen any more."""
        marks = self._check_marks(rows)
        if not any(n for n, mark in zip(self.tokens, marks, strict=True) if mark):
            return self
        # No one looks at zeros either; but numbers that went wrong would go on even where they count for nothing.
        kept = self._map(lambda t: t.masked_fill(_as_mask(marks, t), 0))
        return replace(kept, tokens=tuple(0 if mark else n for n, mark in zip(self.tokens, marks, strict=True)))

    @staticmethod
    def join(states: Sequence[BlockState]) -> BlockState:
        """The rows of several states, one after the other."""
        models = list(dict.fromkeys(state.model for state in states))
        if len(models) != 1:
            given = f"of different models ({'; '.join(models)})" if models else "of no state at all"
            raise ValueError(f"only states of one model can be joined, and these are {given}")
        weights = next((state.weights for state in states if state.weights is not None), None)
        for state in states:
            if weights is not None:
                weights.check(state.weights)
        widest = [_columns(layers) for layers in zip(*(state.layers for state in states), strict=True)]
        layers = (
            tuple(_widened(layer, sizes) for layer, sizes in zip(state.layers, widest, strict=True)) for state in states
        )
        sizes = [state.batch_size for state in states]
        joined = tuple(_join(parts, sizes) for parts in zip(*layers, strict=True))
        return BlockState(states[0].model, tuple(n for state in states for n in state.tokens), joined, weights)

    def save(self, path: str | Path) -> None:
        """Writes the state to a .safetensors file."""
        tensors = dict(_named(self.layers))
        facts = {"kind": "block", "model": self.model, "tokens": self.tokens, "layers": len(self.layers)}
        save_tensors(path, tensors, facts, self.weights)

    @classmethod
    def load(cls, path: str | Path) -> BlockState:
        """Reads what `save` wrote."""
        file = StateFile(path, "block")
        tokens = file.numbers("tokens")
        layers = tuple(_layer(file, f"{i}.", len(tokens)) for i in range(file.number("layers")))
        state = cls(file.text("model"), tokens, layers, file.weights())
        file.refuse_more()
        return state


def _as_mask(marks: Sequence[bool], like: Tensor) -> Tensor:
    return torch.tensor(marks, device=like.device).view(-1, *[1] * (like.dim() - 1))


# -- nests of named tuples as flat names, "3.cell.opened.keys"


def _named(value: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield prefix.rstrip("."), value
    elif value is not None:
        names = getattr(value, "_fields", range(len(value)))
        for name, item in zip(names, value, strict=True):
            yield from _named(item, f"{prefix}{name}.")


def _layer(file: StateFile, prefix: str, rows: int) -> LayerState:
    """A layer's part of a file, its tensors checked against each other."""

    def pairs(name: str) -> Pairs:
        keys = file.take(f"{prefix}{name}.keys", (rows, None, None, None))
        return Pairs(keys, file.take(f"{prefix}{name}.values", keys.shape))

    def opened(states: int) -> Opened:
        keys = file.take(f"{prefix}cell.opened.keys", (rows, None, states, None))
        others = {name: keys.shape for name in Opened._fields[1:]} | {"weight_before": keys.shape[:3]}
        return Opened(keys, *(file.take(f"{prefix}cell.opened.{name}", shape) for name, shape in others.items()))

    recent, cell = pairs("recent"), None
    if file.has(f"{prefix}cell."):
        vectors = file.take(f"{prefix}cell.vectors", (rows, None, None))
        cell = CellState(vectors, opened(vectors.shape[1]) if file.has(f"{prefix}cell.opened.") else None)
    return LayerState(recent, cell, pairs("memory") if file.has(f"{prefix}memory.") else None)


def _join(parts: Sequence[Any], sizes: Sequence[int]) -> Any:
    first = next((part for part in parts if part is not None), None)
    if first is None:
        return None
    # Rows between two blocks have opened none: what stands in its place is never looked at.
    filled = [_blank(first, size) if part is None else part for part, size in zip(parts, sizes, strict=True)]
    if isinstance(first, Tensor):
        return torch.cat(filled)
    return type(first)(*(_join(items, sizes) for items in zip(*filled, strict=True)))


def _blank(like: Any, rows: int) -> Any:
    return map_tensors(lambda t: t.new_zeros(rows, *t.shape[1:]), like)


def _columns(layers: Sequence[LayerState]) -> tuple[int, int]:
    recent = max(layer.recent.keys.shape[2] for layer in layers)
    memory = max(layer.memory.keys.shape[2] if layer.memory else 0 for layer in layers)
    return recent, memory


def _widened(layer: LayerState, sizes: tuple[int, int]) -> LayerState:
    """With empty columns at the left, which no row looks at, up to the widest."""

    def wider(pairs: Pairs, size: int) -> Pairs:
        return Pairs(*(torch.nn.functional.pad(x, (0, 0, size - x.shape[2], 0)) for x in pairs))

    memory = wider(layer.memory, sizes[1]) if layer.memory else None
    return LayerState(wider(layer.recent, sizes[0]), layer.cell, memory)
