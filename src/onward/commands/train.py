"""`onward train`: a backbone with recurrence, or a model of its own from its first weights on."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from .shared import CorpusName, Field, Out, Pattern, kind_of, say, worded


class Trained(StrEnum):
    everything = "all"
    carrier = "carrier"
    lora = "lora"


def of_windows(*names: str, help: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Only for window-recurrent models")


def of_presets(*names: str, help: str, **more: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Only for block-recurrent and masked models", **more)


def of_masks(*names: str, help: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="Only for masked language models")


WINDOW_OPTIONS = {
    "carrier": "--carrier",
    "overlap": "--overlap",
    "vectors": "--vectors",
    "history": "--history",
    "insert_at": "--insert-at",
    "trained": "--train",
    "windows_per_segment": "--windows-per-segment",
    "carrier_learning_rate": "--carrier-learning-rate",
    "residual": "--residual",
    "lora_rank": "--lora-rank",
    "with_controls": "--with-controls",
}
PRESET_OPTIONS = {"tokenizer": "--tokenizer", "settings": "--set"}
MASK_OPTIONS = {"masked_share": "--masked-share", "whole_words": "--whole-words"}

Source = Annotated[
    str,
    typer.Argument(
        help="A backbone that gains recurrence (a folder, a Hub name, smollm2-135m); a block-recurrent model: a preset "
        "such as Rec:fixed:skip, or a folder to train on; or a masked one: bert:base, recurrent-bert:base, a folder, "
        "or recurrent-bert:NAME, which starts from the BERT of that name.",
    ),
]


def train(
    model: Source,
    corpus: CorpusName = "shakespeare",
    pattern: Pattern = None,
    field: Field = None,
    out: Out = Path("runs/train"),
    window: Annotated[int | None, typer.Option(help="Tokens seen at once (300; 512; all positions).")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Segments, lanes or rows in a step (8; ; 256).")] = None,
    tokens_per_step: Annotated[int | None, typer.Option(help="Instead of --batch-size (; 131072).")] = None,
    segments_at_once: Annotated[int | None, typer.Option(help="Of a step's segments; fewer need less.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="adamw or adafactor (adamw; adafactor; adamw).")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="(5e-5, adapters 5e-4; 1.0, adamw 0.05; 1e-4, adafactor 0.01)")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="constant, linear, cosine, inverse_sqrt (constant; inverse_sqrt; linear).")
    ] = None,
    warmup_steps: Annotated[int | None, typer.Option(help="At most half of all steps (100; 1000; 10000).")] = None,
    epochs: Annotated[float | None, typer.Option(help="Times through the corpus (2; 1; 1).")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Stop after so many tokens.")] = None,
    evaluate_every: Annotated[int | None, typer.Option(help="Tokens between validations (2e6; 2e7; 2e7).")] = None,
    save_every: Annotated[int | None, typer.Option(help="Tokens between checkpoints; as validations.")] = None,
    checkpointing: Annotated[
        bool | None,
        typer.Option("--checkpointing/--no-checkpointing", help="Keep less for gradients, compute more (yes; no; no)."),
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Log to tensorboard.")] = False,
    seed: int = 0,
    carrier: Annotated[
        str | None, of_windows(help="What is carried: spans, pooled, constant or none (pooled).")
    ] = None,
    overlap: Annotated[int | None, of_windows(help="Tokens a window repeats from the one before (0).")] = None,
    vectors: Annotated[int | None, of_windows(help="How many vectors are inserted.")] = None,
    history: Annotated[
        str | None, of_windows(help="Windows `spans` remembers (1); or spans of each, the last first: 63,32 or 63,")
    ] = None,
    insert_at: Annotated[str | None, of_windows(help="A layer from 1, several as 2,5,9, or all.")] = None,
    trained: Annotated[Trained | None, of_windows("--train", help="Which weights are trained (all).")] = None,
    windows_per_segment: Annotated[int | None, of_windows(help="Windows that one step goes back through (20).")] = None,
    carrier_learning_rate: Annotated[float | None, of_windows(help="Of the carrier (1e-3).")] = None,
    residual: Annotated[
        bool | None,
        of_windows("--residual/--no-residual", help="Without it `pooled` is the paper's to the letter (yes)."),
    ] = None,
    lora_rank: Annotated[int | None, of_windows(help="Of the adapters, with --train lora (16).")] = None,
    with_controls: Annotated[
        bool | None, of_windows("--with-controls", help="Also train plain windows, and a constant for a memory.")
    ] = None,
    tokenizer: Annotated[str | None, of_presets(help="Of a preset: bytes, a folder, or a Hub name.")] = None,
    settings: Annotated[
        list[str] | None,
        of_presets("--set", help="Any field of the configuration, again and again.", metavar="FIELD=VALUE"),
    ] = None,
    masked_share: Annotated[float | None, of_masks(help="How many of the tokens are hidden (0.15).")] = None,
    whole_words: Annotated[bool | None, of_masks("--whole-words", help="Hide all pieces of a word, or none.")] = None,
) -> None:
    """Train a model with recurrence. Killed at any moment, the same command goes on from there.

    In brackets stand the defaults: for window-recurrent models; for block-recurrent ones; for masked ones.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    from .train_presets import train_presets
    from .train_windows import train_windows

    if batch_size is not None and tokens_per_step is not None:
        raise ValueError("--batch-size and --tokens-per-step both say how large a step is: give one of them")
    kind = given["kind"] = kind_of(model)
    if kind != "masked":
        refuse(given, MASK_OPTIONS, f"is for masked language models, and {model} is none")
    if kind == "window-recurrent":
        refuse(given, PRESET_OPTIONS, f"is for models from presets, and {model} is a backbone that has its own")
        train_windows(given)
    else:
        refuse(given, WINDOW_OPTIONS, f"is for window-recurrent models, and {model} is {kind}")
        train_presets(given)


def refuse(given: dict[str, Any], options: dict[str, str], reason: str) -> None:
    """What would be ignored must not pass in silence."""
    for name, option in options.items():
        if name in given:
            raise ValueError(f"{option} {reason}: leave it out")


# --- what both kinds make of it --------------------------------------------------------------------

RECIPE = {
    "batch_size": "batch_size",
    "tokens_per_step": "tokens_per_step",
    "segments_at_once": "segments_at_once",
    "optimizer": "optimizer",
    "learning_rate": "learning_rate",
    "schedule": "schedule",
    "warmup_steps": "warmup_steps",
    "epochs": "epochs",
    "max_tokens": "max_tokens",
    "evaluate_every": "evaluate_every_tokens",
    "save_every": "save_every_tokens",
    "checkpointing": "gradient_checkpointing",
    "seed": "seed",
    "trained": "train",
    "windows_per_segment": "windows_per_segment",
    "carrier_learning_rate": "carrier_learning_rate",
    "lora_rank": "lora_rank",
    "masked_share": "masked_share",
    "whole_words": "whole_words",
}
OF_MASKED = {"window": "sequence_length"}


OF_RECIPES = {
    rf"\b{field}=": f"--{name.replace('_', '-')} " for name, field in (RECIPE | OF_MASKED).items() if name != "trained"
} | {
    r"lanes=(\d+): (\d+) of them": r"\1 lanes, the rows of a step, are too many: \2 of them",
    r"use at most (\d+) lanes, or more epochs": r"use --batch-size \1 or less (instead of --tokens-per-step), or more "
    r"--epochs",
}


def recipe_of(kind: str, given: dict[str, Any]) -> Any:
    from ..training import TrainingRecipe

    named = RECIPE | OF_MASKED if kind == "masked" else RECIPE
    values = {field: given[name] for name, field in named.items() if name in given}
    with worded(OF_RECIPES):
        return TrainingRecipe.preset(kind, **{k: str(v) if isinstance(v, Trained) else v for k, v in values.items()})


def run(name: str, model: Any, texts: Any, tokenizer: Any, folder: Path, recipe: Any, given: dict[str, Any]) -> None:
    """Trains, and says what is trained, whether it had been before, and how good it is."""
    from ..data.tokens import tokenize
    from ..training import train as run
    from ..training.folders import RESULT

    say(f"{name}, into {folder}")
    had_ended = (folder / RESULT).is_file()
    with worded(OF_RECIPES):
        result = run(
            model,
            texts.train,
            tokenize(texts.validation, tokenizer, texts.validation_tokens),
            tokenizer,
            folder,
            recipe,
            report_to="tensorboard" if given["tensorboard"] else "none",
        )
    if had_ended:
        say("this run had already finished, and was only loaded: for another choose another --out")
    best = result.best_validation_loss
    say(
        f"{name}: best validation loss {best:.4f} nats/token ({best / math.log(2):.4f} bits/token), after step "
        f"{result.best_step} of {result.steps}; that model is saved in {folder}"
    )
