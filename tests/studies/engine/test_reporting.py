"""What a study leaves in its folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

from squares import squares

from onward_studies.engine.conducting import conduct
from onward_studies.engine.page import write_page
from onward_studies.engine.reporting import Report, Table, write


def test_the_report_needs_nothing_beside_it(tmp_path: Path) -> None:
    study = squares([])
    conduct(study, study.setting(seeds=1), tmp_path, progress=False)
    page = (tmp_path / "laptop" / "squares" / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page and "squares &lt; cubes" in page and "yes &amp; no" in page and "<li>a note</li>" in page
    assert not re.search(r'(src|href)="(?!#)', page), "no other files"
    table = (tmp_path / "laptop" / "squares" / "table.md").read_text(encoding="utf-8")
    assert "| square-2 | 4.0 |" in table and "| squares < cubes | yes | yes & no | holds |" in table
    saved = json.loads((tmp_path / "laptop" / "squares" / "results.json").read_text())
    assert saved["scale"] == "laptop" and saved["seeds"] == 1 and saved["runs"] == "4 of 4 have ended"
    assert saved["outcomes"]["square-1"]["validation_loss"] == 1 and saved["sizes"] == {"base": 2}
    assert all((tmp_path / "laptop" / "squares" / f"squares.{ending}").is_file() for ending in ("svg", "png"))


def test_the_page_is_made_of_the_files_beside_it(tmp_path: Path) -> None:
    study = squares([])
    conduct(study, study.setting(seeds=1), tmp_path, progress=False)
    page = tmp_path / "laptop" / "squares" / "report.html"
    written = page.read_text(encoding="utf-8")
    page.unlink()
    write_page(page.parent)
    assert page.read_text(encoding="utf-8") == written


def test_a_table_without_rows_is_not_shown(tmp_path: Path) -> None:
    full, empty = Table.of("Full", [{"model": "a", "loss": "1.5"}]), Table.of("Empty", [])
    found = Report("Title", "Nothing yet.", [empty, full])
    assert found.markdown() == "# Title\n\nNothing yet.\n\n### Full\n\n| model | loss |\n| --- | ---: |\n| a | 1.5 |\n"
    write(found, tmp_path, {}, {})
    assert [table["title"] for table in json.loads((tmp_path / "results.json").read_text())["tables"]] == ["Full"]
