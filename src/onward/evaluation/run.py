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
from . import report
from .block_rows import block_rows, block_settings
from .job import Display, Job
from .perplexity import first_tokens
from .report import Row
from .window_rows import check_windows, window_facts, window_rows

FULL_CONTEXT_CAP = 512


def evaluate(
    model: WindowRecurrentForCausalLM | BlockRecurrentForCausalLM,
    documents: Sequence[Document | TokenizedDocument],
    *,
    tokenizer: PreTrainedTokenizerBase,
    overlaps: Sequence[int] | None = None,
    constant: WindowRecurrentForCausalLM | None = None,
    plain_model: PreTrainedModel | None = None,
    batch_size: int = 8,
    max_tokens: int | None = None,
    full_context_cap: int | None = None,
    out: str | Path | None = None,
    progress: bool = True,
) -> list[Row]:
    """Reads documents with a model and its controls.

    Window-recurrent models are read beside plain windows, a constant in the memory's place, and swapped
    memories. Block-recurrent ones with states swapped between documents, and with the states that every document
    starts from; the options for windows (see below) are not for them.

    `max_tokens`: read only so many first tokens of each document. `out`: a folder for table.md, results.json and
    plots. `progress`: show a bar, and the table at the end.

    For windows: `overlaps`: all of that for each of them; by default for the model's own. `constant`: the
    control, see `WindowRecurrenceConfig.with_carrier`. `plain_model`: what reads plain windows, by default the
    model's backbone. The longest context that recurrence is compared with is `full_context_cap` tokens, by
    default 512.
    """
    rows_of: Callable[[Job], list[Row]]
    if isinstance(model, BlockRecurrentForCausalLM):
        _refuse(overlaps=overlaps, constant=constant, plain_model=plain_model, full_context_cap=full_context_cap)
        rows_of, facts, look = partial(block_rows, model=model), block_settings(model), report.BLOCKS
    elif isinstance(model, WindowRecurrentForCausalLM):
        overlaps = list(dict.fromkeys(overlaps)) if overlaps else [model.config.overlap]
        check_windows(model, overlaps, constant)
        cap = FULL_CONTEXT_CAP if full_context_cap is None else full_context_cap
        rows_of = partial(
            window_rows,
            model=model,
            overlaps=overlaps,
            constant=constant,
            plain_model=plain_model,
            full_context_cap=cap,
        )
        facts, look = window_facts(model), report.WINDOWS
    else:
        raise TypeError(
            f"evaluate takes a recurrent causal language model, got a {type(model).__name__}: use "
            "add_recurrence(model, ...), with carrier='none' for plain windows"
        )
    if out is not None:  # found now, and not when there are results to lose
        if Path(out).expanduser().is_file():
            raise ValueError(f"out={str(out)!r} is a file, and results go into a folder: choose another name")
        report.refuse_other_results(Path(out).expanduser())
    tokenized = _tokenized(documents, tokenizer, max_tokens)
    with Display(progress) as display:
        job = Job(tokenized, batch_size, display)
        rows = rows_of(job)
    if progress:
        title = f"{look.pieces} of {model.config.window} tokens, {len(tokenized)} documents, {job.tokens:,} tokens"
        Console().print(report.table(rows, title, look))
    if out is not None:
        report.write(rows, out, look, model=facts, documents=len(tokenized), max_tokens=max_tokens)
    return rows


def _refuse(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name} is for window-recurrent models, and this one is block-recurrent: leave it out")


def _tokenized(
    documents: Sequence[Document | TokenizedDocument],
    tokenizer: PreTrainedTokenizerBase,
    max_tokens: int | None,
) -> list[TokenizedDocument]:
    return [
        first_tokens(document, max_tokens, tokenizer)
        if isinstance(document, TokenizedDocument)
        else tokenize([document], tokenizer, max_tokens)[0]
        for document in documents
    ]
