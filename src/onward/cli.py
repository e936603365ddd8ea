"""The command line: verbs are functions, and each says what it made and where."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import io
import math
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import typer
from rich.console import Console

from .commands.demo import demo
from .commands.embed import embed
from .commands.evaluate import evaluate
from .commands.finetune import finetune
from .commands.generate import generate
from .commands.inspect import inspect
from .commands.shared import load_model
from .commands.train import train
from .commands.vocabulary import vocabulary

__all__ = ["app", "load_model", "main", "spread_numbers"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Recurrence for Transformers: read, train and write documents of any length.",
)


def with_package(verb: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(verb)
    def run(**given: Any) -> None:
        for name, value in given.items():
            check_numbers(f"--{name.replace('_', '-')}", value)
        fill_package()
        verb(**given)

    return run


LARGEST = 10**15


def check_numbers(option: str, value: Any) -> None:
    """What no option can mean; each verb knows what its own may be."""
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, float) and math.isinf(number):
            raise ValueError(f"{option} {number}: it must be a finite number")
        if isinstance(number, int | float) and number > (most := MOST.get(option, LARGEST)):
            raise ValueError(f"{option} {number}: that is too much; choose at most {most:,}")
        if option == "--seed" and number < 0:
            raise ValueError(f"{option} {number}: it must be a whole number of at least 0")


MOST = {"--seed": 2**32 - 1, "--seeds": 10_000}


def fill_package() -> None:
    """`onward_command` leaves this package empty, so that help needs no torch; here it becomes what `import onward`
    makes of it."""
    package = sys.modules[__package__]
    if not hasattr(package, "__version__"):
        assert package.__spec__ is not None and package.__spec__.loader is not None
        package.__spec__.loader.exec_module(package)


for verb in (train, evaluate, generate, embed, inspect, finetune, vocabulary, demo):
    app.command()(with_package(verb))
if importlib.util.find_spec("onward_studies") is not None:
    app.command()(with_package(importlib.import_module("onward_studies.command").study))


def main() -> None:
    """Runs a verb; what goes wrong is one sentence, not a page of Python (that is for ONWARD_TRACEBACK=1)."""
    replace_what_cannot_be_shown()
    sys.argv[1:] = spread_numbers(sys.argv[1:], "--overlap")
    try:
        check_text(sys.argv)
        app()
    except Exception as error:
        if os.environ.get("ONWARD_TRACEBACK"):
            raise
        told = f"onward: {sentence(error)}"
        Console(stderr=True, emoji=False).print(told, markup=False, highlight=False, soft_wrap=True)
        raise SystemExit(1) from None


TOLD = (ValueError, TypeError, OSError, RuntimeError, ArithmeticError, ImportError)
"""Whoever raises these says what was wrong. Anything else is a mistake in the program."""
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


def sentence(error: Exception) -> str:
    said = str(error).strip()
    of_torch = isinstance(error, RuntimeError) and any(words in said.lower() for words in OUT_OF_MEMORY)
    if isinstance(error, MemoryError) or of_torch:
        detail = f" ({said.splitlines()[0]})" if said else ""
        return (
            f"the memory of this machine is not enough{detail}: use smaller models, batches, windows or texts, or end "
            "other programs"
        )
    if isinstance(error, TOLD) and said:
        return said
    return (
        f"{type(error).__name__}{f': {said}' if said else ''}. This should have been found earlier, and told better: "
        "please report it, with what ONWARD_TRACEBACK=1 shows"
    )


def replace_what_cannot_be_shown() -> None:
    """A terminal of another encoding than UTF-8 shows ? for what it does not know. Python sees to errors itself."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def check_text(arguments: list[str]) -> None:
    """Of bytes that are no UTF-8 Python makes letters that no file takes: known now rather than when results are
    written. And an empty path, which a variable of the shell may be, is the present folder to Python."""
    for before, argument in zip(arguments, arguments[1:], strict=False):
        if any("\ud800" <= letter <= "\udfff" for letter in argument):
            raise ValueError(f"{argument!r} is not UTF-8: give names and paths that are, or rename the file")
        if not argument or re.fullmatch("--[a-z-]+=", argument):
            option = argument[:-1] or before
            raise ValueError(f"after {option} stands nothing, only quotes or a =: give a value, or leave it out")


def spread_numbers(arguments: list[str], option: str) -> list[str]:
    """Lets one option take many numbers: `--overlap 0 5 10` for `--overlap 0 --overlap 5 --overlap 10`."""
    spread: list[str] = []
    inside = first = False
    for argument in arguments:
        if inside and argument.isdigit():
            spread += [argument] if first else [option, argument]
            first = False
            continue
        inside = first = argument == option
        spread.append(argument)
    return spread


if __name__ == "__main__":
    main()
