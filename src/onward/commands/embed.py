"""`onward embed`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .shared import Field, Model, Pattern, console, documents_in, kind_of, on_device, say, usable_file


def embed(
    model: Model,
    files: Annotated[list[Path], typer.Argument(help="Text files, one document each.")],
    out: Annotated[Path, typer.Option(help="The file that vectors go into.", callback=usable_file)] = Path(
        "runs/embeddings.safetensors"
    ),
    pattern: Pattern = None,
    field: Field = None,
    window: Annotated[int | None, typer.Option(help="For a plain backbone: its window.")] = None,
    overlap: Annotated[int | None, typer.Option(help="For a plain backbone: tokens seen twice (0).")] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Also a vector for each token.")] = False,
) -> None:
    """Vectors of documents of any length, from encoders and decoders."""
    from rich.progress import track
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModel

    from .. import add_recurrence
    from ..models.pretrained import load_backbone
    from ..models.window_recurrent import MODELS, WindowRecurrenceConfig, WindowRecurrentModel
    from ..utils.files import make_folder, whole_file

    if kind_of(model) == "block-recurrent":
        raise ValueError(f"{model} is block-recurrent, and vectors come from backbones and window-recurrent models")
    auto = AutoModel
    if (Path(model) / "config.json").is_file():
        config = AutoConfig.from_pretrained(model)
        if isinstance(config, WindowRecurrenceConfig) and config.head:
            auto = MODELS[config.head].auto_class
    loaded, tokenizer = load_backbone(model, auto)
    if isinstance(loaded, WindowRecurrentModel):
        own = f"{model} has windows of its own, of {loaded.config.window} tokens"
        for option, given in (("--window", window), ("--overlap", overlap)):
            if given is not None:
                raise ValueError(f"{own}: leave {option} out")
    else:
        if window is None:
            window = min(tokenizer.model_max_length, getattr(loaded.config, "max_position_embeddings", 512), 512)
        loaded = add_recurrence(loaded, carrier="none", window=window, overlap=overlap or 0)
    reader: Any = on_device(loaded.eval())
    vectors: dict[str, Any] = {}
    import torch

    with torch.no_grad():
        for file in track(files, "documents", console=console):
            for document in documents_in(file, pattern, field):
                if f"{document.name}.document" in vectors:
                    raise ValueError(f"two documents are called {document.name!r}: embed them into different files")
                ids = tokenizer(document.text, return_tensors="pt").input_ids.to(reader.device)
                result = reader.embed(ids)
                vectors[f"{document.name}.document"] = result.documents[0].contiguous()
                if tokens:
                    vectors[f"{document.name}.tokens"] = result.tokens[0].contiguous()
    make_folder(out.parent)
    with whole_file(out) as unfinished:
        save_file(vectors, unfinished)
    say(f"{len(vectors)} tensors are in {out}")
