"""What verbs have in common: their first arguments, and how models and texts are found by their names."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console

console = Console(markup=False, highlight=False, emoji=False)  # names such as Rec:fixed:skip are shown as they are


def say(text: str) -> None:
    """A line, left whole so that a path in it can be copied."""
    console.print(text, soft_wrap=True)


# --- options ---------------------------------------------------------------------------------------


def named_place(text: str | Path) -> Path:
    """Nothing, as a shell makes of a variable that is not set, would be the folder that one happens to be in."""
    if not str(text).strip():
        raise typer.BadParameter(f"{str(text)!r} names no folder: give one, or . for the one that you are in")
    return Path(text)


def usable_folder(out: Path) -> Path:
    """Known before anything long runs, rather than when there are results to lose."""
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
    there = next(place for place in (out, *out.absolute().parents) if place.exists())
    if there != out and not there.is_dir():
        raise ValueError(f"--out {out}: {there} is a file, not a folder; choose another place")
    if not os.access(there, os.W_OK) or not _takes_folders(there if there.is_dir() else there.parent):
        raise ValueError(f"--out {out}: {there} may not be written to; choose another place, or change its permissions")


def _takes_folders(place: Path) -> bool:
    """Some places, such as /sys, have the permission and refuse all the same."""
    try:
        with TemporaryDirectory(dir=place):
            return True
    except OSError:
        return False


Model = Annotated[str, typer.Argument(help="A folder, a Hub name, or a packaged one: smollm2-135m, minilm-l6.")]
CorpusName = Annotated[
    str, typer.Option("--corpus", help="shakespeare, pg19, wikitext-103, installed-code, hub:NAME, or a path.")
]
Pattern = Annotated[
    str | None, typer.Option("--pattern", help="Of a folder: its files, as '*.py', or '**/*.py' with sub-folders.")
]
Field = Annotated[str | None, typer.Option("--field", help="Of .jsonl or hub:NAME: what holds the text (text).")]
Out = Annotated[
    Path,
    typer.Option(
        "--out", help="The folder that results go into.", parser=named_place, metavar="PATH", callback=usable_folder
    ),
]


# --- texts -----------------------------------------------------------------------------------------

OF_CORPORA = {
    r"\b(pattern|field)=": r"--\1 ",
    r"has no option '(\w+)': it knows .*": r"has no --\1: leave it out",
    r"source= for pg19 and wikitext-103": "pg19:FOLDER and wikitext-103:FOLDER",
}


def load_texts(corpus: str, pattern: str | None = None, field: str | None = None) -> Any:
    from ..data import load_corpus

    refuse_pattern_of_file(corpus, pattern)
    options = {"pattern": pattern, "field": field}
    with worded(OF_CORPORA):
        return load_corpus(corpus, **{name: value for name, value in options.items() if value is not None})


def documents_in(path: Path, pattern: str | None = None, field: str | None = None) -> Any:
    from ..data import load_documents

    refuse_pattern_of_file(str(path), pattern)
    with worded(OF_CORPORA):
        return load_documents(path, field, pattern)


def refuse_pattern_of_file(name: str, pattern: str | None) -> None:
    if pattern is not None and Path(name).expanduser().is_file():
        raise ValueError(f"--pattern {pattern} chooses files of a folder, and {name} is a file: leave it out")


def read_text(file: Path, option: str) -> str:
    from ..data import files

    file = file.expanduser()
    if file.is_dir():
        raise ValueError(f"{option} {file} is a folder: give a text file")
    if not file.exists():
        raise ValueError(f"{option} {file}: there is no such file; check the path")
    with worded({"^": f"{option} "}):
        return files.read_text(file)


@contextmanager
def worded(replacements: Mapping[str, str]) -> Iterator[None]:
    """What Python calls `pattern='*.py'` is here `--pattern '*.py'`: errors are told in words of the command line."""
    try:
        yield
    except (ValueError, OSError) as error:
        if len(error.args) == 1:
            text = str(error)
            for pattern, words in replacements.items():
                text = re.sub(pattern, words, text)
            error.args = (text.strip(),)
        raise


# --- models ----------------------------------------------------------------------------------------


def load_model(name: str, window: int | None = None, head: Any = None) -> tuple[Any, Any]:
    """A recurrent model and its tokenizer; a plain backbone is read in plain windows."""
    from transformers import AutoModelForCausalLM

    from .. import BlockRecurrentForCausalLM, add_recurrence
    from ..models.pretrained import load_backbone
    from ..models.window_recurrent import WindowRecurrentModel
    from ..training.results import LOADED, refuse_damaged

    refuse_encoder(name)
    if is_preset(name):
        raise ValueError(f"{name} is a preset, not a trained model: train it with `onward train`, and give its folder")
    if kind_of(name) == "masked":
        raise ValueError(
            f"{name} is a masked language model, and this verb is for those that predict the next token: use it in "
            "transformers' fill-mask pipeline, or `onward finetune`"
        )
    refuse_damaged(Path(name).expanduser(), "put a copy of it back, or train the model again", LOADED)
    model, tokenizer = load_backbone(name, head or AutoModelForCausalLM)
    if not isinstance(model, (WindowRecurrentModel, BlockRecurrentForCausalLM)):
        if window is None:
            raise ValueError(f"{name} has no recurrence: say with --window in which windows to read it")
        model = add_recurrence(model, carrier="none", window=window)
    elif window is not None and window != model.config.window:
        raise ValueError(f"{name} has windows of its own, of {model.config.window} tokens: leave --window out")
    return on_device(model.eval()), tokenizer


def refuse_encoder(name: str) -> None:
    from ..data.packaged import PACKAGED

    if name in PACKAGED and PACKAGED[name].is_encoder:
        raise ValueError(f"{name} is an encoder, and this verb is for language models: use `onward embed` with it")


def on_device(model: Any) -> Any:
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return model if accelerator is None else model.to(accelerator)


OF_MODEL_TYPES = {"block_recurrent": "block-recurrent", "bert": "masked", "recurrent_bert": "masked"}


def kind_of(name: str) -> str:
    """ "block-recurrent", "masked" or "window-recurrent": what a preset names, or a folder or the Hub holds."""
    from ..models.checking import OURS
    from ..models.pretrained import model_type_of

    if is_preset(name):
        return "masked" if name.startswith(("bert:", "recurrent-bert:")) else "block-recurrent"
    return OF_MODEL_TYPES.get((model_type_of(name) or "").removeprefix(OURS), "window-recurrent")


def is_preset(name: str) -> bool:
    """Whether this names a model to be made, as "Rec:fixed:skip" and "bert:base" do; refuses misspelt ones."""
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


UPCYCLED = "recurrent-bert:"
"""And then a folder, or a name on the Hub: a recurrent BERT that starts from what that BERT has learned."""
