"""`onward train masked`: a BERT or a recurrent BERT, from a preset, upcycled, or trained further."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from .preset_models import Settings, of_model, plan
from .settings import parse_settings
from .shared import TextOptions
from .train import RecipeOptions, ResultOptions, of_training, recipe_of, require_kind, train_model

RECIPE = RecipeOptions(optimizer="adamw", schedule="linear", warmup_steps=10_000)
SOURCES = (
    "bert:base, recurrent-bert:base, or either with :large; a folder to train further; or recurrent-bert:NAME, which "
    "starts from the weights of the BERT of that name."
)


@dataclass(frozen=True)
class MaskedModel:
    tokenizer: Annotated[str | None, of_model("For a preset: a folder or a name on the Hub; with a mask token.")] = None
    settings: Settings = None


@dataclass(frozen=True)
class MaskedTraining:
    """Fields of `TrainingRecipe`."""

    sequence_length: Annotated[
        int | None, of_training("Tokens per row.", "--window", default="all positions of the model")
    ] = None
    masked_share: Annotated[float, of_training("The share of tokens that are masked.")] = 0.15
    whole_words: Annotated[bool, of_training("Mask all pieces of a word, or none.", "--whole-words")] = False
    batch_size: Annotated[int | None, of_training("Rows per step.", default="256")] = None
    tokens_per_step: Annotated[int | None, of_training("Instead of --batch-size.")] = None
    learning_rate: Annotated[
        float | None, of_training("The highest, after warm-up.", default="1e-4, with adafactor 0.01")
    ] = None


def masked(
    model: Annotated[str, typer.Argument(help=SOURCES)],
    texts: TextOptions,
    source: MaskedModel,
    training: MaskedTraining,
    results: ResultOptions,
    common: RecipeOptions = RECIPE,
) -> None:
    """Pretrain an encoder: BERT, or BERT with a recurrence in every layer.

    Runs resume exactly: run the same command again.

    Example: onward train masked recurrent-bert:base --corpus my-texts/ --tokenizer runs/pieces
    """
    from .. import RecurrentBertConfig

    require_kind(model, "masked")
    recipe = recipe_of("masked", training, common)
    fields = parse_settings(source.settings or (), RecurrentBertConfig)
    make, tokenizer = plan(model, source.tokenizer, fields, results.out)
    train_model(model, make, texts.load(), tokenizer, recipe, results)
