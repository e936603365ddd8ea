"""A run of windows whose memory is made of each layer's own keys and values.

All windows of a run pass a layer together. Only the memory is made window after window, from the keys, values and
queries that the layer has computed for all of them.

Shapes: B rows, R windows of each, M = B R, n columns of a window (cached ones first), m queries, S slots,
H key-value heads with G query heads each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..state import where_rows
from .carriers import SlotCarrier, Tensors
from .seam import Call
from .slots import ReadWindow, Slots, grouped
from .step import Front, WindowStep


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
        self._used: list[Tensor] = []  # by number of the window, [B, S]: the same for all layers
        self._known: dict[Any, Any] = {}  # by number and kind of layer: what all layers of the kind share
        opened = self.state.open
        self.columns = max(opened.cached, default=0)  # of the cache
        # Inside a window the memory's turned keys are known, unless a row has just begun another window.
        self.inserted = dict(opened.inserted) if opened.inserted and all(opened.cached) else {}

    def front(self, call: Call) -> Front | None:
        if call.layer not in self.slots:
            return None
        run, layer = self.run, call.layer
        turning = self.reader.turnings[layer - 1]
        slots, fronts = self.slots[layer], []
        for number in range(run.rounds):
            seen = self.carrier.inserted(slots, layer) if self.adapts else slots
            known = self.inserted.get(layer) if number == 0 else None
            turned = turning.turn(seen.keys, self._table(turning, None, seen.keys)) if known is None else known[0]
            fronts.append((turned, seen.values, seen.weights, slots.used))
            if any(run.closes[number]):
                after = self.carrier.next(self._read(call, number, slots, turned, seen.weights), layer)
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
        if "visible" not in self._known:
            self._known["visible"] = None if bool(used.all()) else used
        return self._known["visible"]

    def _table(self, turning: Any, number: int | None, like: Tensor) -> Any:
        """What turns keys to the slots' places before the window; or keys of window `number` back to position 0."""
        name = (id(turning), number)
        if name not in self._known:
            if number is None:
                places = torch.arange(-self.carrier.count, 0, device=like.device)
            else:
                places = -self._places(number)[:, None]
            self._known[name] = turning.table(places, like)
        return self._known[name]

    # -- a window that was read

    def _read(self, call: Call, number: int, slots: Slots, turned: Tensor, added: Tensor) -> ReadWindow:
        turning = self.reader.turnings[call.layer - 1]
        key, value, query = (self._window(x, number) for x in (call.key, call.value, call.query))
        if self.needs_queries and self.columns:
            query = self._all_queries(call)
        heads, blank = key.shape[1], key.new_zeros(key.shape[:3])
        visible, kept, ages, advance = self._facts(call, number)
        later, near = self._later(call, number, query)
        kept = torch.cat([slots.used, kept], dim=1)
        columns = Slots(
            torch.cat([slots.keys, turning.turn(key, self._table(turning, number, key)).to(slots.keys)], 2),
            torch.cat([slots.values, value.to(slots.values)], 2),
            torch.cat([slots.weights, blank.to(slots.weights)], 2),
            torch.cat([slots.marks, blank.to(slots.marks)], 2),
            torch.cat([slots.ages + advance[:, None, None], ages[:, None].expand(-1, heads, -1)], 2),
        )
        seen = slots.used[:, None] & self._near(call, number) & visible.any(-1, keepdim=True)
        return ReadWindow(
            slots=columns,
            turned=torch.cat([turned.to(key.dtype), key], dim=2),
            added=torch.cat([added.to(blank.dtype), blank], dim=2),
            queries=query.unflatten(1, (heads, -1)),
            visible=torch.cat([seen, visible], dim=-1),
            kept=kept,
            later=later.unflatten(1, (heads, -1)),
            near=near,
            turning=turning,
            scaling=call.scaling,
            size=self.carrier.count,
        )

    def _later(self, call: Call, number: int, query: Tensor) -> tuple[Tensor, Tensor | None]:
        """Queries [B, heads, m, D] as they stand in the next window, and what they are near enough to see from there of
        the memory, as long as nothing is dropped, and of this window [B, m, S + n] bool; None for all."""
        turning, count = self.reader.turnings[call.layer - 1], self.carrier.count
        if not self.needs_queries:
            return query, None
        places, real = self._layout(number)
        name = ("later", number, id(turning))
        end = (places + 1).masked_fill(~real, 0).amax(1) - self.reader.overlap  # where the next window begins
        if name not in self._known:
            self._known[name] = turning.table(end[:, None, None], query)
        later = turning.turn(query, self._known[name])
        if call.local is None:
            return later, None
        before = torch.arange(-count, 0, device=places.device).expand(len(places), -1)
        asked = places[:, -query.shape[2] :] + end[:, None]
        return later, asked[:, :, None] - torch.cat([before, places], 1)[:, None] < call.local

    def _window(self, x: Tensor, number: int) -> Tensor:
        return x.unflatten(0, (self.run.rows, self.run.rounds))[:, number]

    def _places(self, number: int) -> Tensor:
        """[B, n]: the place in its window of each column; cached columns are aligned at the right."""
        return self._layout(number)[0]

    def _layout(self, number: int) -> tuple[Tensor, Tensor]:
        """Places [B, n], and which columns are real [B, n] bool."""
        name = ("layout", number)
        if name not in self._known:
            run, device = self.run, self.base.device
            index = run.index.expand(run.tokens.shape[0], -1)
            index, keep = (self._window(x, number) for x in (index, run.keep))
            if self.columns:
                held = torch.tensor(self.state.open.cached, device=device)[:, None] - self.columns
                before = torch.arange(self.columns, device=device) + held
                index, keep = torch.cat([before.clamp(min=0), index], 1), torch.cat([before >= 0, keep], 1)
            self._known[name] = (index, keep)
        return self._known[name]

    def _facts(self, call: Call, number: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of the window's columns: what each query sees [B, m, n], which the next memory may hold [B, n], their ages
        [B, n], and by how many tokens older slots grow older [B]."""
        name = ("facts", number, call.local)
        if name not in self._known:
            places, real = self._layout(number)
            asked = places if self.needs_queries else places[:, -1:]
            apart = asked[:, :, None] - places[:, None]
            visible = real[:, None] & real[:, -asked.shape[1] :, None]
            if self.reader.causal:
                visible = visible & (apart >= 0)
            if call.local is not None:
                visible = visible & (apart.abs() < call.local)
            length = (places + 1).masked_fill(~real, 0).amax(1)
            prefix = torch.tensor(self._prefixes(number), device=places.device)
            new = torch.tensor(self._first_windows(number), device=places.device)
            end = length - self.reader.overlap
            kept = real & (places >= prefix[:, None]) & (places < end[:, None])
            # Every window repeats the prefix, but only in the first one has its first token nothing before it.
            sink = places < prefix.clamp(max=self.carrier.sinks)[:, None]
            kept |= real & sink & new[:, None]
            ages = (end[:, None] - places).clamp(min=1).int()
            self._known[name] = (visible, kept, ages, (end - prefix).clamp(min=0).int())
        return self._known[name]

    def _near(self, call: Call, number: int) -> Tensor:
        """[B or 1, m or 1, S] bool: what a layer with local attention sees of the slots before the window."""
        count = self.carrier.count
        if call.local is None:
            return torch.ones(1, 1, count, dtype=torch.bool, device=self.base.device)
        name = ("near", number, call.local)
        if name not in self._known:
            places = self._places(number)
            back = count - torch.arange(count, device=places.device)
            self._known[name] = places[:, -self._asked(number) :, None] + back < call.local
        return self._known[name]

    def _asked(self, number: int) -> int:
        return self._places(number).shape[1] if self.needs_queries else 1

    def _prefixes(self, number: int) -> list[int]:
        return [self.state.prefix_of(row) for row in range(self.run.rows)]

    def _first_windows(self, number: int) -> list[bool]:
        """Per row: whether this is the first window of its document."""
        earlier = self.run.closes[:number]
        return [not had and not any(c[row] for c in earlier) for row, had in enumerate(self.state.has_memory)]

    # -- what is left

    def memory(self) -> Tensors:
        return tuple(part for layer in self.carrier.layers for part in self.slots[layer])
