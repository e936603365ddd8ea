"""Which tokens stand in which window: rows of a call without their padding, cut into the windows of each run.

Shapes: B rows, N columns of input, N' of the longest row without padding, C columns of the open window, R windows of
each row in a run, M = B R, w columns of a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from ...ops.windows import Read, check
from ..checking import checked_mask
from ..state import where_rows
from .state import WindowState

# -- rows of tokens


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


def align_right(ids: Tensor, fill: Sequence[int]) -> Tensor:
    """Rows of tokens aligned at the left, moved to the right and cut to the longest."""
    width = max(fill, default=0)
    if all(n == width for n in fill):
        return ids[:, :width]
    place = torch.arange(width, device=ids.device)[None] - (width - torch.tensor(fill, device=ids.device))[:, None]
    return taken(ids, place.clamp(min=0))


def both_with_types(state: WindowState, tokens: Tensor) -> tuple[WindowState, Tensor]:
    """A state and tokens of which one has types and the other has not get the type 0 where there is none."""
    if all(x is None or x.dim() == 2 for x in (tokens, state.open.ids, state.prefix)):
        return state, tokens
    opened = replace(state.open, ids=_with_types(state.open.ids))
    prefix = None if state.prefix is None else _with_types(state.prefix)
    return replace(state, open=opened, prefix=prefix), _with_types(tokens)


def _with_types(tokens: Tensor) -> Tensor:
    return tokens if tokens.dim() == 3 else torch.stack([tokens, torch.zeros_like(tokens)], -1)


def with_prefix(
    state: WindowState, packed: Tensor, lengths: list[int], prefix: Sequence[int] | None, window: int, overlap: int
) -> WindowState:
    """Stores the prefix of the rows that start a document."""
    if prefix is None:
        return state
    starting = [bool(n) and not (m or f) for n, m, f in zip(lengths, state.has_memory, state.open.fill, strict=True)]
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
        check(window, overlap, count)
    ids = align_right(packed, [p if new else 0 for p, new in zip(fill, starting, strict=True)])
    if state.prefix is not None and not all(starting):
        # Both as wide as the longest prefix; a negative number cuts columns off.
        start, old = (
            nn.functional.pad(x, (*[0, 0] * (x.dim() - 2), max(fill) - x.shape[1], 0)) for x in (ids, state.prefix)
        )
        ids = where_rows(torch.tensor(starting, device=ids.device), start, old)
    return replace(state, prefix=ids, prefix_fill=fill)


# -- windows


@dataclass(frozen=True)
class Windows:
    """The windows of one run of the backbone: `reads[row][number]` says which tokens a window holds.

    A run holds one window of every row, or several: they lie one after another in its batch, so that its large
    products run over all of them at once.
    """

    reads: list[list[Read]]
    tokens: Tensor  # [M, w], or [M, w, 2] with each token's type behind its id
    index: Tensor  # [M or 1, w]: place in the window
    keep: Tensor  # [M, w] bool: real tokens
    first: list[int]  # per row: which of its new tokens the run's first new one is, from 0
    ragged: bool  # windows differ, so that the backbone needs a mask and positions

    @property
    def rows(self) -> int:
        return len(self.reads)

    @property
    def rounds(self) -> int:
        return len(self.reads[0])

    @property
    def ids(self) -> Tensor:
        """[M, w]"""
        return self.tokens if self.tokens.dim() == 2 else self.tokens[..., 0]

    @property
    def types(self) -> Tensor:
        """[M, w], of tokens that have types."""
        return self.tokens[..., 1]

    @cached_property
    def closes(self) -> list[list[bool]]:
        """By number and row: whether the window ends here."""
        return [[row[number].closes for row in self.reads] for number in range(self.rounds)]

    @cached_property
    def last(self) -> list[int]:
        """Per row: the number of its last window that holds tokens."""
        return [max((n for n, read in enumerate(row) if read.width), default=0) for row in self.reads]

    @property
    def last_reads(self) -> list[Read]:
        """Per row: its last window that holds tokens."""
        return [row[number] for row, number in zip(self.reads, self.last, strict=True)]

    def by_row(self, x: Tensor) -> Tensor:
        """[M, ..] -> [B, R, ..]"""
        return x.unflatten(0, (self.rows, self.rounds))

    def of_last(self, x: Tensor) -> Tensor:
        """Each row's last window: [M, ..] -> [B, ..]"""
        apart = self.by_row(x)
        if self.rounds == 1:
            return apart[:, 0]
        return apart[torch.arange(self.rows, device=x.device), torch.tensor(self.last, device=x.device)]

    def of_new_tokens(self, values: Tensor, fill: int) -> Tensor:
        """Values of the packed new tokens [B, N', ..] at these tokens' places in the run [M, w, ..], else `fill`."""
        result = values.new_full((self.rows, self.rounds, self.tokens.shape[1], *values.shape[2:]), fill)
        for row, (reads, at) in enumerate(zip(self.reads, self.first, strict=True)):
            for number, read in enumerate(reads):
                result[row, number, read.again : read.width] = values[row, at : at + read.new]
                at += read.new
        return result.flatten(0, 1)


@dataclass(frozen=True)
class Tape:
    """Every row's known tokens, aligned at the right, followed by its new ones, aligned at the left: no gaps."""

    tokens: Tensor  # [B, C + N']
    middle: int  # where the new tokens begin, in every row
    prefix: Tensor | None  # [B, P]: begins every window of a row but its document's first
    prefix_fill: tuple[int, ...]
    window: int

    @staticmethod
    def of(state: WindowState, packed: Tensor, window: int) -> Tape:
        middle = state.open.ids.shape[1]
        tokens = torch.cat([state.open.ids, packed], dim=1) if middle else packed
        return Tape(tokens, middle, state.prefix, state.prefix_fill, window)

    def cut(self, cursor: list[int], reads: list[list[Read]]) -> Windows:
        """The windows of a run; `cursor` says where each row's next new token is."""
        device, rows, rounds = self.tokens.device, len(reads), len(reads[0])
        lengths = [[read.width for read in row] for row in reads]
        width = max(map(max, lengths))
        alike = all(row == reads[0] for row in reads) and len(set(cursor)) == 1 and not any(self.prefix_fill)
        if alike and all(length == width for length in lengths[0]):
            starts, at = [], cursor[0]
            for read in reads[0]:
                starts.append(at - read.again)
                at += read.new
            tokens = torch.stack([self.tokens[:, start : start + width] for start in starts], 1).flatten(0, 1)
        else:
            tokens = self._gathered(cursor, reads, width)
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
        return Windows(reads, tokens, index, keep, [at - self.middle for at in cursor], ragged)

    def _gathered(self, cursor: list[int], reads: list[list[Read]], width: int) -> Tensor:
        """The tokens of each window: its row's prefix if it begins here, then a stretch of the row's tape. [M, w]"""
        tokens = self.tokens if self.prefix is None else torch.cat([self.prefix, self.tokens], dim=1)
        shift = tokens.shape[1] - self.tokens.shape[1]
        index = []
        for row, (at, row_reads) in enumerate(zip(cursor, reads, strict=True)):
            places: list[int] = []
            prefix = self.prefix_fill[row] if self.prefix_fill else 0
            for read in row_reads:
                # In the first window the known tokens, including a prefix, are on the tape already.
                lead = 0 if at == self.middle else min(prefix, read.again)
                stretch = range(shift + at - (read.again - lead), shift + at + read.new)
                window = [*range(shift - lead, shift), *stretch] if read.width else []
                places += window + [0] * (width - len(window))
                at += read.new
            index.append(places)
        return taken(tokens, index).unflatten(1, (-1, width)).flatten(0, 1)
