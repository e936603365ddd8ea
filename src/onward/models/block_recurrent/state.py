"""The state of a block-recurrent model: per layer the last keys and values, state vectors and remembered tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..fingerprints import Origin
from ..state import CarriedState, map_tensors
from ..state_files import StateFile, named_tensors, save_tensors

if TYPE_CHECKING:
    from .configuration_block_recurrent import BlockRecurrentConfig


class Opened(NamedTuple):
    """Everything about a block that is computed before its first token. S states, H heads."""

    keys: Tensor  # [B, H, S, D]: of the states, for tokens and states to attend to
    values: Tensor  # [B, H, S, D]
    queries: Tensor  # [B, H, S, D]: to the tokens
    read_states: Tensor  # [B, H, S, D]: attention of the states to each other
    # Attention of the states to the block before alone, [B, H, S, D], and its weight beside other tokens: the log of
    # the sum of its scores' exponentials, [B, H, S], -inf for no block. Always set in carried states.
    read_before: Tensor | None = None
    weight_before: Tensor | None = None


class CellState(NamedTuple):
    vectors: Tensor  # [B, S, d]
    opened: Opened | None = None  # None if every row is between two blocks


class Pairs(NamedTuple):
    """Keys and values [B, H, n, D] of tokens, aligned at the right."""

    keys: Tensor
    values: Tensor


class LayerState(NamedTuple):
    recent: Pairs  # at most W tokens
    cell: CellState | None = None
    memory: Pairs | None = None


@dataclass(frozen=True, repr=False)
class BlockState(CarriedState):
    """Everything that a block-recurrent model carries from call to call; every tensor has the batch first.

    Which part of it a row may attend to follows from `tokens` alone.
    """

    model: str
    tokens: tuple[int, ...]  # of each row since its document's start
    layers: tuple[LayerState, ...]
    weights: Origin | None = None  # the weights that made it, if known

    @property
    def batch_size(self) -> int:
        return len(self.tokens)

    @property
    def dtypes(self) -> set[torch.dtype]:
        """More than one only after autocast, which lowers tokens but not states."""
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
        """Starts a new document in the marked rows, which see nothing of the old one."""
        marks = self._check_marks(rows)
        if not any(n for n, mark in zip(self.tokens, marks, strict=True) if mark):
            return self
        # Masked values are not attended to, but infinities and NaNs would spread even with a weight of 0.
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
        tensors = dict(named_tensors(self.layers))
        facts = {"kind": "block", "model": self.model, "tokens": self.tokens, "layers": len(self.layers)}
        save_tensors(path, tensors, facts, self.weights)

    @classmethod
    def load(cls, path: str | Path) -> BlockState:
        """Loads what `save` wrote."""
        file = StateFile(path, "block")
        tokens = file.numbers("tokens")
        layers = tuple(_layer(file, f"{i}.", len(tokens)) for i in range(file.number("layers")))
        state = cls(file.text("model"), tokens, layers, file.weights())
        file.refuse_more()
        return state


def _as_mask(marks: Sequence[bool], like: Tensor) -> Tensor:
    return torch.tensor(marks, device=like.device).view(-1, *[1] * (like.dim() - 1))


def _layer(file: StateFile, prefix: str, rows: int) -> LayerState:
    """A layer's part of a file; its tensors are checked against each other."""

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
    # Rows between two blocks have no opened block; the zeros in its place are never used.
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
    """With empty columns at the left, up to the widest."""

    def wider(pairs: Pairs, size: int) -> Pairs:
        return Pairs(*(torch.nn.functional.pad(x, (0, 0, size - x.shape[2], 0)) for x in pairs))

    memory = wider(layer.memory, sizes[1]) if layer.memory else None
    return LayerState(wider(layer.recent, sizes[0]), layer.cell, memory)


def check_form(state: BlockState, config: BlockRecurrentConfig) -> None:
    """Refuses a state whose tensors fit each other, but not this model."""
    if len(state.layers) != config.num_hidden_layers:
        raise ValueError(f"the state has {len(state.layers)} layers, this model {config.num_hidden_layers}")
    longest, window = max(state.tokens, default=0), config.window
    between = not any(n % window for n in state.tokens)
    heads = (config.num_attention_heads, config.head_dim)

    def check(pairs: Pairs | None, held: int, most: int, what: str) -> None:
        if pairs is None:
            raise ValueError(f"the state has no {what}, which this model needs: it is damaged")
        _, count, columns, width = pairs.keys.shape
        if (count, width) != heads or not held <= columns <= most:
            raise ValueError(
                f"the state's {what} has the shape {tuple(pairs.keys.shape)}; after {longest} tokens this model has "
                f"{heads[0]} heads of {heads[1]}, and {held} to {most} columns"
            )

    for number, layer in enumerate(state.layers, start=1):
        check(layer.recent, min(longest, window), window, f"window of layer {number}")
        if number == config.memory_layer:
            check(layer.memory, min(longest // window * window, config.memory_size), config.memory_size, "memory")
        if number in config.recurrent_layers and longest:
            wanted = (config.num_states, config.hidden_size)
            if layer.cell is None or layer.cell.vectors.shape[1:] != wanted:
                raise ValueError(f"the state has no {wanted[0]} vectors of {wanted[1]} at layer {number}: damaged")
            if layer.cell.opened is None and not between:
                raise ValueError(f"the state is inside a block that layer {number} has not opened: it is damaged")
            if layer.cell.opened is not None and layer.cell.opened.keys.shape[1::2] != heads:
                raise ValueError(f"the states of layer {number} have other heads than {heads[0]} of {heads[1]}")
