"""The report of examples/source_code.py gives the published table, and draws its curves."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))
import source_code  # noqa: E402

RESULTS = ROOT / "results" / "source_code"


def test_the_published_table_follows_from_the_published_curves(tmp_path):
    runs = json.loads((RESULTS / "curves.json").read_text(encoding="utf-8"))
    assert source_code.table(runs) == (RESULTS / "table.md").read_text(encoding="utf-8")
    source_code.plot(runs, tmp_path / "validation.svg")
    assert ElementTree.parse(tmp_path / "validation.svg").getroot().tag.endswith("svg")
