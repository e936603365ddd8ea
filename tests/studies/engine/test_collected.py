"""RESULTS.md is what the committed results come to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onward_studies.engine.collected import collect
from onward_studies.engine.intervals import FAILS, HOLDS

ROOT = Path(__file__).parents[3]


def saved(**more: Any) -> dict[str, Any]:
    claims = [
        {"claim": "Longer is better", "paper_saw": "1 -> 2", "we_saw": "0.5 ± 0.1 better", "verdict": HOLDS},
        {"claim": "and cheaper", "paper_saw": "yes", "we_saw": "no", "verdict": FAILS},
    ]
    outcomes = {name: _run(seconds, threads) for name, seconds, threads in (("a", 3600.0, 1), ("b", 900.0, 2))}
    facts = {"scale": "laptop", "seeds": 3, "runs": "2 of 2 have ended", "summary": "Both were read."}
    return facts | {"claims": claims, "outcomes": outcomes} | more


def _run(seconds: float, threads: int) -> dict[str, Any]:
    return {"seconds": seconds, "circumstances": {"machine": {"threads": threads}}}


def put(place: Path, name: str, content: dict[str, Any]) -> Path:
    folder = place / "results" / name
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(content))
    return folder


def test_every_claim_with_its_verdict(tmp_path: Path) -> None:
    mlm = put(tmp_path, "mlm", saved())
    put(tmp_path, "backbone", saved(claims=[]))
    (mlm / "loss.svg").write_text("<svg/>")
    (mlm / "notes.md").write_text("We looked at the rates.\n")
    found = collect(tmp_path / "results", tmp_path / "RESULTS.md")
    assert "| [mlm](#mlm) | 1 | 1 |  | 2 of 2 have ended | 1.5 |" in found
    assert f"| Longer is better | 1 -> 2 | 0.5 ± 0.1 better | {HOLDS} |\n| and cheaper | yes | no | {FAILS} |" in found
    assert "We looked at the rates." in found and "![loss](results/mlm/loss.svg)" in found
    assert found.index("## backbone") < found.index("## mlm"), "in the order of `onward study`"
    assert "Both were read." in found.partition("## mlm")[0], "without claims, the summary"


def test_a_folder_without_studies(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no study: copy"):
        collect(tmp_path, tmp_path / "RESULTS.md")


def test_the_page_is_what_the_results_come_to() -> None:
    assert (ROOT / "RESULTS.md").read_text(encoding="utf-8") == collect(ROOT / "results", ROOT / "RESULTS.md"), (
        "run `make results`"
    )
