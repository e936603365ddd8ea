"""Fields that a person sets: a wrong value is reported with its field, a misspelt field with a hint."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection, Hashable, Mapping
from typing import Any


class FieldError(ValueError):
    """A value that a field cannot have: `field=value: problem`.

    The command line, where fields have other names, prints `--option value: problem` instead. So `problem` is a
    sentence that does not need the field's name, and says what to do.
    """

    def __init__(self, field: str, value: Any, problem: str):
        self.field, self.value, self.problem = field, value, problem
        super().__init__(f"{field}={value!r}: {problem}")


def is_number(value: Any) -> bool:
    """Neither infinite nor NaN, nor a whole number too large for a float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def require_number(
    owner: Any,
    name: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    whole: bool = False,
    or_none: bool = False,
) -> None:
    """Refuses a field of `owner` that is not such a number."""
    value = getattr(owner, name)
    if or_none and value is None:
        return
    fits = is_number(value) and (isinstance(value, int) or not whole)
    fits = fits and (above is None or value > above) and (at_least is None or value >= at_least)
    fits = fits and (at_most is None or value <= at_most) and (below is None or value < below)
    if not fits:
        kind = "a whole number" if whole else "a number"
        limits = {"above": above, "of at least": at_least, "at most": at_most, "below": below}
        bounds = " and ".join(f"{words} {limit}" for words, limit in limits.items() if limit is not None)
        raise FieldError(name, value, f"it must be {kind} {bounds}".rstrip() + (", or None" if or_none else ""))


def require_choice(owner: Any, name: str, allowed: Collection[Any]) -> None:
    """Refuses a field that has none of the allowed values. 0 and 1 are not False and True."""
    value = getattr(owner, name)
    alike = [other for other in allowed if isinstance(other, bool) == isinstance(value, bool)]
    if not isinstance(value, Hashable) or value not in alike:
        raise FieldError(name, value, f"choose one of {', '.join(map(str, sorted(allowed)))}")


def refuse_others(config: type, known: Collection[str], given: Mapping[str, Any]) -> None:
    """Refuses given fields that `config` does not have, and suggests the closest one that it has."""
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
            raise ValueError(f"{config.__name__} has no field {name!r} (given {given[name]!r}): {hint}")
