"""Where the new tokens of a call lie in the blocks of their documents.

Each row has its own place in its block. If all rows have the same place, as in training, tokens are moved by slices,
and otherwise by gathers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from .state import Pairs


@dataclass(frozen=True)
class Layout:
    """Row r has seen `tokens[r]` tokens of its document; `lengths[r]` more come now."""

    window: int
    tokens: tuple[int, ...]
    lengths: tuple[int, ...]

    @cached_property
    def fills(self) -> tuple[int, ...]:
        """How many tokens of its open block each row has already."""
        return tuple(n % self.window for n in self.tokens)

    @cached_property
    def after(self) -> tuple[int, ...]:
        return tuple(n + new for n, new in zip(self.tokens, self.lengths, strict=True))

    @cached_property
    def blocks(self) -> int:
        """The largest number of blocks that the call touches in a row, counted from its open block."""
        return max(-(-(fill + new) // self.window) for fill, new in zip(self.fills, self.lengths, strict=True))

    @property
    def is_one_token(self) -> bool:
        return all(n == 1 for n in self.lengths)

    def completed(self, block: int) -> list[bool]:
        """Which rows have all tokens of this block, counted like `blocks`."""
        reach = (block + 1) * self.window
        return [fill + new >= reach for fill, new in zip(self.fills, self.lengths, strict=True)]

    def seen(self, past: int) -> list[int]:
        """How many of the last `past` columns before the call hold tokens, for each row."""
        return [min(n, past) for n in self.tokens]

    # -- blocks of the grid: [blocks, B, H, W, D], column c of row r being token c - fills[r] of the call

    def in_blocks(self, new: Tensor, past: Tensor | None = None) -> Tensor:
        """Tokens [B, H, N, D] in their blocks; with `past`, together with the open blocks' earlier tokens."""
        offsets = self.fills
        if past is not None and any(self.fills):
            offsets = tuple(fill - past.shape[2] for fill in self.fills)
            new = torch.cat([past, new], 2)
        placed = _shifted(new, offsets, self.blocks * self.window)
        batch, heads, _, width = placed.shape
        return placed.view(batch, heads, self.blocks, self.window, width).permute(2, 0, 1, 3, 4)

    def out_of_blocks(self, placed: Tensor, count: int) -> Tensor:
        """Back to [B, H, N, D]."""
        blocks, batch, heads, window, width = placed.shape
        flat = placed.permute(1, 2, 0, 3, 4).reshape(batch, heads, blocks * window, width)
        return _shifted(flat, tuple(-fill for fill in self.fills), count)

    def each_block(self, new: Tensor) -> list[Tensor]:
        """Tokens [B, H, N, D] block by block; unchanged if all lie in one block."""
        return [new] if self.blocks == 1 else list(self.in_blocks(new))

    def from_each_block(self, blocks: list[Tensor], count: int) -> Tensor:
        return blocks[0] if self.blocks == 1 else self.out_of_blocks(torch.stack(blocks), count)

    # -- what the next call needs

    def recent(self, past: Pairs, new: Pairs) -> Pairs:
        """The last tokens after the call, aligned at the right, at most a window of them."""
        size = min(self.window, max(self.after))
        if min(self.lengths) == new.keys.shape[2] >= size:  # a copy, since a slice would keep the whole
            # Contiguous, as loaded from a file: the layout can change the last bit of a product.
            return Pairs(*(x[:, :, -size:].clone(memory_format=torch.contiguous_format) for x in new))
        if min(self.lengths) == new.keys.shape[2]:
            kept = size - new.keys.shape[2]
            start = past.keys.shape[2] - kept
            return Pairs(*(torch.cat([old[:, :, start:], now], 2) for old, now in zip(past, new, strict=True)))
        offsets = tuple(size - past.keys.shape[2] - n for n in self.lengths)
        return Pairs(*(_shifted(torch.cat(both, 2), offsets, size) for both in zip(past, new, strict=True)))

    def remembered(self, both: Pairs, before: int, limit: int) -> Pairs:
        """The last tokens of complete blocks, aligned at the right. both: `before` columns of memory, then the blocks
        of the call."""
        complete = [n // self.window * self.window for n in self.after]
        size = min(limit, max(complete))
        ends = [before + now - n // self.window * self.window for now, n in zip(complete, self.tokens, strict=True)]
        return Pairs(*(_shifted(x, tuple(size - end for end in ends), size) for x in both))


def _shifted(x: Tensor, offsets: Sequence[int], size: int) -> Tensor:
    """Row r moved to the right by `offsets[r]` columns; columns from outside are zero or never used.

    x: [B, H, n, D] -> [B, H, size, D].
    """
    first = offsets[0]
    if all(offset == first for offset in offsets):
        if first == 0 and x.shape[2] == size:
            return x
        return F.pad(x, (0, 0, first, size - first - x.shape[2]))  # negative padding cuts
    batch, heads, length, width = x.shape
    column = torch.arange(size, device=x.device) - torch.tensor(list(offsets), device=x.device)[:, None]
    real = (column >= 0) & (column < length)
    index = column.clamp(0, length - 1)[:, None, :, None].expand(batch, heads, size, width)
    return x.gather(2, index).masked_fill(~real[:, None, :, None], 0)


@dataclass(frozen=True)
class Piece:
    """Some of a call's tokens, which every row has in order: where they are, and how many of them in each row."""

    columns: slice | Tensor  # [B, n], the number of all columns where a row has no more tokens
    lengths: tuple[int, ...]

    def of(self, x: Tensor) -> Tensor:
        """[B, N, d] -> [B, n, d], rows aligned at the left."""
        if isinstance(self.columns, slice):
            return x[:, self.columns]
        return x.gather(1, self.columns.clamp(max=x.shape[1] - 1)[..., None].expand(-1, -1, x.shape[2]))


def pieces(layout: Layout, blocks: int, real: Tensor) -> list[Piece]:
    """The call in order, cut wherever a row has finished `blocks` blocks; 0 for a single piece.

    real: [B, N], False at padding.
    """
    count = real.shape[1]
    in_step = min(layout.lengths) == count and (not blocks or len(set(layout.fills)) == 1)
    if not in_step:  # the columns of each row's tokens, in order; padding follows
        order = (~real).int().argsort(dim=1, stable=True)
    cut: list[Piece] = []
    starts = (0,) * len(layout.tokens)
    while starts != layout.lengths:
        reach = (len(cut) + 1) * blocks * layout.window if blocks else math.inf
        stops = tuple(
            int(max(start, min(length, reach - fill)))
            for start, length, fill in zip(starts, layout.lengths, layout.fills, strict=True)
        )
        lengths = tuple(stop - start for start, stop in zip(starts, stops, strict=True))
        if in_step:
            cut.append(Piece(slice(starts[0], stops[0]), lengths))
        else:
            places = torch.tensor(starts)[:, None] + torch.arange(max(lengths))
            missing = places >= torch.tensor(stops)[:, None]
            places, missing = places.clamp(max=count - 1).to(real.device), missing.to(real.device)
            cut.append(Piece(order.gather(1, places).masked_fill(missing, count), lengths))
        starts = stops
    return cut


def joined(parts: list[Tensor], cut: list[Piece], count: int) -> Tensor:
    """Outputs of the pieces, [B, n, d] each, at the places of their tokens [B, N, d]; zero at padding."""
    whole = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    columns = [piece.columns for piece in cut if isinstance(piece.columns, Tensor)]
    if not columns:
        return whole
    index = torch.cat(columns, 1)[..., None].expand(-1, -1, whole.shape[2])
    return whole.new_zeros(len(whole), count + 1, whole.shape[2]).scatter(1, index, whole)[:, :count]
