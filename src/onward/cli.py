"""The command line: verbs are functions, and each says what it made and where."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import io
import os
import re
import shlex
import sys
from collections.abc import Callable
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from .commands.demo import demo
from .commands.embed import embed
from .commands.errors import told_by_option
from .commands.evaluate import evaluate
from .commands.finetune import finetune
from .commands.generate import generate
from .commands.inspect import inspect
from .commands.options import option, with_options
from .commands.shared import TRAINED_BY, fill_package, kind_of
from .commands.train import refuse_recurrent
from .commands.train_block import block
from .commands.train_masked import masked
from .commands.train_window import window
from .commands.vocabulary import vocabulary
from .utils.version import __version__

__all__ = ["app", "main", "spread_numbers"]


class Verbs(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        """Typer lists groups of commands last; `train` is the first of its panel."""
        return sorted(self.commands, key=lambda name: name != "train")


class KindsOfTraining(TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Tells `onward train MODEL` which command trains this model."""
        if not (args[0] in self.commands or ctx.resilient_parsing or get_close_matches(args[0], self.commands)):
            fill_package()
            refuse_recurrent(args[0])
            line = f"onward train {TRAINED_BY[kind_of(args[0])]} {shlex.join(args)}"
            raise ValueError(f"`onward train` needs the kind of model, window, block or masked: use `{line}`")
        return super().resolve_command(ctx, args)


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, cls=Verbs)
train = typer.Typer(help="Train a model with recurrence: one command for each kind of model.", cls=KindsOfTraining)


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"onward {__version__}")
        raise typer.Exit


@app.callback()
def onward(
    version: Annotated[bool, option("Show the version.", "--version", is_eager=True, callback=show_version)] = False,
) -> None:
    """Recurrence for Transformers: train, evaluate and generate on documents of any length."""


def as_command(verb: Callable[..., None]) -> Callable[..., None]:
    verb = with_options(verb)

    @functools.wraps(verb)
    def run(**given: Any) -> None:
        fill_package()
        with told_by_option(verb, given):
            verb(**given)

    return run


def add(group: typer.Typer, *verbs: Callable[..., None], panel: str | None = None) -> None:
    for verb in verbs:
        group.command(rich_help_panel=panel)(as_command(verb))


app.add_typer(train, name="train", rich_help_panel="Train", no_args_is_help=True)
add(train, window, block, masked)
add(app, demo, vocabulary, finetune, panel="Train")
add(app, generate, embed, panel="Use")
add(app, evaluate, inspect, panel="Measure")
if importlib.util.find_spec("onward_studies") is not None:
    add(app, importlib.import_module("onward_studies.command").study, panel="Measure")
else:

    @app.command(rich_help_panel="Measure", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
    def study() -> None:
        """Reproduce the papers' tables and figures. The studies are not installed: they are in onward's repository."""
        raise ImportError(
            "`onward study` needs the studies: clone onward's repository, and run `pip install '.[studies]'` in it"
        )


def main() -> None:
    """Runs a verb. An error is one sentence; ONWARD_TRACEBACK=1 shows where it was raised."""
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


# Errors of these types say what is wrong. Any other is a mistake in the program.
EXPLAINED = (ValueError, TypeError, OSError, RuntimeError, ArithmeticError, ImportError)
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
    if isinstance(error, EXPLAINED) and said:
        return said
    return (
        f"{type(error).__name__}{f': {said}' if said else ''}. This should have been found earlier, and explained "
        "better: please report it, with what ONWARD_TRACEBACK=1 shows"
    )


def replace_what_cannot_be_shown() -> None:
    """A terminal whose encoding is not UTF-8 shows ? for characters that it does not have."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def check_text(arguments: list[str]) -> None:
    """Refuses names that are not UTF-8, which could not be written into results, and empty values, such as an unset
    variable of the shell: as a path, they would be the current folder."""
    for before, argument in zip(arguments, arguments[1:], strict=False):
        if any("\ud800" <= letter <= "\udfff" for letter in argument):
            raise ValueError(f"{argument!r} is not UTF-8: give names and paths that are, or rename the file")
        if not argument or re.fullmatch("--[a-z-]+=", argument):
            if not argument and not before.startswith("--"):
                raise ValueError(f"the argument after {before!r} has an empty value: give a name or a path")
            raise ValueError(f"{argument[:-1] or before} has an empty value: give one, or leave it out")


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
