"""Groups of options: a dataclass of options is one parameter of a verb.

    @dataclass(frozen=True)
    class TextOptions:
        corpus: Annotated[str, option("Which texts to use.")] = "shakespeare"

    def evaluate(model: Model, texts: TextOptions) -> None: ...

A verb with other defaults than the dataclass's gives an instance as its parameter's default. This file knows nothing of
any particular option, verb or model.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

import typer

EMPTY = inspect.Parameter.empty


def option(help: str, *names: str, default: str | bool = True, panel: str | None = None, **more: Any) -> Any:
    """`default` is shown for an option that is None unless it is given."""
    return typer.Option(*names, help=help, show_default=default, rich_help_panel=panel, **more)


def with_options(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb as Typer understands it: each field of its groups is a parameter of its own."""
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    hints: dict[str, Any] = get_type_hints(verb, include_extras=True)
    for name, parameter in inspect.signature(verb).parameters.items():
        if not is_dataclass(hint := hints[name]):
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hint))
            continue
        groups[name] = hint
        annotations = get_type_hints(hint, include_extras=True)
        for field in fields(hint):
            default = field.default if parameter.default is EMPTY else getattr(parameter.default, field.name)
            default = EMPTY if default is MISSING else default
            kind = parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(field.name, kind, default=default, annotation=annotations[field.name]))

    @functools.wraps(verb)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        verb(**given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
