"""What is kept of all runs, put together at the places of the input's tokens.

Shapes: B rows, N columns of input, R windows of each row in a run, M = B R, w columns of a window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .planning import Windows, taken

Output = dict[str, Tensor]


@dataclass(frozen=True)
class Ran:
    """A run of the backbone."""

    windows: Windows
    kept: Output  # per token [M, w, ..], one number [], or under a name with "window" one per window [M, ..]
    kind: type[Any]  # of the base's output, which its head expects


def assembled(ran: list[Ran], columns_given: int, columns: list[list[int]] | None, revise: int) -> Output:
    """What was kept per token as [B, N, ..], zeros at padding; numbers as their sum; what was kept per window as
    [B, windows, ..]. `columns`: per row those that hold tokens, None for all."""
    result, per_token = {}, []
    for name, value in ran[0].kept.items():
        if value.dim() == 0:
            result[name] = torch.stack([run.kept[name] for run in ran]).sum(0)
        elif name.startswith("window"):
            result[name] = torch.cat([run.windows.by_row(run.kept[name]) for run in ran], dim=1)
        else:
            per_token.append(name)
    if not per_token:
        return result
    if columns is None and not revise and all(_in_stretches(run.windows) for run in ran):
        return result | {name: _stretches(ran, name) for name in per_token}
    places = torch.tensor(_places(ran, columns_given, columns, revise), device=ran[0].windows.tokens.device)
    return result | {name: _picked(ran, name, places) for name in per_token}


def _in_stretches(windows: Windows) -> bool:
    """Whether the new tokens of all windows of a run are its last columns."""
    return not windows.ragged and len({read.again for read in windows.reads[0]}) == 1


def _stretches(ran: list[Ran], name: str) -> Tensor:
    parts = []
    for run in ran:
        again = run.windows.reads[0][0].again
        parts.append(run.windows.by_row(run.kept[name][:, again:]).flatten(1, 2))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _places(ran: list[Ran], columns_given: int, columns: list[list[int]] | None, revise: int) -> list[list[int]]:
    """Per row and column of the input: where the token's output is among the columns of all runs; -1 for none."""
    index = [[-1] * columns_given for _ in range(ran[0].windows.rows)]
    base = 0
    for run in ran:
        windows, width = run.windows, run.windows.tokens.shape[1]
        for row, reads in enumerate(windows.reads):
            where = columns[row] if columns is not None else range(columns_given)
            at = windows.first[row]
            for number, read in enumerate(reads):
                start = base + number * width + read.again
                for back in range(-min(revise, at, read.again), read.new):
                    index[row][where[at + back]] = start + back
                at += read.new
        base += windows.rounds * width
    return index


def _picked(ran: list[Ran], name: str, places: Tensor) -> Tensor:
    parts = [run.windows.by_row(run.kept[name]).flatten(1, 2) for run in ran]
    picked = taken(torch.cat(parts, dim=1), places.clamp(min=0))
    unread = (places < 0).view(*places.shape, *[1] * (picked.dim() - 2))
    return picked.masked_fill(unread, 0)
