"""Errors name the option that sets a field, as `--option value: problem`."""

from __future__ import annotations

import inspect
import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from typer.models import ArgumentInfo, ParameterInfo

from ..utils.fields import FieldError

# Fields of the library that an option of another name sets.
OPTIONS_OF_FIELDS = {"lanes": "batch_size", "learning_rate": "learning_rates", "overlaps": "overlap"}
LARGEST = {"seed": 2**32 - 1, "seeds": 10_000}
LARGEST_OF_OTHERS = 10**15


@contextmanager
def told_by_option(verb: Callable[..., None], given: Mapping[str, Any]) -> Iterator[None]:
    """Around a run of `verb` with the options that were given."""
    try:
        for name, value in given.items():
            refuse_extremes(name, value)
        yield
    except FieldError as error:
        place = place_of(error, verb, given)
        if place is None:
            raise
        raise ValueError(f"{place}: {error.problem}") from error


def refuse_extremes(name: str, value: Any) -> None:
    """Refuses numbers that make no sense for any option. Each verb checks its own further."""
    most = LARGEST.get(name, LARGEST_OF_OTHERS)
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, float) and math.isinf(number):
            raise FieldError(name, number, "it must be a finite number")
        if isinstance(number, int | float) and number > most:
            raise FieldError(name, number, f"that is too much; choose at most {most:,}")
        if name == "seed" and number < 0:
            raise FieldError(name, number, "it must be a whole number of at least 0")


def place_of(error: FieldError, verb: Callable[..., None], given: Mapping[str, Any]) -> str | None:
    """The option that sets this field, with its value; None if no option of the verb does."""
    for setting in given.get("settings") or ():
        if setting.partition("=")[0].strip() == error.field:
            return f"--set {setting}"
    parameters = inspect.signature(verb).parameters
    for name in (error.field, OPTIONS_OF_FIELDS.get(error.field, "")):
        if name in parameters and (option := option_of(parameters[name])):
            return with_value(option, error.value)
    return None


def option_of(parameter: inspect.Parameter) -> str | None:
    """Such as "--seed" or "--residual/--no-residual"; None for an argument."""
    for info in getattr(parameter.annotation, "__metadata__", ()):
        if isinstance(info, ArgumentInfo):
            return None
        if isinstance(info, ParameterInfo) and info.default is not ...:
            return info.default
    return f"--{parameter.name.replace('_', '-')}"


def with_value(option: str, value: Any) -> str:
    yes, _, no = option.partition("/")
    if value is None or value is True:
        return yes
    if value is False:
        return no or f"--no-{yes.removeprefix('--')}"
    values = value if isinstance(value, list | tuple) else [value]
    return " ".join([yes, *(shlex.quote(str(value)) for value in values)])
