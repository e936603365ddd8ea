"""What verbs share: options, checks of places, and how models are found by their names."""

from __future__ import annotations

import difflib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ..utils.fields import FieldError
from .options import option

if TYPE_CHECKING:
    from ..data import Corpus

console = Console(markup=False, highlight=False, emoji=False)  # names such as Rec:fixed:skip are shown as they are


def say(text: str) -> None:
    """A line, left whole so that a path in it can be copied."""
    console.print(text, soft_wrap=True)


def fill_package() -> None:
    """Imports `onward` in full. `onward_command` leaves the package empty, so that help needs no torch."""
    package = sys.modules["onward"]
    if not hasattr(package, "__version__"):
        assert package.__spec__ is not None and package.__spec__.loader is not None
        package.__spec__.loader.exec_module(package)


# --- places ----------------------------------------------------------------------------------------


def named_place(text: str | Path) -> Path:
    """An empty name, as a shell makes of an unset variable, would be the current folder."""
    if not str(text).strip():
        raise typer.BadParameter(f"{str(text)!r} names no folder: give one, or . for the current folder")
    return Path(text)


def usable_folder(out: Path) -> Path:
    """Checked first, so that a mistake does not surface when there are results to lose."""
    out = out.expanduser()
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file, and results go into a folder: choose another name")
    check_place(out)
    return out


def usable_file(out: Path) -> Path:
    out = out.expanduser()
    if out.is_dir():
        raise ValueError(f"--out {out} is a folder, and vectors go into a file: name one, as {out}/vectors.safetensors")
    check_place(out)
    return out


def check_place(out: Path) -> None:
    existing = next(place for place in (out, *out.absolute().parents) if place.exists())
    if existing != out and not existing.is_dir():
        raise ValueError(f"--out {out}: {existing} is a file, not a folder; choose another place")
    try:
        with TemporaryDirectory(dir=existing if existing.is_dir() else existing.parent):
            writable = os.access(existing, os.W_OK)
    except OSError:  # of places, such as /sys, that look writable and refuse all the same
        writable = False
    if not writable:
        raise ValueError(f"--out {out}: {existing} is not writable; choose another place, or change its permissions")


# --- options ---------------------------------------------------------------------------------------

Model = Annotated[str, typer.Argument(help="A folder, a name on the Hub, or packaged: smollm2-135m, minilm-l6.")]
Seed = Annotated[int, option("Seed of all random numbers.")]
Pattern = Annotated[
    str | None, option("Which files of a folder to use: '*.py', or '**/*.py' with sub-folders.", default=".txt, .jsonl")
]
Field = Annotated[str | None, option("The field that holds the text, in .jsonl and on the Hub.", default="text")]
Out = Annotated[
    Path, option("The folder for results.", "--out", parser=named_place, metavar="PATH", callback=usable_folder)
]
NAMES = "A file, a folder, hub:NAME, shakespeare, pg19, wikitext-103 or installed-code."


@dataclass(frozen=True)
class TextOptions:
    corpus: Annotated[str, option(NAMES)] = "shakespeare"
    pattern: Pattern = None
    field: Field = None

    def load(self) -> Corpus:
        from ..data import load_corpus

        refuse_pattern_of_file(self.corpus, self.pattern)
        options = {"pattern": self.pattern, "field": self.field}
        return load_corpus(self.corpus, **{name: value for name, value in options.items() if value is not None})


# --- texts -----------------------------------------------------------------------------------------


def refuse_pattern_of_file(name: str, pattern: str | None) -> None:
    if pattern is not None and Path(name).expanduser().is_file():
        raise FieldError("pattern", pattern, f"it chooses files of a folder, and {name} is a file; leave it out")


def read_text(file: Path, option: str) -> str:
    """`option` is the one that names the file."""
    from ..data import files

    file = file.expanduser()
    if file.is_dir():
        raise ValueError(f"{option} {file} is a folder: give a text file")
    if not file.exists():
        raise ValueError(f"{option} {file}: there is no such file; check the path")
    try:
        return files.read_text(file)
    except (ValueError, OSError) as error:
        raise ValueError(f"{option} {error}") from error


# --- models ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MemoryOptions:
    """Of a model that is loaded: a plain backbone gets a memory, which needs no training."""

    window: Annotated[int | None, option("For a plain backbone: tokens per window.", default="a saved model's own")] = (
        None
    )
    carrier: Annotated[
        str | None,
        option("For a plain backbone: what is carried; none for plain windows.", default="matched, or a saved model's"),
    ] = None
    slots: Annotated[
        int | None, option("Keys and values per head in front of each window.", default="127, or a saved model's")
    ] = None

    def load(self, name: str) -> tuple[Any, Any]:
        return load_model(name, self.window, self.carrier, self.slots)


def load_model(
    name: str, window: int | None = None, carrier: str | None = None, slots: int | None = None
) -> tuple[Any, Any]:
    """A recurrent model and its tokenizer. A plain backbone gets a memory, `matched` unless another is named."""
    from transformers import AutoModelForCausalLM

    from .. import BlockRecurrentForCausalLM, add_recurrence
    from ..models.pretrained import load_backbone
    from ..models.window_recurrent import WindowRecurrentModel
    from ..training.results import FILES_TO_LOAD, refuse_damaged

    refuse_encoder(name)
    kind = kind_of(name)
    if is_preset(name):
        raise ValueError(
            f"{name} is a preset, not a trained model: train it with `onward train {TRAINED_BY[kind]} {name}`, and "
            "give its folder"
        )
    if kind == "masked":
        raise ValueError(
            f"{name} is a masked language model, and this command is for models that predict the next token: use it in "
            "transformers' fill-mask pipeline, or `onward finetune`"
        )
    refuse_damaged(Path(name).expanduser(), "put a copy of it back, or train the model again", FILES_TO_LOAD)
    model, tokenizer = load_backbone(name, AutoModelForCausalLM)
    if not isinstance(model, (WindowRecurrentModel, BlockRecurrentForCausalLM)):
        if window is None:
            raise ValueError(f"{name} has no recurrence: set the size of its windows with --window")
        chosen = "matched" if carrier is None else carrier
        model = add_recurrence(model, carrier=chosen, window=window, slots=slots)
    elif window is not None and window != model.config.window:
        raise ValueError(f"{name} has windows of its own, of {model.config.window} tokens: leave --window out")
    elif isinstance(model, BlockRecurrentForCausalLM):
        if (carrier, slots) != (None, None):
            own = "is block-recurrent, and carries states of its own"
            raise ValueError(f"{name} {own}: leave --carrier and --slots out")
    elif carrier is not None and carrier != model.config.carrier:
        raise FieldError("carrier", carrier, f"{name} has a memory of its own, {model.config.carrier}; leave it out")
    elif slots is not None:
        model.set_slots(slots)
    return on_device(model.eval()), tokenizer


def refuse_encoder(name: str) -> None:
    from ..data.packaged import PACKAGED

    if name in PACKAGED and PACKAGED[name].is_encoder:
        raise ValueError(f"{name} is an encoder, and this command is for language models: use `onward embed {name}`")


def on_device(model: Any) -> Any:
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return model if accelerator is None else model.to(accelerator)


KIND_OF_TYPE = {"block_recurrent": "block-recurrent", "bert": "masked", "recurrent_bert": "masked"}
TRAINED_BY = {"window-recurrent": "window", "block-recurrent": "block", "masked": "masked"}


def kind_of(name: str) -> str:
    """The kind of a preset, or of a model in a folder or on the Hub: one of `TRAINED_BY`."""
    from ..models.checking import MODEL_TYPE_PREFIX
    from ..models.pretrained import model_type_of

    if is_preset(name):
        return "masked" if name.startswith(("bert:", UPCYCLED)) else "block-recurrent"
    return KIND_OF_TYPE.get((model_type_of(name) or "").removeprefix(MODEL_TYPE_PREFIX), "window-recurrent")


UPCYCLED = "recurrent-bert:"


def is_preset(name: str) -> bool:
    """Whether this names a model to be made, as "Rec:fixed:skip" and "bert:base" do. Refuses misspelt presets."""
    from ..models import block_recurrent, recurrent_bert

    presets = (*block_recurrent.PRESETS, *recurrent_bert.PRESETS)
    if name in presets or ":" not in name or Path(name).exists():
        return name in presets
    if name.startswith(UPCYCLED) and len(name) > len(UPCYCLED):
        return True
    known = {preset.lower(): preset for preset in presets}
    close = [known[match] for match in difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"choose one of {', '.join(presets)}"
    raise ValueError(f"there is no preset {name!r}: {hint}")
