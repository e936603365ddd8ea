"""The state of a window-recurrent model: the memory, and the window that is still open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..checking import refuse_ids_outside
from ..fingerprints import Origin
from ..state import CarriedState, check_state, map_tensors
from ..state_files import StateFile, named_tensors, save_tensors

Held = tuple[tuple[Tensor, ...], ...]
"""Per layer: keys and values [B, H, C, D], and queries if the carrier asks for them."""


@dataclass(frozen=True)
class OpenWindow:
    """The window that more tokens may still join. Row r holds its last `fill[r]` columns of `ids`.

    Rows are aligned at the right, like the cache, so that new tokens stand next to the old ones. `cached[r]` is
    either 0 (the tokens will be processed again) or `fill[r]`.
    """

    ids: Tensor  # [B, C], or [B, C, 2] with each token's type behind its id
    fill: tuple[int, ...]
    cached: tuple[int, ...]
    cache: Held | None = None
    summary: tuple[Tensor, ...] | None = None  # a carrier's summary of the cached tokens
    inserted: dict[int, tuple[Tensor, Tensor]] | None = None  # per layer: the memory's keys and values

    def trimmed(self) -> OpenWindow:
        """Without the columns that no row uses: there must be as many columns as the widest row has tokens."""
        ids = self.ids[:, self.ids.shape[1] - max(self.fill, default=0) :]
        slots = max(self.cached, default=0)
        if self.cache is None or not slots:
            return OpenWindow(ids, self.fill, self.cached)
        drop = self.cache[0][0].shape[2] - slots
        cache = tuple(tuple(x[:, :, drop:] for x in layer) for layer in self.cache)
        return replace(self, ids=ids, cache=cache)


@dataclass(frozen=True)
class WindowState(CarriedState):
    """Everything that a window-recurrent model carries from call to call; every tensor has the batch first."""

    model: str
    memory: tuple[Tensor, ...]
    has_memory: tuple[bool, ...]  # False while a row is in the first window of its document
    open: OpenWindow
    prefix: Tensor | None = None  # [B, P] like the open ids: the first tokens of all windows of a row
    prefix_fill: tuple[int, ...] = ()
    pooled: Tensor | None = None  # [B, k]: the maximum over windows of their first vectors, for classification
    weights: Origin | None = field(default=None, repr=False)  # the weights that made it, if known

    @property
    def batch_size(self) -> int:
        return len(self.has_memory)

    def prefix_of(self, row: int) -> int:
        """How many tokens begin each window of a row."""
        return self.prefix_fill[row] if self.prefix_fill else 0

    @property
    def nbytes(self) -> int:
        """How many bytes its tensors have: the memory, and the open window if there is one."""
        sizes: list[int] = []
        self._map(lambda t: sizes.append(t.nbytes) or t)  # type: ignore[func-returns-value]
        return sum(sizes)

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
        """Starts a new document in the marked rows, which see nothing of the old one."""
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
        """Gives row r the memory of row order[r], but keeps its tokens: the control for a memory's content.

        Only between windows: inside a window the memory is already mixed into the cache.
        """
        if any(self.open.cached):
            raise ValueError("memories can only be swapped between windows, and this state is inside one")
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
        opened = self.open
        nest = {
            "memory": self.memory,
            "prefix": _ids(self.prefix),
            "prefix_types": _types(self.prefix),
            "pooled": self.pooled,
            "open": {
                "ids": _ids(opened.ids),
                "types": _types(opened.ids),
                "cache": tuple(dict(zip(_HELD, layer, strict=False)) for layer in opened.cache or ()),
                "summary": opened.summary,
                "inserted": {layer: {"key": k, "value": v} for layer, (k, v) in (opened.inserted or {}).items()},
            },
        }
        facts = {
            "version": _VERSION,
            "model": self.model,
            "has_memory": self.has_memory,
            "prefix_fill": self.prefix_fill,
            "fill": opened.fill,
            "cached": opened.cached,
        }
        save_tensors(path, dict(named_tensors(nest)), facts, self.weights)

    @classmethod
    def load(cls, path: str | Path) -> WindowState:
        """Loads what `save` wrote."""
        file = StateFile(path, "window")
        if file.version > _VERSION:
            raise ValueError(f"{path} was written by a later version of onward, which can load it")
        has_memory = file.marks("has_memory")
        rows = len(has_memory)
        fill, cached = file.numbers("fill", rows), file.numbers("cached", rows)
        prefix_fill = file.numbers("prefix_fill")
        if len(prefix_fill) not in (0, rows):
            raise file.damaged(f"prefix_fill has {len(prefix_fill)} values for {rows} rows")
        if any(slots not in (0, held) for slots, held in zip(cached, fill, strict=True)):
            raise file.damaged(f"cached={cached} holds other tokens than fill={fill}")
        prefix = _tokens(file, "prefix", "prefix_types", (rows, None)) if prefix_fill else None
        if prefix is not None and prefix.shape[1] < max(prefix_fill, default=0):
            raise file.damaged(f"prefix_fill={prefix_fill} is more than the {prefix.shape[1]} tokens of prefix")
        slots = max(cached, default=0)
        cache: list[tuple[Tensor, ...]] = []
        while slots and file.has(f"open.cache.{len(cache)}."):
            names = [f"open.cache.{len(cache)}.{part}" for part in _HELD]
            names = names if file.has(names[2]) else names[:2]
            cache.append(tuple(file.take(name, (rows, None, slots, None)) for name in names))
        if slots and not cache:
            raise file.damaged(f"cached={cached} without a cache")
        state = cls(
            model=file.text("model"),
            memory=file.numbered("memory.", rows),
            has_memory=has_memory,
            prefix=prefix,
            pooled=file.take("pooled", (rows, None)) if file.has("pooled") else None,
            prefix_fill=prefix_fill,
            weights=file.weights(),
            open=OpenWindow(
                ids=_tokens(file, "open.ids", "open.types", (rows, max(fill, default=0))),
                fill=fill,
                cached=cached,
                cache=tuple(cache) or None,
                summary=file.numbered("open.summary.", rows) or None,
                inserted=file.pairs("open.inserted.", rows) or None,
            ),
        )
        file.refuse_more()
        return state


_HELD = ("key", "value", "query")

_VERSION = 2  # of files; 1 is that of files that do not tell


def _ids(tokens: Tensor | None) -> Tensor | None:
    return tokens if tokens is None or tokens.dim() == 2 else tokens[..., 0]


def _types(tokens: Tensor | None) -> Tensor | None:
    return None if tokens is None or tokens.dim() == 2 else tokens[..., 1]


def _tokens(file: StateFile, name: str, name_of_types: str, shape: tuple[int | None, ...]) -> Tensor:
    """Ids [B, C], or [B, C, 2] with each token's type behind its id."""
    ids = file.take(name, shape, of_ids=True)
    if file.version == 1:  # which has a token's type above bit 40 of its id
        ids, types = ids & (1 << 40) - 1, ids >> 40
        return torch.stack([ids, types], -1) if bool(types.any()) else ids
    return torch.stack([ids, file.take(name_of_types, ids.shape, of_ids=True)], -1) if file.has(name_of_types) else ids


# -- whether a model can continue from a state


def check_fits(state: WindowState, ids: Tensor, reader: Any) -> None:
    """Refuses a state that the model cannot continue."""
    _check_size(state, reader)
    check_state(state, WindowState, reader.name, ids.shape[0])
    if state.weights is not reader.origin:
        reader.origin.check(state.weights)
        _check_form(state, ids, reader)
    own = next(reader.base.parameters()).dtype
    for tensor in state.memory:
        if tensor.is_floating_point() and tensor.dtype != own:
            raise ValueError(f"the state's memory is {tensor.dtype}, the model {own}: move it with state.to({own})")


def _check_size(state: WindowState, reader: Any) -> None:
    """Refuses a state that has another number of slots than the model, which can be changed."""
    carrier = reader.carrier
    if not (carrier.takes_slots and isinstance(state, WindowState) and state.memory):
        return
    given, own = state.memory[-1].shape[-1], carrier.count
    if given != own and state.model == reader.name.replace(f", {own} at ", f", {given} at "):
        raise ValueError(f"the state has {given} slots and the model {own}: call set_slots({given}) to continue it")


def _check_form(state: WindowState, ids: Tensor, reader: Any) -> None:
    """Refuses a state whose tensors fit each other, but not this model."""
    opened, carrier, config = state.open, reader.carrier, reader.base.config.get_text_config()
    parts = [("memory", reader.fresh(ids).memory, state.memory)]
    if opened.summary is not None:
        parts.append(("summary", _blank_summary(state, reader, config.hidden_size), opened.summary))
    for name, ours, theirs in parts:
        wanted, given = ([tuple(t.shape) for t in tensors] for tensors in (ours, theirs))
        if given != wanted:
            raise ValueError(f"the state's {name} has the shapes {given}, and this model's {wanted}: it is damaged")
    for layer, (key, value) in (opened.inserted or {}).items():
        if any(t.dim() != 4 or t.shape[2] != carrier.count for t in (key, value)):
            raise ValueError(f"the state has other vectors at layer {layer} than {carrier.count}: it is damaged")
    for count in opened.fill:
        if count > reader.window:
            raise ValueError(f"the state's window holds {count} tokens, and this model's {reader.window}")
    if opened.cache is not None and len(opened.cache) != len(reader.layers):
        raise ValueError(f"the state's cache has {len(opened.cache)} layers, this model {len(reader.layers)}")
    asked = 3 if getattr(carrier, "needs_queries", False) else 2
    if opened.cache is not None and any(len(layer) != asked for layer in opened.cache):
        raise ValueError(f"the state's cache does not hold the {asked} parts of a layer that this model needs")
    for held in (opened.ids, state.prefix):
        if held is not None:
            refuse_ids_outside(held if held.dim() == 2 else held[..., 0], config.vocab_size, "the state")


@torch.no_grad()
def _blank_summary(state: WindowState, reader: Any, width: int) -> tuple[Tensor, ...]:
    """The carrier's summary of one token, for its shapes."""
    if not hasattr(reader.carrier, "summarise"):
        return ()
    token = next(reader.base.parameters()).new_zeros(state.batch_size, 1, width)
    place = torch.zeros(state.batch_size, 1, dtype=torch.long, device=token.device)
    hidden = [token] * (len(reader.layers) + (reader.carrier.space == "layer"))
    return reader.carrier.summarise(hidden, place == 0, place)
