"""`onward embed`: vectors of documents of any length."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .options import option
from .shared import Field, Model, Pattern, console, kind_of, on_device, refuse_pattern_of_file, say, usable_file


def embed(
    model: Model,
    files: Annotated[list[Path], typer.Argument(help="Text files, one document each; folders; or .jsonl.")],
    out: Annotated[Path, option("The file for vectors.", callback=usable_file)] = Path("runs/embeddings.safetensors"),
    pattern: Pattern = None,
    field: Field = None,
    window: Annotated[
        int | None, option("For a plain backbone: tokens per window.", default="its own, at most 512")
    ] = None,
    overlap: Annotated[int | None, option("For a plain backbone: tokens that windows share.", default="0")] = None,
    tokens: Annotated[bool, option("Also write a vector for each token.", "--tokens")] = False,
) -> None:
    """Turn documents of any length into vectors, with encoders and decoders.

    Example: onward embed minilm-l6 paper1.txt paper2.txt --window 256 --overlap 64
    """
    import torch
    from rich.progress import track
    from safetensors.torch import save_file

    from ..data import load_documents
    from ..utils.files import make_folder, whole_file

    encoder, tokenizer = encoder_of(model, window, overlap)
    vectors: dict[str, Any] = {}
    with torch.no_grad():
        for file in track(files, "documents", console=console):
            refuse_pattern_of_file(str(file), pattern)
            for document in load_documents(file, field, pattern):
                if f"{document.name}.document" in vectors:
                    raise ValueError(f"two documents are called {document.name!r}: embed them into different files")
                ids = tokenizer(document.text, return_tensors="pt").input_ids.to(encoder.device)
                result = encoder.embed(ids)
                vectors[f"{document.name}.document"] = result.documents[0].contiguous()
                if tokens:
                    vectors[f"{document.name}.tokens"] = result.tokens[0].contiguous()
    make_folder(out.parent)
    with whole_file(out) as unfinished:
        save_file(vectors, unfinished)
    say(f"{len(vectors)} tensors are in {out}")


def encoder_of(name: str, window: int | None, overlap: int | None) -> tuple[Any, Any]:
    """A window-recurrent model and its tokenizer. A plain backbone gets plain windows."""
    from transformers import AutoConfig, AutoModel

    from .. import add_recurrence
    from ..models.pretrained import load_backbone
    from ..models.window_recurrent import MODELS, WindowRecurrenceConfig, WindowRecurrentModel

    if kind_of(name) == "block-recurrent":
        raise ValueError(f"{name} is block-recurrent, and vectors come from backbones and window-recurrent models")
    auto = AutoModel
    if (Path(name) / "config.json").is_file():
        config = AutoConfig.from_pretrained(name)
        if isinstance(config, WindowRecurrenceConfig) and config.head:
            auto = MODELS[config.head].auto_class
    model, tokenizer = load_backbone(name, auto)
    if not isinstance(model, WindowRecurrentModel):
        if window is None:
            window = min(tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", 512), 512)
        model = add_recurrence(model, carrier="none", window=window, overlap=overlap or 0)
    elif window is not None or overlap is not None:
        option = "--overlap" if window is None else "--window"
        raise ValueError(f"{name} has windows of its own, of {model.config.window} tokens: leave {option} out")
    return on_device(model.eval()), tokenizer
