"""Runs of window-recurrent models: their steps and their texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.ops.windows import segment_length
from onward_studies import STUDIES
from onward_studies.engine.work import Work
from onward_studies.window_recurrent import backbone, carriers, window_size
from onward_studies.window_recurrent import runs as windows
from onward_studies.window_recurrent.variants import recurrent


def test_steps_have_as_many_tokens_for_all_windows() -> None:
    laptop = STUDIES["carriers"].sizes["laptop"]
    base = laptop.rows * laptop.windows_per_segment * laptop.window
    for variant in [*carriers.variants(laptop).values(), *window_size.variants(STUDIES["pareto"].sizes["laptop"])]:
        rows, count = windows.step_of(laptop, variant)
        assert rows * segment_length(count, variant.window, variant.overlap) == pytest.approx(base, rel=0.06)
    paper = STUDIES["overlap-books"].sizes["paper"]
    assert windows.step_of(paper, recurrent(paper, 300, 50)) == (8, 20), "as the paper has it"
    paper, base = STUDIES["carriers"].sizes["paper"], 8 * 20 * 300
    for variant in [*carriers.variants(paper).values(), *window_size.variants(STUDIES["pareto"].sizes["paper"])]:
        rows, count = windows.step_of(paper, variant)
        assert rows * segment_length(count, variant.window, variant.overlap) == pytest.approx(base, rel=0.1)


def test_a_backbone_is_not_trained_further_on_its_own_books(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    for number in range(20):
        (tmp_path / "books" / f"{number:02}.txt").write_text(f"book {number}")
    study = STUDIES["overlap-books"]
    setting = study.setting("smoke", corpora={"books": str(tmp_path / "books")})
    work = Work(tmp_path / "out", setting, study.runs(setting))
    further = {document.name for document in windows.training_texts(setting.sizes, "books", work)}
    pretrained = {document.name for document in backbone._texts(setting.sizes.decoder, work)}
    assert len(further) == 9 and further.isdisjoint(pretrained)
