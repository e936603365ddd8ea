"""The cache of a backbone, for windows that are left open.

What it keeps is the backbone's own affair, and not always keys and values as attention receives them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from ...ops.windows import Read
from .planning import Windows, taken
from .state import Held


class _Layer(DynamicLayer):
    """Hands out all windows of a run, and keeps each row's last one. It replaces tensors and never changes them."""

    def __init__(self, run: Windows, kept: tuple[Tensor, ...] = ()):
        super().__init__()
        self.run = run
        if kept:
            self.lazy_initialization(*kept[:2])
            self.keys, self.values = kept[:2]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        keys, values = key_states, value_states
        if self.is_initialized:
            assert self.keys is not None and self.values is not None
            keys, values = torch.cat([self.keys, keys], dim=-2), torch.cat([self.values, values], dim=-2)
        else:
            self.lazy_initialization(keys, values)
        self.keys, self.values = self.run.of_last(keys), self.run.of_last(values)
        return keys, values


def cache_of(held: Held | None, run: Windows) -> DynamicCache:
    """A cache that starts from what is held of windows that are open.

    Without a configuration it keeps sliding-window layers whole, which is right within a window.
    """
    cache: Any = DynamicCache()
    cache.layers = [_Layer(run, kept) for kept in held or ()]
    cache.layer_class_to_replicate = partial(_Layer, run)  # of layers that are not there yet
    return cache


def held_by(cache: Any, queries: dict[int, Tensor]) -> Held:
    """What a cache holds after a run, with the queries that the step kept, by layer from 1."""
    held = []
    for number, layer in enumerate(cache.layers, 1):
        asked = (queries[number],) if number in queries else ()
        held.append((layer.keys, layer.values, *asked))
    return tuple(held)


def aligned(held: Held, had: Sequence[int], last: Sequence[Read], width: int, cached: Sequence[int]) -> Held | None:
    """What is held after a run of `width` columns, with each row's slots moved to the right end and the rest dropped.
    Per row: `had` slots before the run, its `last` window, and `cached` slots that stay."""
    longest = max(cached)
    if longest == 0:
        return None
    before = held[0][0].shape[2] - width
    index = []
    for row, (read, count) in enumerate(zip(last, cached, strict=True)):
        old = read.cached if read.width else had[row]
        slots = [*range(before - old, before), *range(before, before + read.width)][-count:] if count else []
        index.append([0] * (longest - len(slots)) + slots)
    slots_at = torch.tensor(index, device=held[0][0].device)
    return tuple(tuple(taken(x.transpose(1, 2), slots_at).transpose(1, 2) for x in layer) for layer in held)
