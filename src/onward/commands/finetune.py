"""`onward finetune`"""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .shared import Out, say, worded


class Split(StrEnum):
    validation = "validation"
    test = "test"


OF_SWEEPS = {
    rf"\b{name}=": f"--{name.replace('_', '-')} "
    for name in ("seeds", "epochs", "batch_size", "max_length", "train_examples", "overlap", "data", "split")
} | {
    r"\blearning_rates?=": "--learning-rates ",
    r"\bwith another name\b": "with another --name",
    r"\bsave_models=True\b": "--save-models",
}


OF_COMPARISONS = ("models", "margin", "compare", "out")


def finetune(
    context: typer.Context,
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL", help="A folder, a Hub name, or minilm-l6; with --compare, folders of sweeps."),
    ],
    task: Annotated[
        str | None, typer.Option(help="cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, squad or squad_v2.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="A folder with the task's files, or one file; without it, from the Hub.")
    ] = None,
    learning_rates: Annotated[str, typer.Option(help="One or more, with commas between them.")] = "2e-5,3e-5,5e-5",
    seeds: Annotated[int, typer.Option(help="Runs of each learning rate.")] = 3,
    epochs: Annotated[float, typer.Option(help="Times through the training examples.")] = 3,
    batch_size: int = 32,
    max_length: Annotated[int | None, typer.Option(help="Tokens; longer inputs are cut (128; SQuAD 384).")] = None,
    train_examples: Annotated[
        int | None, typer.Option(help="At most so many, the same for all runs and models (all).")
    ] = None,
    split: Annotated[Split, typer.Option(help="What models are scored on; it must have labels.")] = Split.validation,
    overlap: Annotated[
        int | None, typer.Option(help="SQuAD: tokens a window of a context repeats (a third of --max-length).")
    ] = None,
    group_by_length: Annotated[
        bool, typer.Option("--group-by-length", help="Batches of like length: faster, less random.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="What tables call the model (its folder's name).")] = None,
    margin: Annotated[
        float | None, typer.Option(help="How much better than no model a run must be not to have failed.")
    ] = None,
    save_models: Annotated[bool, typer.Option("--save-models", help="Also save every run's weights.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Join finished sweeps into one table.")] = False,
    out: Out = Path("runs/finetune"),
) -> None:
    """Fine-tune an encoder on a task of GLUE or on SQuAD, with several learning rates and seeds.

    Killed at any moment, the same command goes on; with more learning rates or seeds it runs only what is missing.
    """
    from ..finetuning import TASKS, FinetuningRecipe, sweep
    from ..finetuning import compare as join
    from ..finetuning.report import markdown

    if margin is not None and math.isnan(margin):
        raise ValueError(f"--margin {margin}: give a number, such as 0.02")
    if compare:
        refuse_options(context)
        with worded(OF_SWEEPS):
            sweeps = join(models, out, margin)
        say(f"{markdown(sweeps, margin)}\ntable.md, results.json and scores.svg are in {out}")
        return
    if len(models) > 1:
        raise ValueError(f"{len(models)} models are given ({', '.join(models)}): fine-tune one after the other")
    if task is None:
        raise ValueError(f"--task is missing: choose one of {', '.join(TASKS)}")
    with worded(OF_SWEEPS):
        recipe = FinetuningRecipe(
            epochs=epochs,
            batch_size=batch_size,
            max_length=max_length,
            train_examples=train_examples,
            overlap=overlap,
            group_by_length=group_by_length,
        )
        found = sweep(
            models[0],
            task,
            out,
            learning_rates=numbers(learning_rates),
            seeds=seeds,
            recipe=recipe,
            data=data,
            split=split.value,
            name=name,
            margin=margin,
            save_models=save_models,
        )
    say(f"{markdown([found], margin)}\ntable.md, results.json and scores.svg are in {out}")


def refuse_options(context: typer.Context) -> None:
    """What would be ignored must not pass in silence."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in OF_COMPARISONS and source is not None and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} is for runs, and --compare only joins what has run: leave {option} out")


def numbers(text: str) -> list[float]:
    try:
        return [float(number) for number in text.split(",") if number.strip()]
    except ValueError:
        raise ValueError(f"--learning-rates {text}: write numbers with commas between them, as 1e-5,2e-5") from None
