"""What the commands of `onward train` share: options, the run, and what it prints."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from .options import option
from .shared import TRAINED_BY, Out, Seed, kind_of, say

of_training = partial(option, panel="Training")
of_memory = partial(option, panel="Memory use")
of_progress = partial(option, panel="Validation and checkpoints")


@dataclass(frozen=True)
class RecipeOptions:
    """Fields of `TrainingRecipe` that every kind of model has, with the defaults of pretraining."""

    optimizer: Annotated[str, of_training("adamw or adafactor.")]
    schedule: Annotated[str, of_training("constant, linear, cosine or inverse_sqrt.")]
    warmup_steps: Annotated[int, of_training("Steps of warm-up, at most half of all.")]
    epochs: Annotated[float, of_training("Passes over the corpus.")] = 1
    evaluate_every_tokens: Annotated[int, of_progress("Tokens between validations.", "--evaluate-every")] = 20_000_000
    gradient_checkpointing: Annotated[
        bool, of_memory("Store less for gradients, and compute more.", "--checkpointing/--no-checkpointing")
    ] = False
    max_tokens: Annotated[int | None, of_training("Stop after this many tokens.")] = None
    segments_at_once: Annotated[
        int | None, of_memory("Rows of a step processed together; fewer need less.", default="all")
    ] = None
    save_every_tokens: Annotated[
        int | None, of_progress("Tokens between further checkpoints.", "--save-every", default="every 10 minutes")
    ] = None
    seed: Seed = 0


@dataclass(frozen=True)
class ResultOptions:
    out: Out = Path("runs/train")
    tensorboard: Annotated[bool, of_progress("Log to TensorBoard.", "--tensorboard")] = False


DESCRIBED = {
    "window-recurrent": "a pretrained backbone",
    "block-recurrent": "a block-recurrent model",
    "masked": "a masked language model",
}


def require_kind(name: str, wanted: str) -> None:
    """Refuses a model that another command trains."""
    from ..models.pretrained import model_type_of

    refuse_recurrent(name)
    kind = kind_of(name)
    if kind == wanted:
        return
    if kind == "window-recurrent" and model_type_of(name) is None:
        raise ValueError(f"there is no model {name!r}: give a preset, or the folder of a trained model")
    raise ValueError(f"{name} is {DESCRIBED[kind]}: use `onward train {TRAINED_BY[kind]} {name}`")


def refuse_recurrent(name: str) -> None:
    from ..models.checking import MODEL_TYPE_PREFIX
    from ..models.pretrained import model_type_of

    if model_type_of(name) == f"{MODEL_TYPE_PREFIX}window_recurrent":
        raise ValueError(
            f"{name} has recurrence already, and `onward train window` gives it to plain backbones: name the backbone "
            "it was made from, or train it further in Python"
        )


def recipe_of(kind: str, *groups: Any) -> Any:
    """The recipe for a kind of model. Fields that are None keep the recipe's own default."""
    from ..training import TrainingRecipe

    values = {name: value for group in groups for name, value in asdict(group).items() if value is not None}
    if "batch_size" in values and "tokens_per_step" in values:
        raise ValueError("--batch-size and --tokens-per-step both set the size of a step: give one of them")
    return TrainingRecipe.preset(kind, **values)


def train_model(
    name: str, make: Callable[[], Any], corpus: Any, tokenizer: Any, recipe: Any, results: ResultOptions
) -> None:
    """Trains, and says what is trained, whether it had been before, and how good it is."""
    from transformers import set_seed

    from ..data.tokens import tokenize
    from ..training import train
    from ..training.folders import RESULT

    set_seed(recipe.seed)  # new models and carriers start from random numbers
    model = make()
    say(f"{name}, into {results.out}")
    had_ended = (results.out / RESULT).is_file()
    validation = tokenize(corpus.validation, tokenizer, corpus.validation_tokens)
    report_to = "tensorboard" if results.tensorboard else "none"
    result = train(model, corpus.train, validation, tokenizer, results.out, recipe, report_to=report_to)
    if had_ended:
        say("this run had already finished, and was only loaded: choose another --out for a new run")
    best = result.best_validation_loss
    say(
        f"{name}: best validation loss {best:.4f} nats/token ({best / math.log(2):.4f} bits/token), after step "
        f"{result.best_step} of {result.steps}; that model is saved in {results.out}"
    )
