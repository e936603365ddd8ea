"""Every text family of transformers is right or refused by name, and docs/families.md says which."""

from __future__ import annotations

from pathlib import Path

import pytest
from family_table import row, verdict
from tiny_families import text_families

TABLE = Path(__file__).parents[3] / "docs" / "families.md"
ROWS = {
    line.split(" | ")[0].removeprefix("| "): line
    for line in TABLE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| type ")
}
"""Read from the table: to ask transformers for all families takes ten seconds."""


@pytest.mark.slow
@pytest.mark.parametrize("family", ROWS)
def test_a_family_is_right_or_refused(family: str) -> None:
    found = {head: verdict(family, head) for head in text_families()[family]}
    assert row(family, found) == ROWS[family]


@pytest.mark.slow
def test_the_table_lists_every_family() -> None:
    assert list(ROWS) == list(text_families())


def test_the_table_knows_only_what_works_and_what_is_refused() -> None:
    assert len(ROWS) > 200
    assert {cell.strip() for line in ROWS.values() for cell in line.split("|")[2:5]} == {"works", "no", ""}
