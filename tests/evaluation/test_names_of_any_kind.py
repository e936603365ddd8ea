"""What people call things goes into tables and pictures as it is written."""

from __future__ import annotations

import builtins
from types import SimpleNamespace

import pytest
import torch
from matplotlib.figure import Figure

from onward.evaluation import plots
from onward.utils import memory
from onward.utils.markdown import markdown_table
from onward_studies.engine.reporting import Report, Table, write

NAMES = [r"$\frac$", "$x_1$", r"a\$b$", "$", "|", "a|b\nc", "x_y^z{", "é ü ▁ 中"]


def test_a_table_stays_a_table():
    text = markdown_table(["model", "a|b"], [["one\ntwo", "1|2"], ["three\r\n", ""]], words=["model"])
    assert text == "| model | a\\|b |\n| --- | ---: |\n| one two | 1\\|2 |\n| three |  |\n"


@pytest.mark.filterwarnings("ignore:Glyph")
def test_pictures_show_names_as_they_are(tmp_path):
    figure = Figure(layout="constrained")
    left, right = figure.subplots(1, 2)
    for name in NAMES:
        left.plot([1, 2], [1e-9, 1e9], label=name)
    left.set_yscale("log")
    left.set_title(NAMES[0])
    left.set_xlabel(NAMES[1])
    left.legend()
    right.barh(range(len(NAMES)), range(len(NAMES)))
    right.set_yticks(range(len(NAMES)), NAMES)
    right.annotate(NAMES[0], (1, 1))
    figure.legend(title=NAMES[0], loc="outside upper center")
    plots.save(figure, tmp_path / "v1.5")
    drawn = (tmp_path / "v1.5.svg").read_text(encoding="utf-8")
    assert drawn.count(r">$\frac$<") >= 4 and ">$x_1$<" in drawn
    assert r">$\mathdefault" not in drawn, "numbers of a logarithmic axis stay formulas"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["v1.5.png", "v1.5.svg"]
    write(Report("title", "said", [Table("t", NAMES, [NAMES])], {"f": figure}), tmp_path / "page", {}, {})
    page = (tmp_path / "page" / "report.html").read_text(encoding="utf-8")
    assert page.count(r">$\frac$<") >= 4


def test_memory_is_measured_where_there_is_no_resource(monkeypatch):
    real = builtins.__import__

    def windows(name, *rest):
        if name == "resource":
            raise ModuleNotFoundError(name)
        if name == "psutil":
            return SimpleNamespace(Process=lambda: SimpleNamespace(memory_info=lambda: SimpleNamespace(peak_wset=7)))
        return real(name, *rest)

    monkeypatch.setattr(memory, "_STATUS", memory.Path("no such file"))
    monkeypatch.setattr(memory, "_CLEAR", memory.Path("no such folder/file"))
    monkeypatch.setattr(memory, "sys", SimpleNamespace(platform="win32"))
    monkeypatch.setattr(builtins, "__import__", windows)
    with memory.peak_memory(torch.device("cpu")) as peak:
        assert peak() == 0
    assert "resource" not in vars(memory)
