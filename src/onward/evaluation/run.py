"""A recurrent model next to its controls: the whole evaluation in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data import Document
from ..data.tokens import TokenizedDocument, tokenize
from ..models.block_recurrent import BlockRecurrentForCausalLM
from ..models.window_recurrent import WindowRecurrentForCausalLM
from ..ops import windows
from ..utils.fields import FieldError
from . import report
from .perplexity import first_tokens
from .rows import Job, Row, block_rows, window_rows

FULL_CONTEXT_CAP = 512
# of window-recurrent models, in results.json
SETTINGS = ["backbone_name", "carrier", "window", "overlap", "pooled_positions", "vector_count", "insertion_layers"]


def evaluate(
    model: WindowRecurrentForCausalLM | BlockRecurrentForCausalLM,
    documents: Sequence[Document | TokenizedDocument],
    *,
    tokenizer: PreTrainedTokenizerBase,
    overlaps: Sequence[int] | None = None,
    constant: WindowRecurrentForCausalLM | None = None,
    kept: WindowRecurrentForCausalLM | None = None,
    plain_model: PreTrainedModel | None = None,
    batch_size: int = 8,
    max_tokens: int | None = None,
    full_context_cap: int | None = None,
    out: str | Path | None = None,
    progress: bool = True,
) -> list[Row]:
    """Scores documents with a model and its controls.

    The controls of a window-recurrent model are plain windows, kept tokens in the bytes of its memory, a constant in
    the memory's place, and memories swapped between documents. Those of a block-recurrent model are states swapped
    between documents, and the states that every document starts from.

    `max_tokens`: score only the first tokens of each document. `out`: a folder for table.md, results.json and
    plots. `progress`: show a bar, and the table at the end.

    For window-recurrent models only: `overlaps`: evaluate with each of them; by default with the model's own.
    `constant`: the control, see `WindowRecurrenceConfig.with_carrier`. `kept`: the same, with the carrier "recent"; by
    default on the model's backbone. `plain_model`: the model for plain windows, by default the model's backbone.
    `full_context_cap`: the longest context to compare with, by default 512 tokens.
    """
    rows_of: Callable[[Job], list[Row]]
    if isinstance(model, BlockRecurrentForCausalLM):
        models = {"constant": constant, "kept": kept, "plain_model": plain_model}
        _refuse(overlaps=overlaps, **models, full_context_cap=full_context_cap)
        rows_of, form, settings = partial(block_rows, model=model), report.BLOCK_REPORT, model.config.own_fields()
    elif isinstance(model, WindowRecurrentForCausalLM):
        overlaps = list(dict.fromkeys(overlaps)) if overlaps else [model.config.overlap]
        for overlap in overlaps:
            windows.check(model.config.window, overlap)
        _check_control(model, "constant", constant, "constant")
        _check_control(model, "kept", kept, "recent")
        rows_of = partial(
            window_rows,
            model=model,
            overlaps=overlaps,
            constant=constant,
            kept=kept,
            plain_model=plain_model,
            full_context_cap=FULL_CONTEXT_CAP if full_context_cap is None else full_context_cap,
        )
        form, settings = report.WINDOW_REPORT, SETTINGS
    else:
        raise TypeError(
            f"evaluate takes a recurrent causal language model, got a {type(model).__name__}: use "
            "add_recurrence(model, ...), with carrier='none' for plain windows"
        )
    if out is not None:  # checked first, so that a mistake does not surface when there are results to lose
        if Path(out).expanduser().is_file():
            raise FieldError("out", str(out), "it is a file, and results go into a folder; choose another name")
        report.refuse_other_results(Path(out).expanduser())
    tokenized = [
        first_tokens(document, max_tokens, tokenizer)
        if isinstance(document, TokenizedDocument)
        else tokenize([document], tokenizer, max_tokens)[0]
        for document in documents
    ]
    job = Job(tokenized, batch_size, progress)
    with job.bar:
        rows = rows_of(job)
    if progress:
        documents_run = "1 document" if len(tokenized) == 1 else f"{len(tokenized)} documents"
        title = f"{form.pieces} of {model.config.window} tokens, {documents_run}, {job.tokens:,} tokens"
        Console().print(report.table(rows, title, form))
        if said := form.conclusion(rows):
            Console().print(said)
    if out is not None:
        facts = {name: getattr(model.config, name) for name in settings}
        facts |= {"dtype": str(model.dtype), "device": str(model.device)}
        report.write(rows, out, form, model=facts, documents=len(tokenized), max_tokens=max_tokens)
    return rows


def _refuse(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            shown = type(value).__name__ if isinstance(value, PreTrainedModel) else value
            problem = "it is for window-recurrent models, and this one is block-recurrent; leave it out"
            raise FieldError(name, shown, problem)


def _check_control(model: Any, name: str, control: Any, wanted: str) -> None:
    if control is None:
        return
    carrier, window = control.config.carrier, control.config.window
    if carrier != wanted:
        remedy = f"make it with add_recurrence(backbone, model.config.with_carrier({wanted!r}))"
        raise FieldError(name, type(control).__name__, f"its carrier is {carrier!r}; {remedy}")
    if window != model.config.window:
        problem = f"it has windows of {window} tokens and the model of {model.config.window}; they must agree"
        raise FieldError(name, type(control).__name__, problem)
