"""A run of windows whose memory is made of each layer's own keys and values.

All windows of a run pass a layer together. Only the memory is made window after window, from the keys, values and
queries that the layer has computed for all of them.

Shapes: B rows, R windows of each, M = B R, n columns of a window (cached ones first), S slots, D features of a key.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..state import where_rows
from .carriers import SlotCarrier, Tensors
from .outlook import NEVER, Asked, Facts, Outlook
from .seam import Call
from .slots import ReadWindow, Slots, grouped
from .step import Front, WindowStep
from .turning import Turning


class SlotStep(WindowStep):
    carrier: SlotCarrier

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.needs_queries = self.carrier.needs_queries
        self.adapts = self.carrier.adapts
        new = torch.tensor([not had for had in self.state.has_memory], device=self.base.device)
        self.slots = dict(
            zip(self.carrier.layers, (slots.forgotten(new) for slots in grouped(self.before)), strict=True)
        )
        self._known: dict[Any, Any] = {}
        opened = self.state.open
        self.columns = max(opened.cached, default=0)  # of the cache
        # Inside a window the memory's turned keys are known, unless a row has just begun another window.
        self.inserted = dict(opened.inserted) if opened.inserted and all(opened.cached) else {}

    def front(self, call: Call) -> Front | None:
        if call.layer not in self.slots:
            return None
        run, layer = self.run, call.layer
        turning = self.reader.turnings[layer - 1]
        slots, fronts, read = self.slots[layer], [], None
        for number in range(run.rounds):
            seen = self.carrier.inserted(slots, layer) if self.adapts else slots
            known = self.inserted.get(layer) if number == 0 else None
            turned = turning.turn(seen.keys, self._table(turning, seen.keys)) if known is None else known[0]
            fronts.append((turned, seen.values, seen.weights, slots.used))
            if any(run.closes[number]):
                read = read or _Read(self, call, turning)
                with torch.autocast(call.key.device.type, enabled=False):  # means over many need all digits
                    after = self.carrier.next(read.window(number, slots, turned, seen.weights), layer)
                whole = all(run.closes[number])
                slots = after if whole else Slots(*where_rows(self.closing(number), after, slots))
        self.slots[layer] = slots
        keys, values, weights, used = (torch.stack(parts, 1).flatten(0, 1) for parts in zip(*fronts, strict=True))
        if self.holds:
            self.inserted[layer] = (run.of_last(keys), run.of_last(values))
        if not used.any():
            return None  # the first windows of documents run unmodified
        weighted = self.carrier.weighs or self.adapts
        return Front(keys, values, self._visible(used), weights if weighted else None, as_tokens=True)

    def _visible(self, used: Tensor) -> Tensor | None:
        """One tensor for all layers, so that they share their masks; None if all slots are used."""
        return self._once("visible", lambda: None if bool(used.all()) else used)

    def _table(self, turning: Turning, like: Tensor) -> Any:
        """What turns keys to the slots' places before the window."""
        return self._once(
            ("slots", id(turning), like.dtype),
            lambda: turning.table(torch.arange(-self.carrier.count, 0, device=like.device), like),
        )

    def _once(self, name: Any, made: Callable[[], Any]) -> Any:
        """What all layers of a kind share."""
        if name not in self._known:
            self._known[name] = made()
        return self._known[name]

    # -- windows that were read, as all layers have them

    @cached_property
    def _layout(self) -> tuple[Tensor, Tensor]:
        """The place in its window of each column, and which columns are real, [B, R, n]; cached columns are aligned at
        the right."""
        run, device = self.run, self.base.device
        index, keep = run.by_row(run.index.expand(run.tokens.shape[0], -1)), run.by_row(run.keep)
        if self.columns:
            held = torch.tensor(self.state.open.cached, device=device)[:, None] - self.columns
            before = (torch.arange(self.columns, device=device) + held)[:, None]
            index, keep = torch.cat([before.clamp(min=0), index], 2), torch.cat([before >= 0, keep], 2)
        return index, keep

    @cached_property
    def _ends(self) -> Tensor:
        """[B, R]: where in each window the next one begins."""
        places, real = self._layout
        return (places + 1).masked_fill(~real, 0).amax(2) - self.reader.overlap

    @cached_property
    def _columns(self) -> tuple[Tensor, Tensor, Tensor]:
        """Which columns the next memory may hold [B, R, n], their ages [B, R, n], and by how many tokens older slots
        grow older [B, R]."""
        places, real = self._layout
        end = self._ends[:, :, None]
        prefix = torch.tensor([self.state.prefix_of(row) for row in range(self.run.rows)], device=places.device)
        prefix = prefix[:, None, None]
        kept = real & (places >= prefix) & (places < end)
        # Every window repeats the prefix, but only in the first one has its first token nothing before it.
        new = torch.tensor(self._first_windows, device=places.device)[..., None]
        kept |= real & (places < prefix.clamp(max=self.carrier.sinks)) & new
        return kept, (end - places).clamp(min=1).int(), (end - prefix).clamp(min=0)[..., 0].int()

    @property
    def _first_windows(self) -> list[list[bool]]:
        """By row and number: whether this is the first window of its document."""
        closes = self.run.closes
        return [
            [not had and not any(c[row] for c in closes[:number]) for number in range(self.run.rounds)]
            for row, had in enumerate(self.state.has_memory)
        ]

    def _facts(self, local: int | None) -> Facts:
        places, real = self._layout
        apart = places[..., None] - places[:, :, None]  # of those that ask from those that are asked
        visible = real[:, :, None] & (apart >= 0) if self.reader.causal else real[:, :, None].expand_as(apart)
        later, near = self._columns[0][:, :, None].expand_as(apart), None
        if local is not None:
            end = self._ends[:, :, None, None]
            before = torch.arange(-self.carrier.count, 0, device=places.device)
            visible, later = visible & (apart.abs() < local), later & (apart + end < local)
            near = places[..., None] + end - before < local
        return Facts(real, bool(real.all()), visible, None if bool(later.all()) else later, near)

    # -- what is left

    def memory(self) -> Tensors:
        return tuple(part for layer in self.carrier.layers for part in self.slots[layer])


class _Read:
    """The windows of a run, as one layer has read them."""

    def __init__(self, step: SlotStep, call: Call, turning: Turning):
        self.step, self.call, self.turning = step, call, turning
        places = step._layout[0]
        self.turned, self.values = step.run.by_row(call.key), step.run.by_row(call.value)
        table = step._once(
            ("tokens", id(turning), call.key.dtype), lambda: turning.table(-places[:, :, None], call.key)
        )  # back to position 0
        self.keys = turning.turn(self.turned, table)

    @cached_property
    def asked(self) -> Asked:
        step, call, turning = self.step, self.call, self.turning
        every = step._all_queries(call) if step.columns else call.query
        queries = step.run.by_row(every)  # [B, R, heads, n, D]
        ends = step._ends[:, :, None, None]
        later = turning.turn(
            queries, step._once(("queries", id(turning), call.query.dtype), lambda: turning.table(ends, call.query))
        )
        facts = step._once(("facts", call.local), lambda: step._facts(call.local))
        heads = self.keys.shape[2]
        queries, later = (x.unflatten(2, (heads, -1)) for x in (queries, later))
        return Asked.of(queries, later, self.turned, facts, call.scaling)

    def window(self, number: int, slots: Slots, turned: Tensor, added: Tensor) -> ReadWindow:
        """slots, and their keys and weights as they were attended to."""
        step, used = self.step, slots.used
        tokens, ages, advance = (facts[:, number] for facts in step._columns)
        kept = step._once(("kept", number), lambda: torch.cat([used, tokens], 1))
        full = step._once(("full", number), lambda: bool(kept.all()))
        key, value = self.keys[:, number], self.values[:, number]
        blank = slots.marks.new_zeros(key.shape[:3])
        columns = Slots(
            torch.cat([slots.keys, key.to(slots.keys)], 2),
            torch.cat([slots.values, value.to(slots.values)], 2),
            torch.cat([slots.weights, blank], 2),
            torch.cat([slots.marks, blank], 2),
            torch.cat([slots.ages + advance[:, None, None], ages[:, None].expand(-1, key.shape[1], -1)], 2),
        )

        def look() -> Outlook:
            masked = added if full else added.masked_fill(~used[:, None], NEVER)
            return self.asked.beside(number, turned, masked)

        def turn(keys: Tensor) -> Tensor:
            table = step._table(self.turning, keys)
            return self.turning.turn(keys, None if table is None else tuple(x[: keys.shape[2]] for x in table))

        return ReadWindow(columns, kept, full, slots.ages.shape[2], look, turn)
