"""A study whose runs are trained by two processes."""

import json
from functools import partial

import pytest
from accelerate.state import AcceleratorState, GradientState
from processes import on_two_processes

from onward_studies import STUDIES
from onward_studies.engine.conducting import conduct


def work(study, out, **changes):
    chosen = STUDIES[study]
    conduct(chosen, chosen.setting("smoke", seeds=1, changes=changes), out, progress=False)


@pytest.fixture(autouse=True)
def one_again():
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def test_two_processes_share_the_runs(tmp_path):
    on_two_processes(partial(work, "backbone", tmp_path / "two"))
    outcome = json.loads((tmp_path / "two" / "smoke" / "runs" / "backbone" / "outcome.json").read_text())
    work("backbone", tmp_path / "one")
    alone = json.loads((tmp_path / "one" / "smoke" / "runs" / "backbone" / "outcome.json").read_text())
    assert outcome["validation_loss"] == pytest.approx(alone["validation_loss"], abs=1e-3)
    assert (tmp_path / "two" / "smoke" / "backbone" / "report.html").is_file()
    assert (tmp_path / "two" / "smoke" / "runs" / "backbone" / "model" / "backbone" / "model.safetensors").is_file()
