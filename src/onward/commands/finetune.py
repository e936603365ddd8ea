"""`onward finetune`: an encoder on GLUE or SQuAD, over learning rates and seeds."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..utils.fields import FieldError
from .options import option
from .shared import Out, say

OPTIONS_OF_COMPARISONS = ("models", "margin", "compare", "out")


@dataclass(frozen=True)
class TuningOptions:
    """Fields of `FinetuningRecipe`."""

    epochs: Annotated[float, option("Passes over the training examples.")] = 3
    batch_size: Annotated[int, option("Examples per step.")] = 32
    max_length: Annotated[int | None, option("Tokens; longer inputs are cut.", default="128, for SQuAD 384")] = None
    train_examples: Annotated[int | None, option("Train on this many, the same for all runs.", default="all")] = None
    overlap: Annotated[
        int | None, option("For SQuAD: tokens that windows share.", default="a third of --max-length")
    ] = None
    group_by_length: Annotated[
        bool, option("Batches of similar lengths: faster, less random.", "--group-by-length")
    ] = False


RECIPE = TuningOptions()


def finetune(
    context: typer.Context,
    models: Annotated[
        list[str],
        typer.Argument(metavar="model", help="A folder, a name on the Hub, or minilm-l6; with --compare, sweeps."),
    ],
    task: Annotated[str | None, option("cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, squad or squad_v2.")] = None,
    data: Annotated[Path | None, option("A folder with the task's files, or one file.", default="from the Hub")] = None,
    learning_rates: Annotated[str, option("One or more, separated by commas.")] = "2e-5,3e-5,5e-5",
    seeds: Annotated[int, option("Runs for each learning rate.")] = 3,
    split: Annotated[Literal["validation", "test"], option("The labelled part to score on.")] = "validation",
    name: Annotated[str | None, option("The model's name in tables.", default="its folder's name")] = None,
    margin: Annotated[float | None, option("A run has failed unless it beats a guess by this much.")] = None,
    save_models: Annotated[bool, option("Also save every run's weights.", "--save-models")] = False,
    recipe: TuningOptions = RECIPE,
    compare: Annotated[bool, option("Join finished sweeps into one table.", "--compare")] = False,
    out: Out = Path("runs/finetune"),
) -> None:
    """Score an encoder on a GLUE task or SQuAD, over several learning rates and seeds.

    Runs resume exactly: run the same command again. With more learning rates or seeds, only the missing runs are done.

    Example: onward finetune runs/masked --task rte --learning-rates 1e-5,3e-5 --seeds 5
    """
    from ..finetuning import TASKS, FinetuningRecipe, sweep
    from ..finetuning import compare as join
    from ..finetuning.report import markdown

    if margin is not None and math.isnan(margin):
        raise FieldError("margin", margin, "give a number, such as 0.02")
    if compare:
        refuse_options(context)
        sweeps = join(models, out, margin)
    elif len(models) > 1:
        raise ValueError(f"{len(models)} models are given ({', '.join(models)}): fine-tune one after the other")
    elif task is None:
        raise ValueError(f"--task is missing: choose one of {', '.join(TASKS)}")
    else:
        found = sweep(
            models[0],
            task,
            out,
            learning_rates=numbers(learning_rates),
            seeds=seeds,
            recipe=FinetuningRecipe(**asdict(recipe)),
            data=data,
            split=split,
            name=name,
            margin=margin,
            save_models=save_models,
        )
        sweeps = [found]
    say(f"{markdown(sweeps, margin)}\ntable.md, results.json and scores.svg are in {out}")


def refuse_options(context: typer.Context) -> None:
    """Refuses options that --compare would ignore."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in OPTIONS_OF_COMPARISONS and source is not None and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} is for runs, and --compare only joins finished ones: leave {option} out")


def numbers(text: str) -> list[float]:
    try:
        return [float(number) for number in text.split(",") if number.strip()]
    except ValueError:
        raise FieldError("learning_rates", text, "write numbers with commas between them, as 1e-5,2e-5") from None
