"""Running a backbone over any number of tokens in windows: what all window-recurrent models share.

Rows of a batch may have different lengths and be at different places in their windows. A call is planned first, as a
list of windows for each row; then the backbone runs, on the windows that are open, and on the ones that follow. A
memory of keys and values lets many windows of a row run at once; otherwise they run one after another.

Tokens are ids [B, n], or [B, n, 2] with each token's type behind its id.

Shapes: B rows, N columns of input, C columns of the open window, w columns of a run, R windows of each row in a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache, PreTrainedModel

from ...ops import windows
from ...utils.memory import give_memory_back
from ..checking import checked_mask
from ..fingerprints import Origin
from ..state import where_rows
from .cache import cache_of, held_by
from .carriers import Carrier, Tensors, VectorCarrier
from .seam import backbone_layers, first_position, layer_numbers, takes_positions
from .slot_step import SlotStep
from .slots import Slots, grouped
from .state import Held, OpenWindow, WindowState, check_fits
from .step import Windows, WindowStep
from .turning import Turning
from .vector_step import VectorStep

Output = dict[str, Tensor]
Run = Callable[[dict[str, Any], Windows], Output]


@dataclass(frozen=True)
class Tape:
    """Every row's known tokens, aligned at the right, followed by its new ones, aligned at the left: no gaps."""

    tokens: Tensor  # [B, C + N']
    middle: int  # where the new tokens begin, in every row


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


@dataclass(frozen=True)
class Reader:
    """Runs a backbone over windows, with a carrier between them. Holds no state of its own."""

    base: PreTrainedModel
    carrier: Carrier
    window: int
    overlap: int
    pooled: int  # how many first positions of a window are carried as vectors
    causal: bool
    truncate_after: int | None
    at_once: int  # tokens that may run at once, in windows of a row
    name: str  # of its states
    origin: Origin  # of its states
    turnings: Sequence[Turning]  # by layer
    shapes: Sequence[Sequence[int]]  # by layer: key-value heads, features of a key, of a value

    @cached_property
    def layers(self) -> nn.ModuleList:
        return backbone_layers(self.base)

    @property
    def numbers(self) -> dict[nn.Module, int]:
        return layer_numbers(self.base)

    def fresh(self, ids: Tensor) -> WindowState:
        """The state at the start of a document."""
        batch = ids.shape[0]
        return WindowState(
            model=self.name,
            memory=self.empty(batch),
            has_memory=(False,) * batch,
            open=OpenWindow(ids=ids[:, :0], fill=(0,) * batch, cached=(0,) * batch),
            weights=self.origin,
        )

    def empty(self, rows: int) -> Tensors:
        """The memory before there is one."""
        like = next(self.base.parameters())
        if self.carrier.takes_slots:
            count = self.carrier.count
            shapes = [self.shapes[layer - 1] for layer in self.carrier.layers]
            return tuple(t for heads, key, value in shapes for t in Slots.empty(rows, heads, count, key, value, like))
        return cast(VectorCarrier, self.carrier).empty(rows, like) if self.carrier.takes_vectors else ()

    @torch.compiler.disable  # a loop that depends on the state; a backbone that was compiled itself stays compiled
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
        """Processes `tokens` [B, N], continuing from `state`. `run` calls the backbone on some windows and returns its
        outputs: per token [M, w, ..] (gathered to [B, N, ..]), scalars (summed), or under a name that begins with
        "window" one per window [M, ..] (gathered to [B, windows, ..]).

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
        if not takes_positions(self.base) and any(plan != plans[0] for plan in plans):
            # Rows at different places of a cached window need positions; without them windows are processed again.
            opened, use_cache = state.open, False
            state = replace(state, open=OpenWindow(opened.ids, opened.fill, cached=(0,) * len(plans)))
            plans = [self._plan(state, row, length) for row, length in enumerate(lengths)]

        outputs: list[Output] = []
        runs: list[Windows] = []
        tape = self._tape(state, packed)
        cursor = [tape.middle] * len(lengths)
        number, total = 0, max(map(len, plans), default=0)
        while number < total:
            if self.truncate_after and number and number % self.truncate_after == 0:
                state = state.detach()
            stop = min(total, number + self._rounds_at_once(state, number))
            reads = [[*plan[number:stop], *[windows.IDLE] * (stop - max(number, len(plan)))] for plan in plans]
            stays_open = any(number < len(plan) <= stop and not plan[-1].closes for plan in plans)
            holds = use_cache and (stays_open or any(state.open.cached))
            current = self._windows(state, tape, cursor, reads)
            output, state = self._run(state, current, run, holds=holds, checkpointing=checkpointing)
            cursor = [c + sum(read.new for read in row) for c, row in zip(cursor, reads, strict=True)]
            outputs.append(output)
            runs.append(current)
            number = stop
        return self._assemble(outputs, runs, tape, tokens.shape[1], columns, revise), state

    def _rounds_at_once(self, state: WindowState, number: int) -> int:
        """How many windows of each row may run at once: one that is open runs by itself."""
        if self.carrier.takes_vectors or any(state.open.cached):
            return 1
        most = max(1, self.at_once // (self.window * state.batch_size))
        if self.carrier.takes_slots and (free := self._free_slots(state)):
            # Until all slots are used, attention needs a mask, and is slower: these windows run by themselves.
            most = min(most, -(-free // (self.window - self.overlap)))
        return most if not self.truncate_after else min(most, self.truncate_after - number % self.truncate_after)

    def _free_slots(self, state: WindowState) -> int:
        """In the row that has most of them."""
        if not all(state.has_memory):
            return self.carrier.count
        first = grouped(state.memory)[0].used
        return self.carrier.count - int(first.sum(1).min())

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

    def prefix_of(self, state: WindowState, row: int) -> int:
        return state.prefix_fill[row] if state.prefix_fill else 0

    def _plan(self, state: WindowState, row: int, length: int) -> list[windows.Read]:
        return windows.plan(
            length,
            self.window,
            self.overlap,
            opened=state.open.fill[row],
            cached=state.open.cached[row],
            prefix=self.prefix_of(state, row),
            leave_open=self.causal,
        )

    def _tape(self, state: WindowState, packed: Tensor) -> Tape:
        middle = state.open.ids.shape[1]
        return Tape(torch.cat([state.open.ids, packed], dim=1) if middle else packed, middle)

    def _windows(self, state: WindowState, tape: Tape, cursor: list[int], reads: list[list[windows.Read]]) -> Windows:
        device, rows, rounds = tape.tokens.device, len(reads), len(reads[0])
        lengths = [[read.width for read in row] for row in reads]
        width = max(map(max, lengths))
        alike = all(row == reads[0] for row in reads) and len(set(cursor)) == 1 and not any(state.prefix_fill)
        if alike and all(length == width for length in lengths[0]):
            starts, at = [], cursor[0]
            for read in reads[0]:
                starts.append(at - read.again)
                at += read.new
            tokens = torch.stack([tape.tokens[:, start : start + width] for start in starts], 1).flatten(0, 1)
        else:
            tokens = self._gather(state, tape, cursor, reads, width)
        ragged = any(length != width for row in lengths for length in row) or not alike
        cached = torch.tensor([row[0].cached for row in reads], device=device)
        index = torch.arange(width, device=device)[None]
        keep = torch.ones(rows * rounds, width, dtype=torch.bool, device=device)
        if ragged:
            # Only a run of one window of each row has cached tokens; padding must stay within the backbone's positions.
            index = (index + cached.repeat_interleave(rounds)[:, None]).clamp(max=self.window - 1)
            keep = torch.arange(width, device=device) < torch.tensor(lengths, device=device).flatten()[:, None]
        elif reads[0][0].cached:
            index = index + reads[0][0].cached
        return Windows(reads, tokens, index, keep, [at - tape.middle for at in cursor], ragged)

    def _gather(
        self, state: WindowState, tape: Tape, cursor: list[int], reads: list[list[windows.Read]], width: int
    ) -> Tensor:
        """The tokens of each window: its row's prefix if it begins here, then a stretch of the row's tape. [M, w]"""
        tokens = tape.tokens if state.prefix is None else torch.cat([state.prefix, tape.tokens], dim=1)
        shift = tokens.shape[1] - tape.tokens.shape[1]
        index = []
        for row, (at, row_reads) in enumerate(zip(cursor, reads, strict=True)):
            places: list[int] = []
            for read in row_reads:
                # In the first window the known tokens, including a prefix, are on the tape already.
                lead = 0 if at == tape.middle else min(self.prefix_of(state, row), read.again)
                stretch = range(shift + at - (read.again - lead), shift + at + read.new)
                window = [*range(shift - lead, shift), *stretch] if read.width else []
                places += window + [0] * (width - len(window))
                at += read.new
            index.append(places)
        return taken(tokens, index).unflatten(1, (-1, width)).flatten(0, 1)

    # -- one run of the backbone

    def step(
        self, state: WindowState, current: Windows, memory: Tensors | None = None, holds: bool = False
    ) -> WindowStep:
        kind: type[WindowStep] = SlotStep if self.carrier.takes_slots else WindowStep
        if self.carrier.takes_vectors:
            kind = VectorStep
        return kind(self, self.carrier, state, current, state.memory if memory is None else memory, holds)

    def _run(
        self, state: WindowState, current: Windows, run: Run, *, holds: bool, checkpointing: bool
    ) -> tuple[Output, WindowState]:
        opened = state.open
        options: dict[str, Any] = {"use_cache": False}
        cache = None
        if holds or opened.cache is not None:
            cache = cache_of(opened.cache, current)
            options = {"use_cache": True, "past_key_values": cache}
        if current.ragged:
            options |= self._mask_and_positions(opened, current)

        def through(memory: Tensors) -> tuple[Output, WindowStep]:
            if checkpointing:
                give_memory_back(self.base.device)  # of the windows before, in both directions
            step = self.step(state, current, memory, holds)
            with step.taken():
                output = run(options, current)
            step.finish()
            return output, step

        def recomputed(memory: Tensors) -> tuple[Output, Tensors]:
            output, step = through(memory)
            return output, step.memory()

        if checkpointing and torch.is_grad_enabled() and not holds:  # a cache would be extended again
            output, memory = checkpoint(recomputed, state.memory, use_reentrant=False)
            return output, self._advance(state, current, memory)
        output, step = through(state.memory)
        left_open = (cache, step) if holds and cache is not None else None
        return output, self._advance(state, current, step.memory(), left_open)

    def _mask_and_positions(self, opened: OpenWindow, current: Windows) -> dict[str, Tensor]:
        keep = current.keep
        if opened.cache is not None:
            slots = opened.cache[0][0].shape[2]
            held = torch.tensor(opened.cached, device=keep.device)[:, None]
            keep = torch.cat([torch.arange(slots, device=keep.device)[None] >= slots - held, keep], dim=1)
        elif self.causal:
            return {}  # padding is at the right, where no token sees it
        told = {"attention_mask": keep.long()}
        # Without a cache every row begins at the left, and the backbone's own positions are right.
        if opened.cache is not None and takes_positions(self.base):
            told["position_ids"] = current.index + first_position(self.base)
        return told

    def _advance(
        self,
        state: WindowState,
        current: Windows,
        memory: Tensors,
        left_open: tuple[DynamicCache, WindowStep] | None = None,
    ) -> WindowState:
        """The state after a run; `left_open` says what windows that stay open need."""
        ids, fill = self._open_tokens(state, current)
        closed = [any(read.closes for read in row) for row in current.reads]
        has_memory = tuple(a or b for a, b in zip(state.has_memory, closed, strict=True))
        state, before = replace(state, memory=memory, has_memory=has_memory), state
        last = [row[number] for row, number in zip(current.reads, current.last, strict=True)]
        if left_open is None or all(read.closes for read in last):
            return replace(state, open=OpenWindow(ids=ids, fill=fill, cached=(0,) * len(fill)))
        # A row without new tokens keeps what it had: its open tokens may not be in the cache.
        cached = tuple(
            0 if read.closes else n if read.width else had
            for read, n, had in zip(last, fill, before.open.cached, strict=True)
        )
        cache, step = left_open
        held = held_by(cache, step.queries)
        moved = current.ragged or current.rounds > 1 or any(read.closes for read in last)
        opened = OpenWindow(
            ids=ids,
            fill=fill,
            cached=cached,
            cache=self._align_cache(held, before.open, last, current.tokens.shape[1], cached) if moved else held,
            summary=step.summary(),
            inserted=step.inserted or None,
        )
        return replace(state, open=opened)

    def _open_tokens(self, state: WindowState, current: Windows) -> tuple[Tensor, tuple[int, ...]]:
        """The tokens that stay: all of an open window, prefix and overlap of a closed one."""
        # The window holds the cached tokens, at the right of the open ids, and those of the run.
        opened, width = state.open, current.tokens.shape[1]
        before, new = opened.ids.shape[1], current.of_last(current.tokens)
        known = torch.cat([opened.ids, new], dim=1) if before else new
        plan = []
        for row, number in enumerate(current.last):
            read = current.reads[row][number]
            if read.width:
                places = [*range(before - read.cached, before), *range(before, before + read.width)]
            else:
                places = list(range(before - opened.fill[row], before))
            if read.closes:
                lead = self.prefix_of(state, row)
                places = places[:lead] + places[lead:][max(0, len(places) - lead - self.overlap) :]
            plan.append(places)
        fill = tuple(map(len, plan))
        longest = max(fill)
        if len(set(map(tuple, plan))) == 1 and plan[0] == list(range(before + width - longest, before + width)):
            return known[:, before + width - longest :], fill
        return taken(known, [[0] * (longest - len(p)) + p for p in plan]), fill

    def _align_cache(
        self, held: Held, opened: OpenWindow, last: list[windows.Read], width: int, cached: tuple[int, ...]
    ) -> Held | None:
        """The cache with each row's slots moved to the right end and the rest dropped."""
        longest = max(cached)
        if longest == 0:
            return None
        before = held[0][0].shape[2] - width
        index = []
        for row, (read, count) in enumerate(zip(last, cached, strict=True)):
            old = read.cached if read.width else opened.cached[row]
            slots = [*range(before - old, before), *range(before, before + read.width)][-count:] if count else []
            index.append([0] * (longest - len(slots)) + slots)
        slots_at = torch.tensor(index, device=held[0][0].device)

        def aligned(x: Tensor) -> Tensor:
            return taken(x.transpose(1, 2), slots_at).transpose(1, 2)

        return tuple(tuple(map(aligned, tensors)) for tensors in held)

    # -- outputs

    def _assemble(
        self,
        outputs: list[Output],
        runs: list[Windows],
        tape: Tape,
        columns_given: int,
        columns: list[list[int]] | None,
        revise: int,
    ) -> Output:
        """Outputs of all runs at the places of the input's tokens; padding gets zeros."""
        if not outputs:
            return {}
        result, per_token, rows = {}, [], len(tape.tokens)

        def by_row(run: Windows, x: Tensor) -> Tensor:  # [M, ..] -> [B, R, ..]
            return x.unflatten(0, (rows, run.rounds))

        for name, value in outputs[0].items():
            if value.dim() == 0:
                result[name] = torch.stack([o[name] for o in outputs]).sum(0)
            elif name.startswith("window"):
                result[name] = torch.cat([by_row(r, o[name]) for o, r in zip(outputs, runs, strict=True)], dim=1)
            else:
                per_token.append(name)
        if not per_token:
            return result
        simple = columns is None and not revise and not any(current.ragged for current in runs)
        if simple and all(len({read.again for read in current.reads[0]}) == 1 for current in runs):
            for name in per_token:
                parts = [
                    by_row(c, o[name][:, c.reads[0][0].again :]).flatten(1, 2)
                    for o, c in zip(outputs, runs, strict=True)
                ]
                result[name] = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
            return result
        index = [[-1] * columns_given for _ in range(rows)]
        base = 0
        for current in runs:
            width = current.tokens.shape[1]
            for row, row_reads in enumerate(current.reads):
                where = columns[row] if columns is not None else range(columns_given)
                at = current.first[row]
                for number, read in enumerate(row_reads):
                    start = base + number * width + read.again
                    for back in range(-min(revise, at, read.again), read.new):
                        index[row][where[at + back]] = start + back
                    at += read.new
            base += current.rounds * width
        at_columns = torch.tensor(index, device=tape.tokens.device)
        for name in per_token:
            parts = [by_row(c, o[name]).flatten(1, 2) for o, c in zip(outputs, runs, strict=True)]
            picked = taken(torch.cat(parts, dim=1), at_columns.clamp(min=0))
            unread = (at_columns < 0).view(*at_columns.shape, *[1] * (picked.dim() - 2))
            result[name] = picked.masked_fill(unread, 0)
        return result
