"""`onward inspect`"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..utils.fields import FieldError
from .options import option
from .shared import Model, Window, console, load_model, read_text, say

if TYPE_CHECKING:
    from ..inspection import Diagnostics


def inspect(
    model: Model,
    window: Window = None,
    text: Annotated[Path | None, option("A text to run the model over: how is its memory used?")] = None,
    max_tokens: Annotated[int | None, option("Use only the first tokens of the text.", default="all")] = None,
) -> None:
    """See what is in a model: parameters, cost per token, what is carried and how it is used.

    Example: onward inspect runs/books --text chapter.txt
    """
    from ..inspection import facts

    loaded, tokenizer = load_model(model, window)
    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    for name, value in facts(loaded).items():
        table.add_row(name, value)
    console.print(table)
    if text is not None:
        show_text(loaded, tokenizer, text, max_tokens)
    elif max_tokens is not None:
        raise FieldError("max_tokens", max_tokens, "it limits a text; give one with --text")


def show_text(model: Any, tokenizer: Any, file: Path, max_tokens: int | None) -> None:
    from .. import BlockRecurrentForCausalLM
    from ..data import Document
    from ..data.tokens import tokenize
    from ..inspection import diagnose, memory_attention

    if max_tokens is not None and max_tokens < 1:
        raise FieldError("max_tokens", max_tokens, "at least 1 is needed")
    document = tokenize([Document(file.name, read_text(file, "--text"))], tokenizer, max_tokens)[0]
    if isinstance(model, BlockRecurrentForCausalLM):
        with console.status("reading"):
            found = diagnose(model, document)
        for table in tables(found):
            console.print(table)
        return
    shares = memory_attention(model, document.ids.long()[None].to(model.device))
    listed = ", ".join(f"{layer}: {100 * share:.0f} %" for layer, share in shares.items())
    say(f"attention that goes to the memory in the second window, by layer: {listed or 'none'}")


# --- block-recurrent models ------------------------------------------------------------------------


def tables(found: Diagnostics) -> list[Table]:
    made = [losses(found)]
    if found.gates:
        made.append(gates(found))
    if found.state_use:
        made.append(readings(found))
    return [*made, by_distance(found)]


def new_table(title: str, *columns: str, words: int = 1) -> Table:
    """`words`: how many of the first columns are words, and not numbers."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number < words else "right")
    return table


def losses(found: Diagnostics) -> Table:
    from ..evaluation.report import short_perplexity as short

    table = new_table("The text", "states", "bits/token", "bits/byte", "word perplexity")
    for memory, measures in found.losses.items():
        values = (f"{measures.bits_per_token:.4f}", f"{measures.bits_per_byte:.4f}", short(measures.word_perplexity))
        table.add_row({"true": "as carried"}.get(memory, memory), *values)
    return table


def gates(found: Diagnostics) -> Table:
    table = new_table("Gates", "layer", "gate", "of the state", "mean", "deviation", "lowest", "highest", words=3)
    for (layer, gate, part), spread in found.gates.items():
        values = (spread.mean, spread.deviation, spread.lowest, spread.highest)
        table.add_row(str(layer), gate, part, *(f"{value:.3f}" for value in values))
    return table


def readings(found: Diagnostics) -> Table:
    table = new_table("What tokens read in the states", "layer", "size against self-attention's", "spread over states")
    for layer, use in found.state_use.items():
        table.add_row(str(layer), f"{use.size:.3f}", number(use.spread, ".3f"))
    return table


def by_distance(found: Diagnostics) -> Table:
    """The first blocks one by one, later ones in groups that double."""
    table = new_table("By distance from the document's start", "tokens", words=0)
    for memory in found.losses:
        table.add_column("bits/token" if memory == "true" else f"bits/token,\n{memory}", justify="right")
    for layer in found.states:
        table.add_column(f"likeness,\nlayer {layer}", justify="right")
        table.add_column(f"effective\nrank, layer {layer}", justify="right")
    true = found.losses["true"]
    blocks = len(true.by_window.counts)
    states = [column for likeness in found.states.values() for column in (likeness.cosine, likeness.effective_rank)]
    table.add_row("at the start", *[""] * len(found.losses), *(number(column[0], ".3f") for column in states))
    first = 0
    while first < blocks:
        last = min(blocks, max(first + 1, 2 * first))
        cells = []
        for measures in found.losses.values():
            count = sum(measures.by_window.counts[first:last])
            cells.append(f"{sum(measures.by_window.sums[first:last]) / count / math.log(2):.4f}")
        # After the last of these blocks. The rest of the text, shorter than a block, changes no states.
        cells += [number(column[last], ".3f") if last < len(column) else "" for column in states]
        table.add_row(f"{first * true.window:,} to {min(last * true.window, true.tokens):,}", *cells)
        first = last
    return table


def number(value: float, form: str) -> str:
    return "" if math.isnan(value) else format(value, form)
