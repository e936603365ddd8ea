"""`onward evaluate`"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from .shared import CorpusName, Field, Model, Out, Pattern, load_model, load_texts, say


class Split(StrEnum):
    train = "train"
    validation = "validation"
    test = "test"


def evaluate(
    model: Model,
    corpus: CorpusName = "shakespeare",
    pattern: Pattern = None,
    field: Field = None,
    overlap: Annotated[
        list[int] | None, typer.Option(help="Of window-recurrent models: one or more, as --overlap 0 5 10.")
    ] = None,
    window: Annotated[int | None, typer.Option(help="For a plain backbone: its window.")] = None,
    split: Annotated[Split, typer.Option(help="Which part of the corpus.")] = Split.test,
    max_tokens: Annotated[int | None, typer.Option(help="Of each document, only the first so many.")] = None,
    batch_size: int = 8,
    out: Out = Path("runs/evaluate"),
) -> None:
    """Perplexity, bits and cost of whole documents, next to the controls.

    These are plain windows, a constant for a memory, and memories swapped between documents; for block-recurrent
    models states swapped, and states ablated.
    """
    from ..data.tokens import tokenize
    from ..evaluation.run import evaluate as run

    if max_tokens is not None and max_tokens < 2:
        raise ValueError(f"--max-tokens {max_tokens}: at least 2 are needed, one to read and one to predict")
    if batch_size < 1:
        raise ValueError(f"--batch-size {batch_size}: read at least 1 document at a time")
    loaded, tokenizer = load_model(model, window)
    options = options_of(loaded, model, overlap)
    texts = load_texts(corpus, pattern, field)
    limit = max_tokens or (texts.validation_tokens if split is Split.validation else None)
    documents = tokenize(getattr(texts, split.value), tokenizer, limit)
    run(loaded, documents, tokenizer=tokenizer, batch_size=batch_size, out=out, **options)
    say(f"table, figures and results.json are in {out}")


def options_of(loaded: Any, name: str, overlap: list[int] | None) -> dict[str, Any]:
    """What only window-recurrent models have: overlaps, and controls that were trained beside them."""
    from .. import BlockRecurrentForCausalLM

    if isinstance(loaded, BlockRecurrentForCausalLM):
        if overlap:
            raise ValueError(f"--overlap is for window-recurrent models, and {name} is block-recurrent: leave it out")
        return {}
    controls = {
        control: load_model(str(folder))[0] if (folder / "config.json").is_file() else None
        for control in ("constant", "plain")
        if (folder := Path(name) / control)
    }
    return {"overlaps": overlap, "constant": controls["constant"], "plain_model": controls["plain"]}
