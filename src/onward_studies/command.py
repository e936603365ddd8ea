"""`onward study`: a table or figure of the papers, as one command."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from onward.commands.shared import Out, say
from onward.utils.fields import FieldError


class Scale(StrEnum):
    smoke = "smoke"
    laptop = "laptop"
    paper = "paper"


class Precision(StrEnum):
    fastest = "fastest"
    float32 = "float32"
    bfloat16 = "bfloat16"


BF16 = {Precision.fastest: None, Precision.float32: False, Precision.bfloat16: True}


def names_beginning(incomplete: str) -> list[str]:
    """For completion in a shell."""
    from . import ABOUT

    return [name for name in ABOUT if name.startswith(incomplete)]


def study(
    name: Annotated[
        str | None,
        typer.Argument(help="The study. Without it, all studies are listed.", autocompletion=names_beginning),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List all studies.")] = False,
    scale: Annotated[
        Scale, typer.Option(help="smoke: seconds; laptop: hours on two cores; paper: the papers' recipes.")
    ] = Scale.laptop,
    seeds: Annotated[int, typer.Option(help="Every run is repeated with this many seeds.")] = 3,
    corpus: Annotated[
        list[str] | None,
        typer.Option(help="Your own text: a name or a path; NAME=PATH if the study has several. Repeatable."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A size of the study. Repeatable.", metavar="NAME=VALUE")
    ] = None,
    precision: Annotated[
        Precision, typer.Option(help="For training. The fastest is bfloat16 if the hardware has instructions for it.")
    ] = Precision.fastest,
    only_report: Annotated[
        bool, typer.Option("--report", help="Run nothing: write the report of the runs that have ended.")
    ] = False,
    known: Annotated[
        list[Path] | None,
        typer.Option(help="The folder of a study whose finished runs are reused. Repeatable.", metavar="DIR"),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Run nothing: show how large models are, and what --gpus would take.")
    ] = False,
    gpus: Annotated[str, typer.Option(help="For --plan: how many and which, as 8xA100.")] = "8xA100",
    out: Out = Path("runs/studies"),
) -> None:
    """Reproduce a table or a figure of the papers: runs, tables, figures, and claims with their verdicts.

    Runs resume exactly: run the same command again. Started twice, the command works on two runs at once.
    """
    from . import ABOUT

    if name is None and not listed and (corpus or settings or known or only_report or plan):
        raise ValueError("the name of a study is missing: choose one that `onward study --list` shows")
    if name is None or listed:
        say("\n".join(f"{name:20} {about}" for name, about in ABOUT.items()))
        return
    from .engine.conducting import conduct, report

    if known and (only_report or plan):
        raise ValueError("--known is for runs, of which --report and --plan do none: leave one of them out")
    if plan and precision is not Precision.fastest:
        raise ValueError("--precision is for runs; --plan assumes bfloat16: leave one of them out")
    chosen = chosen_study(name)
    with options_named():
        setting = chosen.setting(scale.value, seeds, corpora(corpus or ()), sizes(settings or ()), BF16[precision])
        runs = chosen.runs(setting)
        if plan:
            from .engine.planning import caveats, table

            say("\n\n".join([table(runs, gpus).markdown(), *caveats(runs)]))
            return
    found = report(chosen, setting, out) if only_report else conduct(chosen, setting, out, known=known or ())
    folder = out / setting.scale / chosen.name
    say(f"{found.markdown()}\nreport.html, table.md, results.json and the figures are in {folder}")


@contextmanager
def options_named() -> Iterator[None]:
    """Errors of a field are told with its option: all fields but these are sizes."""
    try:
        yield
    except FieldError as error:
        if error.field in ("scale", "seeds", "gpus"):
            raise ValueError(f"--{error.field} {error.value}: {error.problem}") from error
        raise ValueError(f"--set {error.field}={error.value!r}: {error.problem}") from error


def chosen_study(name: str) -> Any:
    from . import STUDIES

    if name in STUDIES:
        return STUDIES[name]
    close = difflib.get_close_matches(name, STUDIES, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(STUDIES)}"
    raise ValueError(f"there is no study {name!r}: {hint}")


def corpora(given: Sequence[str]) -> dict[str, str]:
    """NAME=PATH, or a PATH alone."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, place = text.partition("=")
        name, place = (name, place) if equals else ("", text)
        if not place.strip():
            raise ValueError(f"--corpus {text}: no name or path is given: write it as {name or 'books'}=PATH")
        if name in found:
            raise ValueError(f"--corpus {text}: there are two for {name or 'the study'}: name them, as books=PATH")
        found[name] = place
    return found


def sizes(given: Sequence[str]) -> dict[str, Any]:
    from onward.commands.settings import parse_value

    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"--set {text}: write it as NAME=VALUE, for example --set tokens=1000000")
        found[name.strip()] = parse_value(text, value.strip())
    return found
