"""Settings that a study refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from squares import squares

from onward_studies.engine.conducting import report


def test_settings_that_cannot_be(tmp_path: Path) -> None:
    study = squares([])
    assert study.setting(corpora={"": "a/path"}).corpora == {"text": "a/path"}
    for changes, message in (
        ({"scale": "huge"}, "scale='huge': choose one of smoke, laptop, paper"),
        ({"seeds": 0}, "seeds=0: a study needs at least one"),
        ({"corpora": {"books": "x"}}, "study squares reads no corpus 'books': it reads text"),
        ({"changes": {"base": 1.5}}, "base=1.5: it must be of the kind of 2"),
        ({"changes": {"base": True}}, "base=True"),
        ({"changes": {"bass": 1}}, "Sizes has no field 'bass' .*: did you mean 'base'?"),
    ):
        with pytest.raises(ValueError, match=message):
            study.setting(**changes)
    with pytest.raises(ValueError, match="no run of squares has ended"):
        report(study, study.setting(), tmp_path / "nowhere")
