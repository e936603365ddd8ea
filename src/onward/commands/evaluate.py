"""`onward evaluate`: a model next to its controls, on whole documents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from ..utils.fields import FieldError
from .options import option
from .shared import MemoryOptions, Model, Out, TextOptions, load_model, say


def evaluate(
    model: Model,
    memory: MemoryOptions,
    texts: TextOptions,
    split: Annotated[Literal["train", "validation", "test"], option("Which part of the corpus to use.")] = "test",
    overlap: Annotated[
        list[int] | None, option("For window recurrence, one or more: --overlap 0 5 10.", default="the model's own")
    ] = None,
    max_tokens: Annotated[int | None, option("Use only the first tokens of each document.", default="all")] = None,
    batch_size: Annotated[int, option("Documents processed at a time.")] = 8,
    out: Out = Path("runs/evaluate"),
) -> None:
    """Measure perplexity, bits and cost on whole documents, next to the controls.

    Controls of window recurrence are plain windows, kept tokens of the same bytes, a constant as the memory, and
    memories swapped between documents; those of block-recurrent models are states swapped, and states ablated.

    Example: onward evaluate runs/books --corpus my-books/ --overlap 0 5 10
    """
    from ..data.tokens import tokenize
    from ..evaluation.run import evaluate as run

    if max_tokens is not None and max_tokens < 2:
        raise FieldError("max_tokens", max_tokens, "at least 2 are needed, one to start from and one to predict")
    if batch_size < 1:
        raise FieldError("batch_size", batch_size, "process at least 1 document at a time")
    loaded, tokenizer = memory.load(model)
    options = options_of(loaded, model, overlap)
    corpus = texts.load()
    limit = max_tokens or (corpus.validation_tokens if split == "validation" else None)
    documents = tokenize(getattr(corpus, split), tokenizer, limit)
    run(loaded, documents, tokenizer=tokenizer, batch_size=batch_size, out=out, **options)
    say(f"table, figures and results.json are in {out}")


def options_of(loaded: Any, name: str, overlap: list[int] | None) -> dict[str, Any]:
    """Overlaps, and controls that were trained beside the model: only window-recurrent models have them."""
    from .. import BlockRecurrentForCausalLM

    if isinstance(loaded, BlockRecurrentForCausalLM):
        if overlap:
            raise ValueError(f"--overlap is for window-recurrent models, and {name} is block-recurrent: leave it out")
        return {}
    controls = {
        control: load_model(str(folder))[0] if (folder / "config.json").is_file() else None
        for control in ("constant", "kept", "plain")
        if (folder := Path(name) / control)
    }
    plain = controls.pop("plain")
    return {"overlaps": overlap, "plain_model": plain, **controls}
