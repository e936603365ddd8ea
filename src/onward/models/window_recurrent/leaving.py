"""The state after a run: its windows have closed and left a memory, or stay open for tokens to come.

Shapes: B rows, w columns of a window, C columns of the open window.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .cache import aligned, held_by
from .carriers import Tensors
from .planning import Windows, taken
from .state import OpenWindow, WindowState
from .step import WindowStep


def state_after(
    state: WindowState, run: Windows, memory: Tensors, overlap: int, step: WindowStep | None = None
) -> WindowState:
    """`step`: the one that has run, if windows that stay open are to be held."""
    ids, fill = _open_tokens(state, run, overlap)
    closed = [any(read.closes for read in row) for row in run.reads]
    has_memory = tuple(a or b for a, b in zip(state.has_memory, closed, strict=True))
    opened = OpenWindow(ids=ids, fill=fill, cached=(0,) * len(fill))
    if step is not None and not all(read.closes for read in run.last_reads):
        opened = _held_open(step, opened)
    return replace(state, memory=memory, has_memory=has_memory, open=opened)


def _held_open(step: WindowStep, opened: OpenWindow) -> OpenWindow:
    """With what the backbone and the carrier need to go on inside of the window."""
    run, before = step.run, step.state.open
    last = run.last_reads
    # A row without new tokens keeps what it had: its open tokens may not be in the cache.
    cached = tuple(
        0 if read.closes else n if read.width else had
        for read, n, had in zip(last, opened.fill, before.cached, strict=True)
    )
    held = held_by(step.cache, step.queries)
    moved = run.ragged or run.rounds > 1 or any(read.closes for read in last)
    return replace(
        opened,
        cached=cached,
        cache=aligned(held, before.cached, last, run.tokens.shape[1], cached) if moved else held,
        summary=step.summary(),
        inserted=step.inserted or None,
    )


def _open_tokens(state: WindowState, run: Windows, overlap: int) -> tuple[Tensor, tuple[int, ...]]:
    """The tokens that stay: all of an open window, prefix and overlap of a closed one."""
    # The window holds the cached tokens, at the right of the open ids, and those of the run.
    opened, width = state.open, run.tokens.shape[1]
    before, new = opened.ids.shape[1], run.of_last(run.tokens)
    known = torch.cat([opened.ids, new], dim=1) if before else new
    plan = []
    for row, read in enumerate(run.last_reads):
        if read.width:
            places = [*range(before - read.cached, before), *range(before, before + read.width)]
        else:
            places = list(range(before - opened.fill[row], before))
        if read.closes:
            lead = state.prefix_of(row)
            places = places[:lead] + places[lead:][max(0, len(places) - lead - overlap) :]
        plan.append(places)
    fill = tuple(map(len, plan))
    longest = max(fill)
    if len(set(map(tuple, plan))) == 1 and plan[0] == list(range(before + width - longest, before + width)):
        return known[:, before + width - longest :], fill
    return taken(known, [[0] * (longest - len(p)) + p for p in plan]), fill
