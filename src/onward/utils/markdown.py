"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]], words: Collection[str] = ()) -> str:
    """Lines of a table, with a newline at the end. Columns of `words` are set to the left, others are numbers.

    Any text may be a cell: names that people give have bars and line breaks, which would end a cell or the table."""
    marks = ["---" if name in words else "---:" for name in columns]
    lines = [map(_cell, columns), marks, *(map(_cell, row) for row in rows)]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def _cell(text: str) -> str:
    return " ".join(text.splitlines()).replace("|", "\\|")
