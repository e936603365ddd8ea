"""The command line: verbs are functions, and each says what it made and where."""

from __future__ import annotations

import os
import sys

import typer
from rich.console import Console

from .commands.demo import demo
from .commands.embed import embed
from .commands.evaluate import evaluate
from .commands.finetune import finetune
from .commands.generate import generate
from .commands.inspect import inspect
from .commands.shared import load_model
from .commands.study import study
from .commands.train import train
from .commands.vocabulary import vocabulary

__all__ = ["app", "load_model", "main", "spread_numbers"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Recurrence for Transformers: read, train and write documents of any length.",
)
for verb in (train, evaluate, generate, embed, inspect, finetune, study, vocabulary, demo):
    app.command()(verb)


def main() -> None:
    """Runs a verb; what goes wrong is one sentence, not a page of Python (that is for ONWARD_TRACEBACK=1)."""
    sys.argv[1:] = spread_numbers(sys.argv[1:], "--overlap")
    try:
        app()
    except (ValueError, TypeError, OSError, RuntimeError, ArithmeticError, ImportError) as error:
        if os.environ.get("ONWARD_TRACEBACK"):
            raise
        Console(stderr=True, emoji=False).print(f"onward: {error}", markup=False, highlight=False, soft_wrap=True)
        raise SystemExit(1) from None


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
