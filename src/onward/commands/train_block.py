"""`onward train block`: a block-recurrent model, from a preset or trained further."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from .preset_models import Settings, of_model, plan
from .settings import parse_settings
from .shared import TextOptions
from .train import RecipeOptions, ResultOptions, of_training, recipe_of, require_kind, train_model

RECIPE = RecipeOptions(optimizer="adafactor", schedule="inverse_sqrt", warmup_steps=1000)


@dataclass(frozen=True)
class BlockModel:
    tokenizer: Annotated[str | None, of_model("For a preset: bytes, a folder, or a name on the Hub.")] = None
    window: Annotated[int | None, of_model("Tokens per block.", default="512")] = None
    settings: Settings = None


@dataclass(frozen=True)
class BlockTraining:
    """Fields of `TrainingRecipe`."""

    tokens_per_step: Annotated[int | None, of_training("A multiple of a segment's tokens.", default="131072")] = None
    batch_size: Annotated[int | None, of_training("Lanes per step, instead of --tokens-per-step.")] = None
    learning_rate: Annotated[
        float | None, of_training("Relative to a parameter's size with adafactor.", default="1.0, with adamw 0.05")
    ] = None


def block(
    model: Annotated[str, typer.Argument(help="A preset such as Rec:fixed:skip, or a folder to train further.")],
    texts: TextOptions,
    source: BlockModel,
    training: BlockTraining,
    results: ResultOptions,
    common: RecipeOptions = RECIPE,
) -> None:
    """Train a block-recurrent language model whose state follows documents of any length.

    Runs resume exactly: run the same command again.

    Example: onward train block Rec:fixed:skip --corpus my-books/ --tokenizer bytes --set num_hidden_layers=6
    """
    from .. import BlockRecurrentConfig

    require_kind(model, "block-recurrent")
    recipe = recipe_of("block-recurrent", training, common)
    fields = parse_settings(source.settings or (), BlockRecurrentConfig)
    if source.window is not None:
        if "window" in fields:
            raise ValueError("--window and --set window both set how long a window is: give one of them")
        fields["window"] = source.window
    make, tokenizer = plan(model, source.tokenizer, fields, results.out)
    train_model(model, make, texts.load(), tokenizer, recipe, results)
