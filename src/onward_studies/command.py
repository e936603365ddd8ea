"""`onward study`"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from onward.commands.shared import Out, say


class Scale(StrEnum):
    smoke = "smoke"
    laptop = "laptop"
    paper = "paper"


class Precision(StrEnum):
    fastest = "fastest"
    float32 = "float32"
    bfloat16 = "bfloat16"


def study(
    name: Annotated[str | None, typer.Argument(help="Without it, all studies are listed.")] = None,
    scale: Annotated[Scale, typer.Option(help="Seconds; hours on two cores; the papers' recipes.")] = Scale.laptop,
    seeds: Annotated[int, typer.Option(help="Runs of everything that chance has a part in.")] = 3,
    corpus: Annotated[
        list[str] | None,
        typer.Option(help="Your own text: a name or a path; NAME=PATH where a study reads several. Again and again."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A size of the study, again and again.", metavar="NAME=VALUE")
    ] = None,
    precision: Annotated[
        Precision, typer.Option(help="Of trainings. The fastest is bfloat16 where there are instructions for it.")
    ] = Precision.fastest,
    only_report: Annotated[
        bool, typer.Option("--report", help="Run nothing: show what the runs that have ended come to.")
    ] = False,
    known: Annotated[
        list[Path] | None,
        typer.Option(
            help="What a study has left elsewhere: runs that ended there are not done again. Again and again.",
            metavar="DIR",
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Run nothing: how large models are, and what --gpus would take.")
    ] = False,
    gpus: Annotated[str, typer.Option(help="For --plan: how many and which, as 8xA100.")] = "8xA100",
    out: Out = Path("runs/studies"),
) -> None:
    """Reproduce a table or a figure of the papers: runs, a table, a picture and an honest sentence.

    Killed at any moment, the same command goes on; started twice, it works on two runs at once.
    """
    from . import LINES

    if name is None:
        say("\n".join(f"{name:20} {shows}" for name, (_, shows) in LINES.items()))
        return
    from .engine.study import conduct, report

    if known and (only_report or plan):
        raise ValueError("--known is for runs, of which --report and --plan do none: leave one of them out")
    chosen = chosen_study(name)
    setting = chosen.setting(scale.value, seeds, corpora(corpus or ()), sizes(settings or ()), IN_BF16[precision])
    if plan:
        if precision is not Precision.fastest:
            raise ValueError("--precision is for runs; --plan reckons with bfloat16: leave one of them out")
        from .engine.planning import left_out, table

        planned = chosen.runs(setting)
        say("\n\n".join([table(planned, gpus).markdown(), *left_out(planned)]))
        return
    found = report(chosen, setting, out) if only_report else conduct(chosen, setting, out, known=known or ())
    folder = out / setting.scale / chosen.name
    say(f"{found.markdown()}\nreport.html, table.md, results.json and the figures are in {folder}")


IN_BF16 = {Precision.fastest: None, Precision.float32: False, Precision.bfloat16: True}


def chosen_study(name: str) -> Any:
    import difflib

    from . import STUDIES

    if name in STUDIES:
        return STUDIES[name]
    close = difflib.get_close_matches(name, STUDIES, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(STUDIES)}"
    raise ValueError(f"there is no study {name!r}: {hint}")


def corpora(given: list[str] | tuple[str, ...]) -> dict[str, str]:
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


def sizes(given: list[str] | tuple[str, ...]) -> dict[str, Any]:
    from onward.commands.settings import parse_value

    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"--set {text}: write it as NAME=VALUE, for example --set tokens=1000000")
        found[name.strip()] = parse_value(text, value.strip())
    return found
