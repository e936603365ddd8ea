"""Which tokens each window reads, and which of its outputs count. Pure: integers in, integers out.

A window holds `window` tokens, the last `overlap` of which the next window reads again. A token's output is
taken from the first window that reads it, so every token is read out exactly once. With window 10 and overlap
3, windows read tokens 1-10, 8-17, 15-24 and predict 2-11, 12-18, 19-25.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Read:
    """What one row does in one run of the backbone."""

    cached: int  # tokens of this window whose keys and values are at hand already
    again: int  # tokens read once more: the prefix and overlap, or an open window without a cache
    new: int  # tokens read for the first time
    closes: bool  # the window ends here, and what it carries goes on

    @property
    def width(self) -> int:
        return self.again + self.new


IDLE = Read(cached=0, again=0, new=0, closes=False)


def check(window: int, overlap: int, prefix: int = 0) -> None:
    """Refuses windows that would never move forward."""
    if window < 1:
        raise ValueError(f"window must be at least 1 token, got {window}")
    if overlap < 0 or overlap >= window:
        raise ValueError(
            f"overlap must be at least 0 and smaller than the window, got overlap={overlap} with "
            f"window={window}: choose an overlap of at most {window - 1}"
        )
    if prefix < 0 or prefix + overlap >= window:
        raise ValueError(
            f"a prefix of {prefix} tokens and an overlap of {overlap} leave no room for new tokens in a "
            f"window of {window}: use a larger window or a shorter prefix"
        )


def plan(
    new: int,
    window: int,
    overlap: int,
    *,
    opened: int = 0,
    cached: int = 0,
    prefix: int = 0,
    leave_open: bool = True,
) -> list[Read]:
    """How one row reads `new` tokens when `opened` tokens of a window (`cached` of them at hand) came before.

    `leave_open`: a last window that is not full waits for more tokens (decoders). Otherwise it is closed too
    (encoders, whose outputs would change if more tokens came).
    """
    reads = []
    while new > 0:
        taken = min(new, window - opened)
        new -= taken
        full = opened + taken == window
        closes = full or (new == 0 and not leave_open)
        reads.append(Read(cached=cached, again=opened - cached, new=taken, closes=closes))
        opened, cached = prefix + overlap, 0
    return reads


@dataclass(frozen=True)
class Window:
    """One window of a whole document: it reads tokens [start, stop), its outputs count from `scored` on."""

    start: int
    scored: int
    stop: int


def windows(length: int, window: int, overlap: int = 0) -> Iterator[Window]:
    """The windows that read a document of `length` tokens."""
    check(window, overlap)
    position = 0
    for read in plan(length, window, overlap):
        yield Window(position - read.again, position, position + read.new)
        position += read.new


def segment_length(windows: int, window: int, overlap: int = 0) -> int:
    """How many tokens exactly fill this many windows."""
    check(window, overlap)
    return window + (windows - 1) * (window - overlap)
