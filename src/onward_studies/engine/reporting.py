"""What a study leaves: tables, claims and figures, as table.md, results.json and report.html."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from onward.evaluation import plots
from onward.utils.files import make_folder, write_text
from onward.utils.markdown import markdown_table
from onward.utils.safe_json import write_json

from .intervals import over, verdict
from .page import CLAIM_COLUMNS, RESULTS, TABLE, write_page


@dataclass(frozen=True)
class Table:
    """Cells are text; the first column names the row. A missing cell is empty; a table without rows is not shown."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    @classmethod
    def of(cls, title: str, rows: Sequence[Mapping[str, str]]) -> Table:
        """Rows of cells by their column."""
        return cls(title, list(rows[0]) if rows else [], [list(row.values()) for row in rows])

    def markdown(self) -> str:
        return f"### {self.title}\n\n{self.lines()}"

    def lines(self) -> str:
        return markdown_table(self.columns, self.rows, words=self.columns[:1])


@dataclass(frozen=True)
class Claim:
    """What a paper says, what it saw, what we saw, and whether it holds."""

    claim: str
    paper_saw: str
    we_saw: str
    verdict: str


NOT_TESTED, NOT_TOLD = "not tested", "not told"
Compared = tuple[str, str, Mapping[int, float], Mapping[int, float]]
"""A claim, what the paper saw, and by seed the number that should be larger, and the smaller one."""


def judged(compared: Iterable[Compared], unit: str, digits: int = 4) -> list[Claim]:
    """Claims, judged by the paired differences; without those that no seed has both numbers of."""
    gains = [(claim, saw, over(larger, smaller)) for claim, saw, larger, smaller in compared]
    return [
        Claim(claim, saw, f"{gain.text(digits)} {unit}", verdict(gain))
        for claim, saw, gain in gains
        if gain is not None
    ]


def summary_of(claims: Sequence[Claim]) -> str:
    told = " ".join(f"{claim.claim}: {claim.verdict} ({claim.we_saw})." for claim in claims)
    return told or "Too little has run to say anything yet."


def claims_table(claims: Sequence[Claim]) -> Table:
    return Table("Claims", CLAIM_COLUMNS, [[c.claim, c.paper_saw, c.we_saw, c.verdict] for c in claims])


@dataclass(frozen=True)
class Report:
    title: str
    summary: str
    tables: Sequence[Table]
    figures: Mapping[str, Figure] = field(default_factory=dict)
    claims: Sequence[Claim] = ()
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        shown = "\n".join(table.markdown() for table in [*self.tables, claims_table(self.claims)] if table.rows)
        notes = "".join(f"- {note}\n" for note in self.notes)
        return f"# {self.title}\n\n{self.summary}\n\n{shown}" + (f"\n{notes}" if notes else "")


def write(report: Report, folder: Path, facts: Mapping[str, Any], outcomes: Mapping[str, Mapping[str, Any]]) -> None:
    make_folder(folder)
    write_text(folder / TABLE, report.markdown())
    for name, figure in report.figures.items():
        plots.save(figure, folder / name)
    tables = [asdict(table) for table in report.tables if table.rows]
    claims = [asdict(claim) for claim in report.claims]
    content = {**facts, "summary": report.summary, "claims": claims, "tables": tables, "outcomes": dict(outcomes)}
    write_json(folder / RESULTS, content)
    write_page(folder)
