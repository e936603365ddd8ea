"""Which tokens each window holds, and which of its outputs count. Integers in, integers out.

A window holds `window` tokens; the next window repeats its last `overlap` tokens. A token's output is taken from the
first window that holds it, so every token counts exactly once. With window 10 and overlap 3, windows hold the tokens
1-10, 8-17, 15-24 and predict 2-11, 12-18, 19-25.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..utils.fields import FieldError


@dataclass(frozen=True)
class Read:
    """The tokens of one row in one run of the backbone."""

    cached: int  # tokens of this window whose keys and values are in the cache
    again: int  # repeated tokens: prefix and overlap, or an open window without a cache
    new: int  # tokens that come for the first time
    closes: bool  # the window ends here, and its memory is carried on

    @property
    def width(self) -> int:
        return self.again + self.new


IDLE = Read(cached=0, again=0, new=0, closes=False)


def check(window: int, overlap: int, prefix: int = 0) -> None:
    """Refuses windows that would never advance."""
    if window < 1:
        raise FieldError("window", window, "it must be at least 1 token")
    if not 0 <= overlap < window:
        raise FieldError(
            "overlap", overlap, f"it must be at least 0 and smaller than window={window}; choose at most {window - 1}"
        )
    if prefix < 0 or prefix + overlap >= window:
        raise FieldError(
            "prefix_length",
            prefix,
            f"with overlap={overlap} it leaves no room for new tokens in window={window}; use a larger window or a "
            "shorter prefix",
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
    """The runs of one row over `new` tokens, after `opened` tokens of a window (`cached` of them in the cache).

    `leave_open`: a last window that is not full waits for more tokens (decoders). Otherwise it is closed as well
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
    """One window of a whole document: it holds the tokens [start, stop), and its outputs count from `scored` on."""

    start: int
    scored: int
    stop: int


def windows(length: int, window: int, overlap: int = 0) -> Iterator[Window]:
    """The windows over a document of `length` tokens."""
    check(window, overlap)
    position = 0
    for read in plan(length, window, overlap):
        yield Window(position - read.again, position, position + read.new)
        position += read.new


def segment_length(windows: int, window: int, overlap: int = 0) -> int:
    """The number of tokens that exactly fill this many windows."""
    check(window, overlap)
    return window + (windows - 1) * (window - overlap)
