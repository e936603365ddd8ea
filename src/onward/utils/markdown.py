"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]], words: Collection[str] = ()) -> str:
    """The lines of a table, with a newline at the end. Columns in `words` are aligned left, the others, numbers, right.

    Cells may be any text: bars are escaped and line breaks become spaces."""
    marks = ["---" if name in words else "---:" for name in columns]
    lines = [map(_cell, columns), marks, *(map(_cell, row) for row in rows)]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def _cell(text: str) -> str:
    return " ".join(text.splitlines()).replace("|", "\\|")
