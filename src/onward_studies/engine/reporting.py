"""What a study leaves: table.md, figures, results.json, and report.html, which needs nothing beside it."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from onward.evaluation import plots
from onward.utils.files import make_folder, write_text
from onward.utils.markdown import markdown_table
from onward.utils.safe_json import write_json


@dataclass(frozen=True)
class Table:
    """Cells are text; the first column names the row. A cell that is missing is empty."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        return f"### {self.title}\n\n{self.lines()}"

    def lines(self) -> str:
        return markdown_table(self.columns, self.rows, words=self.columns[:1])

    def html(self) -> str:
        def line(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = "\n".join(line(row, "td") for row in self.rows)
        return f"<h2>{html.escape(self.title)}</h2>\n<table>\n{line(self.columns, 'th')}\n{body}\n</table>\n"


@dataclass(frozen=True)
class Claim:
    """What a paper says, what it saw, what we saw, and whether it holds."""

    claim: str
    paper_saw: str
    we_saw: str
    verdict: str


def summary_of(claims: Sequence[Claim]) -> str:
    judged = " ".join(f"{claim.claim}: {claim.verdict} ({claim.we_saw})." for claim in claims)
    return judged or "Too little has run to say anything yet."


def table_of(claims: Sequence[Claim]) -> Table:
    columns = ("claim", "the paper saw", "we saw", "verdict")
    return Table("Claims", columns, [[c.claim, c.paper_saw, c.we_saw, c.verdict] for c in claims])


@dataclass(frozen=True)
class Report:
    title: str
    summary: str  # an honest sentence
    tables: Sequence[Table]
    figures: Mapping[str, Figure] = field(default_factory=dict)
    claims: Sequence[Claim] = ()
    notes: Sequence[str] = ()

    def all_tables(self) -> list[Table]:
        return [*self.tables, *([table_of(self.claims)] if self.claims else [])]

    def markdown(self) -> str:
        notes = "".join(f"- {note}\n" for note in self.notes)
        tables = "\n".join(table.markdown() for table in self.all_tables())
        return f"# {self.title}\n\n{self.summary}\n\n{tables}" + (f"\n{notes}" if notes else "")

    def html(self, facts: Mapping[str, Any]) -> str:
        pictures = "\n".join(f"<figure>{_svg(figure)}</figure>" for figure in self.figures.values())
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        known = "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(str(v))}</dd>" for k, v in facts.items())
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(self.title)}</title>\n'
            f"<style>{STYLE}</style></head><body>\n<h1>{html.escape(self.title)}</h1>\n"
            f"<p>{html.escape(self.summary)}</p>\n{pictures}\n"
            + "".join(table.html() for table in self.all_tables())
            + (f"<h2>Notes</h2><ul>{notes}</ul>\n" if notes else "")
            + f"<h2>How it was run</h2><dl>{known}</dl>\n</body></html>\n"
        )


RESULTS = "results.json"
STYLE = (
    "body{font:16px/1.5 Georgia,serif;max-width:60em;margin:2em auto;padding:0 1em;color:#111;background:#fff}"
    "table{border-collapse:collapse;font-size:.9em}"
    "th,td{padding:.25em .8em;text-align:right;border-bottom:1px solid #ccc}"
    "th:first-child,td:first-child{text-align:left}figure{margin:1.5em 0}svg{max-width:100%;height:auto}"
    "dt{font-weight:bold}dd{margin:0 0 .4em 1em;overflow-wrap:anywhere}"
)


def _svg(figure: Figure) -> str:
    drawn = io.BytesIO()
    plots.draw(figure, drawn, "svg")
    text = drawn.getvalue().decode("utf-8")
    return text[text.index("<svg") :]


def write(report: Report, folder: Path, facts: Mapping[str, Any], outcomes: Mapping[str, Mapping[str, Any]]) -> None:
    make_folder(folder)
    write_text(folder / "table.md", report.markdown())
    write_text(folder / "report.html", report.html(facts))
    for name, figure in report.figures.items():
        plots.save(figure, folder / name)
    tables = [asdict(table) for table in report.tables]
    claims = [asdict(claim) for claim in report.claims]
    content = {**facts, "summary": report.summary, "claims": claims, "tables": tables, "outcomes": dict(outcomes)}
    write_json(folder / RESULTS, content)
