"""One run of the backbone: what the tokens of its windows attend to, and what the windows leave.

Shapes: B rows, R windows of each, M = B R, w columns of a window, t queries, n keys, H key-value heads, V keys and
values in front of a window.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .cache import cache_of
from .carriers import Carrier, Tensors
from .planning import Windows
from .seam import Call, added
from .state import WindowState


@dataclass(frozen=True)
class Front:
    """What stands in front of the windows of a run, for one layer."""

    keys: Tensor  # [M, H, V, D]
    values: Tensor  # [M, H, V, E]
    visible: Tensor | None  # [M, V] bool; None for all
    weights: Tensor | None = None  # [M, H, V]: added to the scores
    as_tokens: bool = False  # a local layer sees them as far back as tokens; otherwise it sees them all


class WindowStep:
    """Plain windows, which carry nothing: a run and what it leaves. Other steps change `front` and `memory`."""

    needs_queries = False

    def __init__(self, reader: Any, carrier: Carrier, state: WindowState, run: Windows, memory: Tensors, holds: bool):
        self.base, self.reader, self.carrier, self.state, self.run = reader.base, reader, carrier, state, run
        self.before, self.holds = memory, holds
        held = state.open.cache
        self.cache = cache_of(held, run) if holds or held is not None else None  # of the backbone
        self.queries: dict[int, Tensor] = {}  # by layer: those of each row's last window, if the carrier needs them
        self.inserted: dict[int, tuple[Tensor, Tensor]] = {}  # by layer: what stands in front of it
        self._masks: dict[Any, tuple[Any, ...]] = {}

    # -- attention

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        if not call.layer:
            return call.own()
        front = self.front(call)
        if self.holds and self.needs_queries:
            self.queries[call.layer] = self.run.of_last(self._all_queries(call))
        return self.attend_with(call, front)

    def front(self, call: Call) -> Front | None:
        return None

    def attend_with(self, call: Call, front: Front | None) -> tuple[Tensor, Tensor | None]:
        if front is None:
            return call.attended(call.query, call.key, call.value, call.mask) if call.watched else call.own()
        query = call.query
        key = torch.cat([front.keys.to(call.key.dtype), call.key], dim=2)
        value = torch.cat([front.values.to(call.value.dtype), call.value], dim=2)
        if call.plain and (front.weights is not None or front.visible is not None):
            query, key, value = _with_weights(call, front, key, value)
            front = replace(front, weights=None, visible=None)  # then all windows and layers share one mask
        output, weights = call.attended(query, key, value, self._mask(call, front))
        return output[..., : call.value.shape[3]], weights

    def _mask(self, call: Call, front: Front) -> Tensor | None:
        """The call's mask with V columns in front, [M or 1, 1 or all heads, t, V + n]; None if nothing is hidden. Masks
        without weights are made once for each kind of layer."""
        name = (id(call.mask), id(front.visible), call.local, call.causal, call.query.shape[2])
        if name not in self._masks:  # which keeps both tensors, so that no other gets the id of one
            self._masks[name] = (call.mask, front.visible, self._shared_mask(call, front))
        *_, shared = self._masks[name]
        if front.weights is None:
            return shared
        heads, count = call.query.shape[1], front.keys.shape[2]
        weights = front.weights.to(call.query.dtype).repeat_interleave(heads // front.weights.shape[1], 1)
        if shared is None:
            shared = call.query.new_ones(1, 1, 1, count + call.key.shape[2], dtype=torch.bool)
        shared = added(shared, call.query).expand(len(weights), heads, call.query.shape[2], -1)
        return torch.cat([shared[..., :count] + weights[:, :, None], shared[..., count:]], dim=-1)

    def _shared_mask(self, call: Call, front: Front) -> Tensor | None:
        own = call.visible() if call.mask is None else call.mask
        seen = self._seen(call, front)
        if call.mask is None and bool(own.all()) and bool(seen.all()):
            return None
        batch = max(own.shape[0], seen.shape[0])
        seen, own = seen.expand(batch, own.shape[1], -1, -1), own.expand(batch, -1, seen.shape[2], -1)
        if own.dtype != torch.bool:
            seen = added(seen, call.query).to(own.dtype)
        return torch.cat([seen, own], dim=-1)

    def _seen(self, call: Call, front: Front) -> Tensor:
        """What each query sees of the front. [M or 1, 1, t, V] bool"""
        count, rows = front.keys.shape[2], call.query.shape[2]
        seen = torch.ones(1, 1, 1, count, dtype=torch.bool, device=call.query.device)
        if front.visible is not None:
            seen = front.visible[:, None, None]
        if front.as_tokens and call.local is not None:  # it stands right before the window
            back = count - torch.arange(count, device=call.query.device)
            seen = seen & (self.run.index[:, None, :, None] + back < call.local)
        return seen.expand(-1, -1, rows, -1)

    def _all_queries(self, call: Call) -> Tensor:
        """With those of the window's earlier tokens."""
        opened = self.state.open
        if opened.cache is None or call.layer > len(opened.cache):  # layers that share keys keep none
            return call.query
        return torch.cat([opened.cache[call.layer - 1][2], call.query], dim=2)

    # -- what is left

    def finish(self) -> None:
        """Is called when the backbone has run."""

    def memory(self) -> Tensors:
        """The memory after the run's windows."""
        return self.before

    def summary(self) -> Tensors | None:
        """Of the windows that stay open, what a carrier needs besides keys, values and queries."""
        return None

    def closing(self, number: int) -> Tensor:
        """The rows whose window of this number closes. [B] bool"""
        return torch.tensor(self.run.closes[number], device=self.base.device)


HIDDEN = -1e4  # as a weight: its exponential is 0 in every precision


def _with_weights(call: Call, front: Front, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values with one more feature, whose product of a query and a key is the key's weight."""
    weights = front.keys.new_zeros(front.keys.shape[:3]) if front.weights is None else front.weights
    if front.visible is not None:
        weights = weights.masked_fill(~front.visible[:, None], HIDDEN)
    feature = nn.functional.pad(weights.to(key.dtype), (0, call.key.shape[2]))[..., None]
    one = call.query.new_full((*call.query.shape[:3], 1), 1 / call.scaling)
    width = 1 if key.device.type == "cpu" else 8  # kernels of GPUs want widths that are multiples of 8
    one, feature = (nn.functional.pad(x, (0, width - 1)) for x in (one, feature))
    return torch.cat([call.query, one], -1), torch.cat([key, feature], -1), nn.functional.pad(value, (0, width))
