"""Files that disks and copies have spoilt."""

from __future__ import annotations

import random
from pathlib import Path

KINDS = ("flip", "zeros", "truncation")


def damage(file: Path, kind: str, draw: random.Random) -> None:
    """Changes at least one bit of the file, at a random place."""
    content = bytearray(file.read_bytes())
    place = draw.randrange(len(content))
    if kind == "flip":
        content[place] ^= 1 << draw.randrange(8)
    elif kind == "truncation":
        del content[place:]
    else:
        while content[place] == 0:
            place = draw.randrange(len(content))
        content[place : place + 512] = bytes(len(content[place : place + 512]))
    file.write_bytes(content)
