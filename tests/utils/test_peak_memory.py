"""Peak memory, on every system."""

import builtins
import sys
from types import SimpleNamespace

import pytest
import torch

from onward.utils import memory
from onward.utils.memory import peak_memory


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems only know the peak of all time")
def test_peak_memory_is_what_came_on_top():
    with peak_memory(torch.device("cpu")) as peak:
        torch.ones(50_000_000)
        assert 180e6 < peak() < 300e6
    with peak_memory(torch.device("cpu")) as peak:
        assert peak() < 100e6


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
