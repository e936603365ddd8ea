"""What a memory is worth, in a sentence: its gain over kept tokens, and nothing else.

Any memory gains over plain windows, and so do the last tokens, which cost nothing to choose.
"""

from __future__ import annotations

from collections.abc import Sequence

from .measures import Difference
from .rows import KEPT, Row


def worth(rows: Sequence[Row]) -> str:
    """Of the rows of a window-recurrent model; empty if it has no memory."""
    own = [row for row in rows if row.variant == "recurrent" and row.measures is not None]
    if not own:
        return ""
    kept = {row.overlap: row for row in rows if row.variant == KEPT}
    found = []
    for row in own:
        if row.gain_over_kept is None:
            return "What the memory is worth is not known: kept tokens, its control, were not measured."
        place = f" at overlap {row.overlap}" if len(own) > 1 else ""
        doubt = "" if is_sure(row.gain_over_kept) else "; within the noise of so little text"
        sizes = f"in {row.state_bytes:,} bytes, kept tokens in {kept[row.overlap].state_bytes:,}"
        found.append(f"{row.gain_over_kept}{place} ({sizes}{doubt})")
    return f"What the memory is worth, its gain over kept tokens in nats per token: {'; '.join(found)}."


def is_sure(gain: Difference) -> bool:
    """Whether it is more than chance would often give."""
    return gain.standard_error is not None and abs(gain.mean) > 2 * gain.standard_error
