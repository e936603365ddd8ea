"""`onward inspect`: what is in a model, and how it uses its memory on a text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..utils.fields import FieldError
from .options import option
from .shared import MemoryOptions, Model, console, read_text, say

if TYPE_CHECKING:
    from ..inspection import Diagnostics


def inspect(
    model: Model,
    memory: MemoryOptions,
    text: Annotated[Path | None, option("A text to run the model over: how is its memory used?")] = None,
    max_tokens: Annotated[int | None, option("Use only the first tokens of the text.", default="all")] = None,
) -> None:
    """See what is in a model: parameters, cost per token, what is carried and how it is used.

    Example: onward inspect runs/books --text chapter.txt
    """
    from ..inspection import facts

    loaded, tokenizer = memory.load(model)
    listed = Table(show_header=False, box=None)
    listed.add_column(style="bold")
    for name, value in facts(loaded).items():
        listed.add_row(name, value)
    console.print(listed)
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
        console.print(*tables(found), sep="\n")
        return
    shares = memory_attention(model, document.ids.long()[None].to(model.device))
    listed = ", ".join(f"{layer}: {100 * share:.0f} %" for layer, share in shares.items())
    say(f"attention that goes to the memory in the second window, by layer: {listed or 'none'}")


# --- block-recurrent models ------------------------------------------------------------------------


def tables(found: Diagnostics) -> Iterator[Table]:
    from ..evaluation.report import short_perplexity

    of_text = [
        [
            {"true": "as carried"}.get(memory, memory),
            f"{measures.bits_per_token:.4f}",
            f"{measures.bits_per_byte:.4f}",
            short_perplexity(measures.word_perplexity),
        ]
        for memory, measures in found.losses.items()
    ]
    yield table("The text", ["states", "bits/token", "bits/byte", "word perplexity"], of_text)
    if found.gates:
        columns = ["layer", "gate", "of the state", "mean", "deviation", "lowest", "highest"]
        of_gates = [
            [str(layer), gate, part, *map(number, (spread.mean, spread.deviation, spread.lowest, spread.highest))]
            for (layer, gate, part), spread in found.gates.items()
        ]
        yield table("Gates", columns, of_gates, words=3)
    if found.state_use:
        columns = ["layer", "size against self-attention's", "spread over states"]
        of_layers = [[str(layer), number(use.size), number(use.spread)] for layer, use in found.state_use.items()]
        yield table("What tokens take from the states", columns, of_layers)
    yield by_distance(found)


def by_distance(found: Diagnostics) -> Table:
    """The first blocks one by one, later ones in groups that double."""
    columns = ["tokens", *("bits/token" if memory == "true" else f"bits/token,\n{memory}" for memory in found.losses)]
    for layer in found.states:
        columns += [f"likeness,\nlayer {layer}", f"effective\nrank, layer {layer}"]
    states = [column for likeness in found.states.values() for column in (likeness.cosine, likeness.effective_rank)]
    rows = [["at the start", *[""] * len(found.losses), *(number(column[0]) for column in states)]]
    true = found.losses["true"]
    blocks = len(true.by_window.counts)
    first = 0
    while first < blocks:
        last = min(blocks, max(first + 1, 2 * first))
        cells = [f"{first * true.window:,} to {min(last * true.window, true.tokens):,}"]
        for measures in found.losses.values():
            count = sum(measures.by_window.counts[first:last])
            cells.append(f"{sum(measures.by_window.sums[first:last]) / count / math.log(2):.4f}")
        # After the last of these blocks. The rest of the text, shorter than a block, changes no states.
        rows.append(cells + [number(column[last]) if last < len(column) else "" for column in states])
        first = last
    return table("By distance from the document's start", columns, rows, words=0)


def table(title: str, columns: list[str], rows: list[list[str]], words: int = 1) -> Table:
    """`words`: how many of the first columns are words, and not numbers."""
    made = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    for place, name in enumerate(columns):
        made.add_column(name, justify="left" if place < words else "right")
    for row in rows:
        made.add_row(*row)
    return made


def number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3f}"
