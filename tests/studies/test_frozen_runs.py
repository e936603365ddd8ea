"""No run that has ended is done again because code moved: names, settings and needs of runs stay as they were.

`frozen_runs.json` holds a digest of every run of every study at every scale. A digest that differs means that results
people have would be computed anew: change a run's description only when its outcome changes, and then write the file
again with `python tests/studies/test_frozen_runs.py`.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from onward_studies import STUDIES
from onward_studies.command import sizes as parse_sizes
from onward_studies.engine import conducting
from onward_studies.engine.conducting import conduct
from onward_studies.engine.describing import described, digest
from onward_studies.engine.sizes import SCALES

FROZEN = Path(__file__).with_name("frozen_runs.json")
RESULTS = Path(__file__).parents[2] / "results"
COMMITTED = sorted(file.parent.name for file in RESULTS.glob("*/results.json") if file.parent.name in STUDIES)


def digests(name: str, scale: str) -> dict[str, str]:
    chosen = STUDIES[name]
    runs = described(chosen.runs(chosen.setting(scale, 3)))
    return {run: digest(description) for run, description in runs.items()}


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("scale", SCALES)
def test_every_run_is_described_as_before(name: str, scale: str) -> None:
    frozen = json.loads(FROZEN.read_text(encoding="utf-8"))[name][scale]
    now = digests(name, scale)
    assert frozen or (name, scale) == ("backbone", "paper")  # which is GPT-2, from the Hub
    assert {run for run in frozen if now.get(run) != frozen[run]} == set()
    assert set(now) == set(frozen)


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_results_are_known_and_nothing_is_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(run: Any, *args: Any) -> bool:
        raise AssertionError(f"{run.name} would be done again")

    monkeypatch.setattr(conducting, "_do", refuse)
    saved = json.loads((RESULTS / name / "results.json").read_text(encoding="utf-8"))
    words = shlex.split(saved["command"])
    changes = parse_sizes([value for option, value in zip(words, words[1:], strict=False) if option == "--set"])
    setting = STUDIES[name].setting(saved["scale"], saved["seeds"], saved["corpora"], changes)
    found = conduct(STUDIES[name], setting, tmp_path, progress=False, known=[RESULTS / name])
    assert found.tables
    there = json.loads((tmp_path / saved["scale"] / name / "results.json").read_text(encoding="utf-8"))
    assert set(there["outcomes"]) == set(saved["outcomes"])


def test_all_studies_have_committed_results() -> None:
    assert set(STUDIES) == set(COMMITTED)


if __name__ == "__main__":
    found = {name: {scale: digests(name, scale) for scale in SCALES} for name in STUDIES}
    FROZEN.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
