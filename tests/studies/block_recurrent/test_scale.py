"""`scale`: the smallest scale, and what made-up bits come to."""

from __future__ import annotations

from pathlib import Path

from block_outcomes import bits
from study_command import run

from onward_studies import STUDIES
from onward_studies.block_recurrent import scale
from onward_studies.engine.intervals import HOLDS


def test_smoke_of_scale(tmp_path: Path) -> None:
    said = run(f"study scale --scale smoke --seeds 1 --out {tmp_path}")
    assert "| Slide:13L:large | " in said and "| Rec:fixed:skip:large | " in said


def test_what_a_larger_size_comes_to() -> None:
    large = bits({"Slide:13L:large": 3.5, "Rec:fixed:skip:large": 3.25}, "scale")
    report = scale.report(STUDIES["scale"].setting("smoke", seeds=2), large)
    assert "| Slide:13L:large | 1,234 | 3.550 ± 0.635 | 11.3 ± 0.0 | 3.39 | 34.8 |" in report.markdown()
    assert [claim.verdict for claim in report.claims] == [HOLDS]
