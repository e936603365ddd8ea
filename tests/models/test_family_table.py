"""Every text family of transformers is right or refused by name, and docs/families.md says which."""

from __future__ import annotations

from pathlib import Path

import pytest
from family_table import row, verdict
from tiny_families import text_families

FAMILIES = text_families()
TABLE = Path(__file__).parents[2] / "docs" / "families.md"


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_right_or_refused(family: str) -> None:
    found = {head: verdict(family, head) for head in FAMILIES[family]}
    assert row(family, found) in TABLE.read_text(encoding="utf-8").splitlines()


def test_the_table_lists_every_family() -> None:
    listed = [line.split(" | ")[0].removeprefix("| ") for line in TABLE.read_text(encoding="utf-8").splitlines()]
    assert [family for family in FAMILIES if family not in listed] == []
    assert "not made" not in TABLE.read_text(encoding="utf-8")
