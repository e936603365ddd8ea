"""Sizes of a study: a dataclass of all that differs between scales, and which values its fields may have."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import field, fields
from typing import Annotated, Any, get_args, get_type_hints

from onward.utils.fields import FieldError

SCALES = ("smoke", "laptop", "paper")

ABOVE_ZERO, MAY_BE_ZERO, NOT_EMPTY = "above zero", "may be zero", "not empty"
LearningRate = Annotated[float, ABOVE_ZERO]
LearningRates = Annotated[tuple[float, ...], ABOVE_ZERO, NOT_EMPTY]
CountOrZero = Annotated[int, MAY_BE_ZERO]
ShareOrZero = Annotated[float, MAY_BE_ZERO]


def by_scale(*values: Any) -> Any:
    """A field's values at the smoke scale, on a laptop, and at the papers' scale, which is its default; the last value
    given holds for the rest."""
    return field(default_factory=lambda: values[-1], metadata={"scales": values})


def scales_of(kind: type) -> dict[str, Any]:
    """The sizes for every scale. Fields that do not differ have their default."""
    found = {}
    for place, scale in enumerate(SCALES):
        differing = {f.name: f.metadata["scales"] for f in fields(kind) if "scales" in f.metadata}
        found[scale] = kind(**{name: values[min(place, len(values) - 1)] for name, values in differing.items()})
    return found


def all_but(sizes: Any, kind: type, left_out: Collection[str]) -> dict[str, Any]:
    """The values of the fields of `kind`, for the settings of a run."""
    return {f.name: getattr(sizes, f.name) for f in fields(kind) if f.name not in left_out}


def check_size(sizes: Any, name: str, value: Any) -> None:
    """Refuses a value of another kind than the present one, or out of bounds, before hours are spent with it.

    No number is below zero. Numbers that are above zero now stay so, unless their field is declared MAY_BE_ZERO.
    """
    present, marks = getattr(sizes, name), _marks(get_type_hints(type(sizes), include_extras=True)[name])
    if not _same_kind(value, present):
        raise FieldError(name, value, f"it must be of the kind of {present!r}")
    above_zero = ABOVE_ZERO in marks or (_is_number(present) and present > 0 and MAY_BE_ZERO not in marks)
    numbers = value if isinstance(value, list | tuple) else [value]
    for number in filter(_is_number, numbers):
        if not math.isfinite(number):
            raise FieldError(name, value, f"{number!r} must be a finite number")
        if number < 0 or (number == 0 and above_zero):
            raise FieldError(name, value, f"{number!r} must be {'more than' if above_zero else 'at least'} 0")
    if NOT_EMPTY in marks and not numbers:
        raise FieldError(name, value, "give at least one learning rate")


def _marks(hint: Any) -> set[Any]:
    """All that is declared by `Annotated` in a type, also in parts such as `LearningRate | None`."""
    return set(getattr(hint, "__metadata__", ())).union(*map(_marks, get_args(hint)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same_kind(value: Any, present: Any) -> bool:
    wider: dict[type, tuple[type, ...]] = {float: (int, float), tuple: (tuple, list)}
    kind = type(present)
    if kind not in (bool, int, float, tuple, str, dict):
        return True
    return isinstance(value, wider.get(kind, kind)) and (kind is bool or not isinstance(value, bool))
