"""Running a backbone over any number of tokens in windows: the loop that all window-recurrent models share.

Rows of a batch may have different lengths and be at different places in their windows. In each round every row
advances to the end of its window; the rows that have filled it carry their memory on. From the second round on all
rows are at the start of a window.

Tokens are ids [B, n], or [B, n, 2] with each token's type behind its id.

Shapes: B rows, N columns of input, C columns of the open window, w columns of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from ...ops import windows
from ...utils.memory import give_memory_back
from ..checking import checked_mask
from ..fingerprints import Origin
from ..state import where_rows
from .carriers import Carrier, Tensors
from .insertion import Insertion, first_position, inserting
from .state import OpenWindow, WindowState, check_fits


@dataclass(frozen=True)
class Tape:
    """Every row's known tokens, aligned at the right, followed by its new ones, aligned at the left: no gaps."""

    tokens: Tensor  # [B, C + N']
    middle: int  # where the new tokens begin, in every row


@dataclass(frozen=True)
class Round:
    """One run of the backbone for all rows."""

    reads: list[windows.Read]
    tokens: Tensor  # [B, w]
    lengths: list[int]  # tokens of each row in this round
    first: list[int]  # per row: which of its new tokens the round's first new one is, from 0
    index: Tensor  # [B or 1, w]: place in the window
    keep: Tensor  # [B, w]: real tokens
    ragged: bool  # rows differ, so that the backbone needs a mask and positions

    @property
    def ids(self) -> Tensor:
        """[B, w]"""
        return self.tokens if self.tokens.dim() == 2 else self.tokens[..., 0]

    @property
    def types(self) -> Tensor:
        """[B, w], of tokens that have types."""
        return self.tokens[..., 1]

    def of_new_tokens(self, values: Tensor, fill: int) -> Tensor:
        """Values of the packed new tokens [B, N'] at the places of these tokens in the round [B, w], else `fill`."""
        result = values.new_full(self.ids.shape, fill)
        for row, (read, first) in enumerate(zip(self.reads, self.first, strict=True)):
            result[row, read.again : read.width] = values[row, first : first + read.new]
        return result


Output = dict[str, Tensor]
Held = tuple[tuple[Tensor, Tensor], ...]  # per layer: keys and values [B, H, C, D]
Run = Callable[[dict[str, Any], Round], Output]


def real_columns(attention_mask: Tensor | None, shape: torch.Size) -> list[list[int]] | None:
    """Per row the columns that hold tokens; None when all do."""
    if attention_mask is None:
        return None
    marks = checked_mask(attention_mask, shape).tolist()
    if all(all(row) for row in marks):
        return None
    return [[column for column, mark in enumerate(row) if mark] for row in marks]


def pack(ids: Tensor, columns: list[list[int]] | None) -> tuple[Tensor, list[int]]:
    """Every row's tokens moved to the left, and how many there are."""
    if columns is None:
        return ids, [ids.shape[1]] * ids.shape[0]
    lengths = [len(row) for row in columns]
    width = max(lengths)
    return taken(ids, [row + [0] * (width - len(row)) for row in columns]), lengths


def taken(x: Tensor, columns: list[list[int]] | Tensor) -> Tensor:
    """Row by row the given columns, as many in each row. x: [B, n, ..] -> [B, m, ..]"""
    index = torch.as_tensor(columns, dtype=torch.long, device=x.device)
    return x[torch.arange(len(x), device=x.device)[:, None], index]


def with_types(tokens: Tensor) -> Tensor:
    """The type 0 behind the ids of tokens without types."""
    return tokens if tokens.dim() == 3 else torch.stack([tokens, torch.zeros_like(tokens)], -1)


def align_right(ids: Tensor, fill: Sequence[int]) -> Tensor:
    """Rows of tokens aligned at the left, moved to the right and cut to the longest."""
    width = max(fill, default=0)
    if all(n == width for n in fill):
        return ids[:, :width]
    place = torch.arange(width, device=ids.device)[None] - (width - torch.tensor(fill, device=ids.device))[:, None]
    return taken(ids, place.clamp(min=0))


def _cache(held: Held | None) -> DynamicCache:
    """A cache of transformers that starts from these keys and values; it replaces them and never changes them.

    Without a configuration it keeps sliding-window layers whole, which is right within a window.
    """
    cache = DynamicCache()
    for key, value in held or ():
        layer = DynamicLayer()
        layer.lazy_initialization(key, value)
        layer.keys, layer.values = key, value
        cache.layers.append(layer)
    return cache


@dataclass(frozen=True)
class Reader:
    """Runs a backbone over windows, with a carrier between them. Holds no state of its own."""

    base: PreTrainedModel
    layers: nn.ModuleList
    carrier: Carrier
    window: int
    overlap: int
    pooled: int  # how many first positions of a window are carried
    causal: bool
    truncate_after: int | None
    takes_positions: bool  # whether the backbone accepts position_ids
    name: str  # of its states
    origin: Origin  # of its states

    def fresh(self, ids: Tensor) -> WindowState:
        """The state at the start of a document."""
        batch = ids.shape[0]
        like = next(self.base.parameters())
        return WindowState(
            model=self.name,
            memory=self.carrier.empty(batch, like),
            has_memory=(False,) * batch,
            open=OpenWindow(ids=ids[:, :0], fill=(0,) * batch, cached=(0,) * batch),
            weights=self.origin,
        )

    def read(
        self,
        tokens: Tensor,
        run: Run,
        *,
        attention_mask: Tensor | None = None,
        state: WindowState | None = None,
        starts_document: Tensor | Sequence[bool] | None = None,
        prefix: Sequence[int] | None = None,
        use_cache: bool = False,
        checkpointing: bool = False,
        revise: int = 0,
    ) -> tuple[Output, WindowState]:
        """Processes `tokens` [B, N], continuing from `state`. `run` calls the backbone on one round and returns its
        outputs: per token [B, w, ..] (gathered to [B, N, ..]), scalars (summed), or under a name that begins with
        "window" one per row [B, ..] (stacked to [B, rounds, ..]).

        `prefix`: how many first tokens of each row's document begin each of its windows. `revise`: outputs of this
        many tokens are replaced by those of the next window, which sees what follows them.
        """
        if state is None:
            state = self.fresh(tokens)
        else:
            check_fits(state, tokens, self)
            state = replace(state, weights=self.origin)
        if any(x is not None and x.dim() == 3 for x in (tokens, state.open.ids, state.prefix)):
            opened = replace(state.open, ids=with_types(state.open.ids))
            prefix_tokens = None if state.prefix is None else with_types(state.prefix)
            state, tokens = replace(state, open=opened, prefix=prefix_tokens), with_types(tokens)
        columns = real_columns(attention_mask, tokens.shape[:2])
        packed, lengths = pack(tokens, columns)
        if not any(lengths):
            raise ValueError("there are no tokens: attention_mask is 0 everywhere")
        if starts_document is not None:
            state = state.reset(starts_document)
        state = self._with_prefix(state, packed, lengths, prefix)
        plans = [self._plan(state, row, length) for row, length in enumerate(lengths)]
        if not self.takes_positions and any(plan != plans[0] for plan in plans):
            # Rows at different places of a cached window need positions; without them windows are processed again.
            opened, use_cache = state.open, False
            state = replace(state, open=OpenWindow(opened.ids, opened.fill, cached=(0,) * len(plans)))
            plans = [self._plan(state, row, length) for row, length in enumerate(lengths)]

        collected: list[Output] = []
        places: list[Round] = []
        tape = self._tape(state, packed)
        cursor = [tape.middle] * len(lengths)
        rounds = max(map(len, plans), default=0)
        for number in range(rounds):
            if self.truncate_after and number and number % self.truncate_after == 0:
                state = state.detach()
            reads = [plan[number] if number < len(plan) else windows.IDLE for plan in plans]
            stays_open = any(len(plan) == number + 1 and not plan[number].closes for plan in plans)
            cached = any(state.open.cached)
            current = self._round(state, tape, cursor, reads)
            output, state = self._step(
                state, current, run, keep_cache=use_cache and (stays_open or cached), checkpointing=checkpointing
            )
            cursor = [c + read.new for c, read in zip(cursor, reads, strict=True)]
            collected.append(output)
            places.append(current)
        return self._assemble(collected, places, tape, tokens.shape[1], columns, revise), state

    # -- planning

    def _with_prefix(
        self, state: WindowState, packed: Tensor, lengths: list[int], prefix: Sequence[int] | None
    ) -> WindowState:
        """Stores the prefix of the rows that start a document."""
        if prefix is None:
            return state
        starting = [
            bool(n) and not (m or f) for n, m, f in zip(lengths, state.has_memory, state.open.fill, strict=True)
        ]
        for row, (p, n, new) in enumerate(zip(prefix, lengths, starting, strict=True)):
            if new and p > n:
                raise ValueError(
                    f"row {row} has a prefix of {p} tokens and only {n} tokens: the call that starts a document must "
                    "hold the whole prefix"
                )
        fill = tuple(
            p if new else old
            for p, new, old in zip(prefix, starting, state.prefix_fill or (0,) * len(starting), strict=True)
        )
        for count in fill:
            windows.check(self.window, self.overlap, count)
        ids = align_right(packed, [p if new else 0 for p, new in zip(fill, starting, strict=True)])
        if state.prefix is not None and not all(starting):
            # Both as wide as the longest prefix; a negative number cuts columns off.
            start, old = (
                nn.functional.pad(x, (*[0, 0] * (x.dim() - 2), max(fill) - x.shape[1], 0)) for x in (ids, state.prefix)
            )
            ids = where_rows(torch.tensor(starting, device=ids.device), start, old)
        return replace(state, prefix=ids, prefix_fill=fill)

    def _prefix(self, state: WindowState, row: int) -> int:
        return state.prefix_fill[row] if state.prefix_fill else 0

    def _plan(self, state: WindowState, row: int, length: int) -> list[windows.Read]:
        return windows.plan(
            length,
            self.window,
            self.overlap,
            opened=state.open.fill[row],
            cached=state.open.cached[row],
            prefix=self._prefix(state, row),
            leave_open=self.causal,
        )

    def _tape(self, state: WindowState, packed: Tensor) -> Tape:
        middle = state.open.ids.shape[1]
        return Tape(torch.cat([state.open.ids, packed], dim=1) if middle else packed, middle)

    def _round(self, state: WindowState, tape: Tape, cursor: list[int], reads: list[windows.Read]) -> Round:
        device = tape.tokens.device
        lengths = [read.width for read in reads]
        width = max(lengths)
        uniform = len(set(reads)) == 1 and len(set(cursor)) == 1
        if uniform and not any(state.prefix_fill):
            start = cursor[0] - reads[0].again
            tokens = tape.tokens[:, start : start + width]
        else:
            tokens = self._gather(state, tape, cursor, reads, width)
        offsets = torch.arange(width, device=device)[None]
        if uniform:
            index = offsets + reads[0].cached
            keep = torch.ones(len(reads), width, dtype=torch.bool, device=device)
        else:
            index = offsets + torch.tensor([read.cached for read in reads], device=device)[:, None]
            index = index.clamp(max=self.window - 1)  # padding must stay within the backbone's positions
            keep = offsets < torch.tensor(lengths, device=device)[:, None]
        first = [at - tape.middle for at in cursor]
        return Round(reads, tokens, lengths, first, index, keep, ragged=not uniform)

    def _gather(
        self, state: WindowState, tape: Tape, cursor: list[int], reads: list[windows.Read], width: int
    ) -> Tensor:
        """Each row's tokens of a round: its prefix if a window begins, then a stretch of its tape."""
        tokens = tape.tokens if state.prefix is None else torch.cat([state.prefix, tape.tokens], dim=1)
        shift = tokens.shape[1] - tape.tokens.shape[1]
        index = []
        for row, (at, read) in enumerate(zip(cursor, reads, strict=True)):
            # In the first round the known tokens, including a prefix, are on the tape already.
            first = at == tape.middle
            lead = 0 if first else min(self._prefix(state, row), read.again)
            stretch = range(shift + at - (read.again - lead), shift + at + read.new)
            places = [*range(shift - lead, shift), *stretch] if read.width else []
            index.append(places + [0] * (width - len(places)))
        return taken(tokens, index)

    # -- one round

    def _step(
        self, state: WindowState, current: Round, run: Run, *, keep_cache: bool, checkpointing: bool
    ) -> tuple[Output, WindowState]:
        opened = state.open
        kwargs: dict[str, Any] = {"use_cache": False}
        cache = None
        if keep_cache or opened.cache is not None:
            cache = _cache(opened.cache)
            checkpointing = False  # running the window again would extend its cache again
            kwargs = {"use_cache": True, "past_key_values": cache}
        if current.ragged:
            kwargs |= self._mask_and_positions(opened, current)

        def window(memory: Tensors) -> tuple[Output, Tensors, Tensors, dict[int, tuple[Tensor, Tensor]]]:
            if checkpointing:
                give_memory_back(self.base.device)  # of the window before, in both directions
            insertion = self._insertion(memory, state.has_memory, opened)
            with inserting(self.base, self.layers, insertion):
                output = run(kwargs, current)
            keep = current.keep & (current.index < self.pooled)
            summary = self.carrier.summarise(insertion.hidden, keep, current.index.expand_as(keep))
            if opened.summary is not None:
                merged = self.carrier.merge(opened.summary, summary)
                goes_on = [c > 0 for c in opened.cached]
                summary = merged if all(goes_on) else where_rows(self._rows(goes_on), merged, summary)
            carried = memory
            if any(read.closes for read in current.reads):
                carried = self.carrier.carry(summary, memory, self._rows(state.has_memory))
                # Autocast may have lowered it; a state keeps the model's precision.
                carried = tuple(new.to(old.dtype) for new, old in zip(carried, memory, strict=True))
            return output, summary, carried, insertion.inserted

        if checkpointing and torch.is_grad_enabled():
            output, summary, memory, inserted = checkpoint(window, state.memory, use_reentrant=False)
        else:
            output, summary, memory, inserted = window(state.memory)
        return output, self._advance(state, current, memory, cache, summary, inserted)

    def _insertion(self, memory: Tensors, has_memory: tuple[bool, ...], opened: OpenWindow) -> Insertion:
        space = self.carrier.space
        if not any(has_memory):
            return Insertion(space=space)
        # Inside a window the memory's keys and values are known, unless a row has just begun another window.
        inserted = dict(opened.inserted) if opened.inserted and all(opened.cached) else {}
        vectors = {} if inserted else self.carrier.vectors(memory)
        if not vectors and not inserted:
            return Insertion(space=space)
        vectors = {layer: v.expand(len(has_memory), -1, -1) for layer, v in vectors.items()}
        visible = self.carrier.visible(memory)
        if not all(has_memory):
            rows = self._rows(has_memory)[:, None].expand(-1, self.carrier.count)
            visible = rows if visible is None else visible & rows
        elif visible is not None and bool(visible.all()):
            visible = None
        return Insertion(vectors, self.carrier.positions(), visible, space, inserted)

    def _rows(self, marks: Sequence[bool]) -> Tensor:
        return torch.tensor(list(marks), device=self.base.device)

    def _mask_and_positions(self, opened: OpenWindow, current: Round) -> dict[str, Tensor]:
        keep = current.keep
        if opened.cache is not None:
            slots = opened.cache[0][0].shape[2]
            held = torch.tensor(opened.cached, device=keep.device)[:, None]
            keep = torch.cat([torch.arange(slots, device=keep.device)[None] >= slots - held, keep], dim=1)
        told = {"attention_mask": keep.long()}
        # Without a cache every row begins at the left, and the backbone's own positions are right.
        if opened.cache is not None and self.takes_positions:
            told["position_ids"] = current.index + first_position(self.base)
        return told

    def _advance(
        self,
        state: WindowState,
        current: Round,
        memory: Tensors,
        cache: DynamicCache | None,
        summary: Tensors,
        inserted: dict[int, tuple[Tensor, Tensor]],
    ) -> WindowState:
        closes = [read.closes for read in current.reads]
        if all(closes):
            carried = memory
        elif not any(closes):
            carried = state.memory
        else:
            carried = where_rows(self._rows(closes), memory, state.memory)
        ids, fill = self._open_tokens(state, current)
        has_memory = tuple(a or b for a, b in zip(state.has_memory, closes, strict=True))
        state = replace(state, memory=carried, has_memory=has_memory)
        if cache is None or all(closes):
            return replace(state, open=OpenWindow(ids=ids, fill=fill, cached=(0,) * len(fill)))
        # A row without new tokens keeps what it had: its open tokens may not be in the cache.
        cached = tuple(
            0 if read.closes else n if read.width else before
            for read, n, before in zip(current.reads, fill, state.open.cached, strict=True)
        )
        whole: Held = tuple((layer.keys, layer.values) for layer in cast(Any, cache.layers))
        moved = current.ragged or any(closes)
        held = self._align_cache(whole, state.open, current, cached) if moved else whole
        return replace(
            state,
            open=OpenWindow(ids=ids, fill=fill, cached=cached, cache=held, summary=summary, inserted=inserted or None),
        )

    def _open_tokens(self, state: WindowState, current: Round) -> tuple[Tensor, tuple[int, ...]]:
        """The tokens that stay: all of an open window, prefix and overlap of a closed one."""
        # The window holds the cached tokens, at the right of the open ids, and those of the round.
        opened, width = state.open, current.tokens.shape[1]
        before = opened.ids.shape[1]
        known = torch.cat([opened.ids, current.tokens], dim=1) if before else current.tokens
        plan = []
        for row, read in enumerate(current.reads):
            if read.width:
                places = [*range(before - read.cached, before), *range(before, before + read.width)]
            else:
                places = list(range(before - opened.fill[row], before))
            if read.closes:
                lead = self._prefix(state, row)
                places = places[:lead] + places[lead:][max(0, len(places) - lead - self.overlap) :]
            plan.append(places)
        fill = tuple(map(len, plan))
        longest = max(fill)
        if len(set(map(tuple, plan))) == 1 and plan[0] == list(range(before + width - longest, before + width)):
            return known[:, before + width - longest :], fill
        return taken(known, [[0] * (longest - len(p)) + p for p in plan]), fill

    def _align_cache(
        self,
        held: Held,
        opened: OpenWindow,
        current: Round,
        cached: tuple[int, ...],
    ) -> Held | None:
        """The cache with each row's slots moved to the right end and the rest dropped."""
        longest = max(cached)
        if longest == 0:
            return None
        before = held[0][0].shape[2] - current.tokens.shape[1]
        index = []
        for row, (read, count) in enumerate(zip(current.reads, cached, strict=True)):
            old = read.cached if read.width else opened.cached[row]
            slots = [*range(before - old, before), *range(before, before + read.width)][-count:] if count else []
            index.append([0] * (longest - len(slots)) + slots)
        slots_at = torch.tensor(index, device=current.tokens.device)

        def aligned(x: Tensor) -> Tensor:
            return taken(x.transpose(1, 2), slots_at).transpose(1, 2)

        return tuple((aligned(key), aligned(value)) for key, value in held)

    # -- outputs

    def _assemble(
        self,
        collected: list[Output],
        rounds: list[Round],
        tape: Tape,
        columns_given: int,
        columns: list[list[int]] | None,
        revise: int,
    ) -> Output:
        """Outputs of all rounds at the places of the input's tokens; padding gets zeros."""
        if not collected:
            return {}
        result, per_token = {}, []
        for name, value in collected[0].items():
            if value.dim() == 0:
                result[name] = torch.stack([o[name] for o in collected]).sum(0)
            elif name.startswith("window"):
                result[name] = torch.stack([o[name] for o in collected], dim=1)
            else:
                per_token.append(name)
        if not per_token:
            return result
        simple = columns is None and not revise and not any(current.ragged for current in rounds)
        if simple:
            for name in per_token:
                parts = [o[name][:, c.reads[0].again :] for o, c in zip(collected, rounds, strict=True)]
                result[name] = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
            return result
        index = [[-1] * columns_given for _ in tape.tokens]
        base = 0
        for current in rounds:
            for row, read in enumerate(current.reads):
                where = columns[row] if columns is not None else range(columns_given)
                number = current.first[row]
                for back in range(-min(revise, number, read.again), read.new):
                    index[row][where[number + back]] = base + read.again + back
            base += current.tokens.shape[1]
        at = torch.tensor(index, device=tape.tokens.device)
        for name in per_token:
            picked = taken(torch.cat([o[name] for o in collected], dim=1), at.clamp(min=0))
            result[name] = picked.masked_fill((at < 0).view(*at.shape, *[1] * (picked.dim() - 2)), 0)
        return result
