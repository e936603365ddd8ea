"""`onward study`: what it refuses, and what it lists."""

from __future__ import annotations

import subprocess
import sys

import pytest
from study_command import run
from typer.testing import CliRunner

from onward.cli import app
from onward_studies import STUDIES


def test_names_that_are_none() -> None:
    for line, message in (
        ("study --set tokens=1", "the name of a study is missing: choose one that `onward study --list` shows"),
        ("study mml", "there is no study 'mml': did you mean 'mlm'"),
        ("study mlm --corpus a --corpus b", "--corpus b: there are two for the study"),
        ("study mlm --corpus books=x", "reads no corpus 'books': it reads text, glue"),
        ("study mlm --set tokens", "--set tokens: write it as NAME=VALUE"),
        ("study mlm --set token=1", "did you mean 'tokens'"),
        ("study mlm --corpus text=", "--corpus text=: no name or path is given: write it as text=PATH"),
        ("study overlap-books --set rates=()", r"rates=\(\): give at least one learning rate"),
        ("study overlap-books --set rates=(1e-3,0)", "0 must be more than 0"),
        ("study overlap-books --set rates=(1e-3,1e999)", "inf must be a finite number"),
        ("study gates --set tokens_per_step=-1", "tokens_per_step=-1: -1 must be more than 0"),
        ("study mlm --set tokens=-5", "tokens=-5: -5 must be more than 0"),
        ("study gates --set tokens=0", "tokens=0: 0 must be more than 0"),
        ("study overlap-books --set carrier_rate=0", "carrier_rate=0: 0 must be more than 0"),
        ("study overlap-books --set equal_steps=false", "equal_steps='false': it must be of the kind of True"),
        ("study overlap-books --set tried_on=foo", "tried_on='foo': choose one of books, wikipedia, or None"),
        ("study boolq --set encoder=roberta-base --set window=-1", "window=-1"),  # a name needs no quotes
    ):
        with pytest.raises(ValueError, match=message):
            CliRunner().invoke(app, line.split(), catch_exceptions=False)


def test_studies_are_listed() -> None:
    listed = run("study --list")
    assert listed == run("study") and [line.split()[0] for line in listed.splitlines() if line[0] != " "] == [*STUDIES]
    assert "mlm" in listed and "stability" in listed


def test_a_refused_value_is_told_with_its_option() -> None:
    for line, message in (
        ("study mlm --set tokens=-5", "--set tokens=-5: -5 must be more than 0"),
        ("study mlm --seeds 0", "--seeds 0: a study needs at least one"),
        ("study overlap-books --set tried_on=foo", "--set tried_on='foo': choose one of books, wikipedia, or None"),
        ("study scale --plan --gpus 8", "--gpus 8: write how many and which, as 8xA100"),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            CliRunner().invoke(app, line.split(), catch_exceptions=False)


IMPORTED = """
import sys
from onward_studies import STUDIES
from onward_studies.engine.conducting import conduct
study = STUDIES[sys.argv[1]]
assert study.runs(study.setting("smoke", seeds=1))
print(*(name for name in sys.modules if name.startswith("onward_studies.")))
"""


@pytest.mark.parametrize(
    ("name", "its_own"),
    [
        ("gates", {"block_recurrent": {"gates", "notes", "rows", "runs"}}),
        ("mlm", {"masked": {"reports", "runs", "word_order"}}),
        ("backbone", {"window_recurrent": {"backbone"}}),
    ],
)
def test_a_study_imports_no_other(name: str, its_own: dict[str, set[str]]) -> None:
    process = subprocess.run([sys.executable, "-c", IMPORTED, name], capture_output=True, text=True, check=True)
    found: dict[str, set[str]] = {}
    for module in process.stdout.split():
        _, system, *part = module.split(".")
        found.setdefault(system, set()).update(part)
    del found["engine"]
    assert found == its_own
