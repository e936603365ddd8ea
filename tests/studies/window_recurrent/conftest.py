"""What tests of window studies share."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from study_command import run


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs of Table 2, at the smallest scale."""
    folder = tmp_path_factory.mktemp("windows")
    said = run(f"study backbone --scale smoke --out {folder}")
    assert "| Llama's shape |" in said
    left = re.search(r"figures are in (\S+)", said)
    assert left and (Path(left[1]) / "report.html").is_file()
    said = run(f"study overlap-books --scale smoke --seeds 1 --out {folder}")
    for row in ("| plain | 0 |", "| plain | 8 |", "| constant | 0 |", "| recurrent | 4 |", "| swapped | 4 |"):
        assert row in said
    return folder
