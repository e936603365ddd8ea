"""The README's Python is run as it stands, on tiny models of the names it uses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from small_models import save_small_bert, save_small_gpt2

README = Path(__file__).parent.parent / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.S)


def test_python_in_the_readme_runs(tmp_path, monkeypatch):
    save_small_gpt2(tmp_path / "gpt2")
    save_small_bert(tmp_path / "google-bert" / "bert-base-uncased")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    assert names["text"].shape[1] > names["ids"].shape[1]
    assert (tmp_path / "with-recurrence" / "config.json").is_file()
    assert names["vectors"].documents.shape[0] == 1


def test_every_verb_of_the_readme_exists():
    from typer.main import get_command

    from onward.cli import app

    verbs = set(get_command(app).commands)
    used = {line.split()[1] for block in blocks("bash") for line in block.splitlines() if line.startswith("onward")}
    assert used and used <= verbs


@pytest.mark.parametrize("linked", re.findall(r"\]\(((?!http)[^)#]+)\)", README.read_text(encoding="utf-8")))
def test_files_the_readme_links_to_exist(linked):
    assert (README.parent / linked).exists()
