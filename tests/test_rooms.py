"""Lower rooms never import higher ones, and the library never imports the studies."""

import pytest
from import_graph import upward


def test_no_import_goes_upward():
    assert upward() == []


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("utils", "from ..data import x"),
        ("models", "    from onward.training.run import train"),
        ("training", "from ..evaluation import x"),
        ("data", "import onward.models"),
        ("commands", "from onward_studies.engine import study"),
        ("attic", "from ..utils import x"),
    ],
)
def test_what_goes_upward_is_found(tmp_path, room, line):
    for name in ("utils", "data", "models", "training", "evaluation", "commands", "attic"):
        (tmp_path / "onward" / name).mkdir(parents=True)
        (tmp_path / "onward" / name / "__init__.py").touch()
    for name in ("onward", "onward_studies"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "__init__.py").touch()
    for name in ("onward/training/run.py", "onward_studies/engine.py"):
        (tmp_path / name).touch()
    indent = len(line) - len(line.lstrip())
    (tmp_path / "onward" / room / "wrong.py").write_text(("def f():\n" if indent else "") + line + "\n")
    assert [text.split(",")[0] for text in upward(tmp_path)] == [f"onward.{room}.wrong"]


def test_downward_imports_are_fine(tmp_path):
    for name in ("utils", "models"):
        (tmp_path / "onward" / name).mkdir(parents=True)
        (tmp_path / "onward" / name / "__init__.py").touch()
    (tmp_path / "onward" / "__init__.py").touch()
    (tmp_path / "onward" / "models" / "right.py").write_text("from ..utils import x\n")
    assert upward(tmp_path) == []
