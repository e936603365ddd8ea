"""What verbs have in common: their first arguments, and how a model is found by its name."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

console = Console()

Model = Annotated[str, typer.Argument(help="A folder, a Hub name, or a packaged one: smollm2-135m, minilm-l6.")]
CorpusName = Annotated[
    str, typer.Option("--corpus", help="shakespeare, pg19, wikitext-103, installed-code, hub:NAME, or a path.")
]
Out = Annotated[Path, typer.Option("--out", help="The folder that results go into.")]


def load_model(name: str, window: int | None = None, head: Any = None) -> tuple[Any, Any]:
    """A recurrent model and its tokenizer; a plain backbone is read in plain windows."""
    from transformers import AutoModelForCausalLM

    from .. import BlockRecurrentForCausalLM, add_recurrence
    from ..models.window_recurrent import WindowRecurrentModel
    from ..pretrained import load_backbone

    refuse_encoder(name)
    if is_preset(name):
        raise ValueError(f"{name} is a preset, not a trained model: train it with `onward train`, and give its folder")
    model, tokenizer = load_backbone(name, head or AutoModelForCausalLM)
    if not isinstance(model, (WindowRecurrentModel, BlockRecurrentForCausalLM)):
        if window is None:
            raise ValueError(f"{name} has no recurrence: say with --window in which windows to read it")
        model = add_recurrence(model, carrier="none", window=window)
    elif window is not None and window != model.config.window:
        raise ValueError(f"{name} has windows of its own, of {model.config.window} tokens: leave --window out")
    return on_device(model.eval()), tokenizer


def refuse_encoder(name: str) -> None:
    from ..pretrained import PACKAGED

    if name in PACKAGED and PACKAGED[name].is_encoder:
        raise ValueError(f"{name} is an encoder, and this verb is for language models: use `onward embed` with it")


def on_device(model: Any) -> Any:
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return model if accelerator is None else model.to(accelerator)


def is_preset(name: str) -> bool:
    """Whether this names a block-recurrent model to be made, as "Rec:fixed:skip" does; refuses misspelt ones."""
    from ..models.block_recurrent import PRESETS

    if name in PRESETS or ":" not in name or Path(name).exists():
        return name in PRESETS
    known = {preset.lower(): preset for preset in PRESETS}
    close = [known[match] for match in difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"choose one of {', '.join(PRESETS)}"
    raise ValueError(f"there is no preset {name!r}: {hint}")


def is_block_folder(name: str) -> bool:
    """Whether this is a folder that holds a block-recurrent model."""
    config = Path(name).expanduser() / "config.json"
    return config.is_file() and json.loads(config.read_text(encoding="utf-8")).get("model_type") == "block_recurrent"
