"""report.html of a study's folder: one page with its tables and figures, which needs no other file.

It is made of the files beside it, so that it can be made again at any time: title and notes are in table.md, tables,
claims and facts in results.json, figures in *.svg.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onward.utils.files import write_text
from onward.utils.safe_json import read_json

RESULTS, TABLE, PAGE = "results.json", "table.md", "report.html"
CLAIM_COLUMNS = ("claim", "the paper saw", "we saw", "verdict")
STYLE = (
    "body{font:16px/1.5 Georgia,serif;max-width:60em;margin:2em auto;padding:0 1em;color:#111;background:#fff}"
    "table{border-collapse:collapse;font-size:.9em}"
    "th,td{padding:.25em .8em;text-align:right;border-bottom:1px solid #ccc}"
    "th:first-child,td:first-child{text-align:left}figure{margin:1.5em 0}svg{max-width:100%;height:auto}"
    "dt{font-weight:bold}dd{margin:0 0 .4em 1em;overflow-wrap:anywhere}"
)


def write_page(folder: Path) -> None:
    saved = read_json(folder / RESULTS, "the results of a study")
    lines = (folder / TABLE).read_text(encoding="utf-8").splitlines()
    title, notes = lines[0].removeprefix("# "), [line[2:] for line in lines if line.startswith("- ")]
    pictures = [file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.svg"))]
    tables = [_table(table["title"], table["columns"], table["rows"]) for table in saved["tables"]]
    if saved["claims"]:
        tables.append(_table("Claims", CLAIM_COLUMNS, [list(claim.values()) for claim in saved["claims"]]))
    parts = [
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f"<style>{STYLE}</style></head><body>\n<h1>{html.escape(title)}</h1>\n<p>{html.escape(saved['summary'])}</p>\n",
        *(f"<figure>{text[text.index('<svg') :]}</figure>\n" for text in pictures),
        *tables,
        f"<h2>Notes</h2><ul>{''.join(f'<li>{html.escape(note)}</li>' for note in notes)}</ul>\n" if notes else "",
        f"<h2>How it was run</h2><dl>{_facts(saved)}</dl>\n</body></html>\n",
    ]
    write_text(folder / PAGE, "".join(parts))


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>\n"

    body = "".join(line(row, "td") for row in rows)
    return f"<h2>{html.escape(title)}</h2>\n<table>\n{line(columns, 'th')}{body}</table>\n"


def _facts(saved: Mapping[str, Any]) -> str:
    facts = {name: v for name, v in saved.items() if name not in ("summary", "claims", "tables", "outcomes")}
    return "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(str(value))}</dd>" for name, value in facts.items())
