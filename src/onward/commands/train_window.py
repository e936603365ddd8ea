"""`onward train window`: a pretrained backbone gains recurrence, and its controls beside it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

import typer

from ..utils.fields import FieldError
from .options import option
from .shared import TextOptions, refuse_encoder, say
from .train import RecipeOptions, ResultOptions, of_training, recipe_of, require_kind, train_model

of_recurrence = partial(option, panel="Recurrence")
of_weights = partial(option, panel="What is trained")
RECIPE = RecipeOptions(
    optimizer="adamw",
    schedule="constant",
    warmup_steps=100,
    epochs=2,
    evaluate_every_tokens=2_000_000,
    gradient_checkpointing=True,
)


@dataclass(frozen=True)
class WindowOptions:
    """Fields of `WindowRecurrenceConfig`."""

    window: Annotated[int, of_recurrence("Tokens that the backbone sees at once.")] = 300
    overlap: Annotated[int, of_recurrence("Tokens that a window repeats from the one before.")] = 0
    carrier: Annotated[
        str,
        of_recurrence(
            "What is carried: matched (the tokens that each head needs most, and a few slots that stand for all "
            "others), selected (these tokens alone), recent (the last tokens), pooled (the paper's), spans (means), "
            "or the controls constant, none."
        ),
    ] = "matched"
    slots: Annotated[
        int | None,
        of_recurrence("Keys and values kept beside a window, but for pooled.", default="127, for spans 16"),
    ] = None
    sinks: Annotated[int, of_recurrence("How many of the slots are the document's first tokens.")] = 1
    score: Annotated[
        str, of_recurrence("How matched and selected choose tokens: attention, received or key_difference.")
    ] = "received"
    rank: Annotated[int, of_recurrence("The rank of what training learns about slots and spans.")] = 32
    vectors: Annotated[int | None, of_recurrence("For pooled: vectors inserted.", default="2, the paper's form 1")] = (
        None
    )
    history: Annotated[
        str | None,
        of_recurrence(
            "For spans: windows remembered, or spans kept of each, the last first, as 63,32.",
            default="as many as fill the slots",
        ),
    ] = None
    insert_at: Annotated[
        str | None, of_recurrence("A layer, counted from 1, several as 2,5,9, or all.", default="the carrier's own")
    ] = None
    residual: Annotated[
        bool, of_recurrence("For pooled: --no-residual is the paper's form.", "--residual/--no-residual")
    ] = True

    def fields(self) -> dict[str, Any]:
        """Those of a `WindowRecurrenceConfig`."""
        if self.vectors is not None and self.carrier == "spans":
            raise FieldError("vectors", self.vectors, f"it is for pooled; use --slots {self.vectors}")
        fields = asdict(self)
        if self.history is not None:
            meaning = "a number of windows, or spans of each as 63,32,16"
            fields["history"] = one_or_list("history", self.history, meaning)
        if self.insert_at not in (None, "all"):
            fields["insert_at"] = one_or_list("insert_at", self.insert_at, "a layer, several as 2,5,9, or all")
        return fields


@dataclass(frozen=True)
class WindowTraining:
    """Fields of `TrainingRecipe`."""

    train: Annotated[
        Literal["all", "carrier", "lora"], of_weights("Everything, the carrier alone, or the carrier and adapters.")
    ] = "all"
    lora_rank: Annotated[int, of_weights("The rank of the adapters, with --train lora.")] = 16
    learning_rate: Annotated[float | None, of_training("For the backbone.", default="5e-5, with --train lora 5e-4")] = (
        None
    )
    carrier_learning_rate: Annotated[float, of_training("For the carrier.")] = 1e-3
    batch_size: Annotated[int | None, of_training("Segments per step.", default="8")] = None
    tokens_per_step: Annotated[int | None, of_training("Instead of --batch-size.")] = None
    windows_per_segment: Annotated[int, of_training("Windows that a step back-propagates through.")] = 20
    teacher: Annotated[
        Literal["full-context"] | None,
        of_training("Also learn what the model predicts with its full context.", default="the next token alone"),
    ] = None
    teacher_share: Annotated[
        float | None, of_training("How much of the loss the teacher's part is.", default="0.5 with a teacher")
    ] = None


def window(
    model: Annotated[str, typer.Argument(help="A decoder: a folder, a name on the Hub, or smollm2-135m.")],
    texts: TextOptions,
    carried: WindowOptions,
    training: WindowTraining,
    results: ResultOptions,
    common: RecipeOptions = RECIPE,
    random_slots: Annotated[
        str | None,
        of_training("The least and the most slots in a step, as 16,512, drawn at random.", default="always --slots"),
    ] = None,
    with_controls: Annotated[
        bool,
        of_weights(
            "Also train plain windows, kept tokens of the same bytes, and a learned constant as the memory.",
            "--with-controls",
        ),
    ] = False,
) -> None:
    """Give a pretrained decoder a memory that goes from window to window.

    Runs resume exactly: run the same command again.

    Example: onward train window smollm2-135m --corpus my-books/ --carrier matched --window 128 --train lora
    """
    from .. import WindowRecurrenceConfig, add_recurrence
    from ..models.pretrained import load_backbone
    from ..training.folders import refuse_folders

    config = WindowRecurrenceConfig(**carried.fields())
    refuse_encoder(model)
    require_kind(model, "window-recurrent")
    if training.train == "lora" and training.learning_rate is None:
        training = replace(training, learning_rate=5e-4)  # adapters start at zero, and need a higher rate than weights
    recipe = recipe_of("window-recurrent", training, common)
    if random_slots is not None:
        sizes = one_or_list("random_slots", random_slots, "the least and the most, as 16,512")
        recipe = replace(recipe, random_slots=sizes)
    corpus, out = texts.load(), results.out
    configs = {out: config}
    names = names_of_controls(config, backbone_is_trained=training.train != "carrier") if with_controls else []
    refuse_folders([out, *(out / name for name in names)])  # before anything that takes time
    if names:
        configs |= {out / name: control for name, control in controls_of(model, config, names).items()}
    for folder, config in configs.items():
        backbone, tokenizer = load_backbone(model)
        make = partial(add_recurrence, backbone, config)
        name = f"{model} with the carrier {config.carrier}"
        train_model(name, make, corpus, tokenizer, recipe, replace(results, out=folder))


def names_of_controls(config: Any, *, backbone_is_trained: bool) -> list[str]:
    """The folders of the controls, in which `onward evaluate` finds them."""
    if config.carrier in ("constant", "none"):
        return []
    names = ["constant"]
    if backbone_is_trained:  # one that was not is its own plain control
        names.append("plain")
    if config.carrier != "recent":
        names.append("kept")
    return names


def controls_of(model: str, config: Any, names: list[str]) -> dict[str, Any]:
    """Configurations of the controls, by their folders."""
    from .. import add_recurrence
    from ..evaluation import kept_tokens
    from ..models.pretrained import load_backbone
    from ..models.window_recurrent.probe import UnsupportedBackboneError

    carriers = {"constant": "constant", "plain": "none"}
    controls = {name: config.with_carrier(carriers[name]) for name in names if name in carriers}
    if "kept" in names:
        backbone, _ = load_backbone(model)  # by which it is known how many tokens have as many bytes
        recurrent = add_recurrence(backbone, config)
        try:
            controls["kept"] = kept_tokens(recurrent).config.with_carrier("recent")
        except UnsupportedBackboneError as reason:
            say(f"without the control that keeps tokens: {reason}")
    return controls


def one_or_list(field: str, text: str, wanted: str) -> int | list[int]:
    """ "3" is a number, "63,32" a list, and "63," a list of one."""
    try:
        found = [int(part) for part in text.removesuffix(",").split(",")]
    except ValueError:
        raise FieldError(field, text, f"give {wanted}") from None
    return found if "," in text else found[0]
