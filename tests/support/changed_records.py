"""Records with something of another kind in any place: loaded, or refused by file and place, never a traceback."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

OTHERS: list[Any] = [None, 3, -1.5, True, "", "x", [], {}, [None], [[]], [3], {"text": 3}, {"text": None}, "\ud800"]


def changed(content: Any) -> Iterator[Any]:
    """With every part of it, in turn, replaced by something else or gone."""
    places: list[tuple[Any, ...]] = [()]

    def walk(part: Any, place: tuple[Any, ...]) -> None:
        for key in part if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ():
            places.append((*place, key))
            walk(part[key], (*place, key))

    walk(content, ())
    for place in places:
        for other in OTHERS if place else []:
            whole = copy.deepcopy(content)
            inside = whole
            for key in place[:-1]:
                inside = inside[key]
            inside[place[-1]] = other
            yield whole
            del inside[place[-1]]
            yield whole
