"""The command itself, in a process of its own: help at once, the package when a verb needs it, any terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_models import save_small_gpt2
from typer.main import get_command

from onward import add_recurrence, cli
from onward.models.pretrained import load_backbone
from onward.utils.version import __version__

SOURCE = Path(cli.__file__).parents[1]
VERBS = [*get_command(cli.app).commands, "train window", "train block", "train masked"]


def run(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"PYTHONPATH": str(SOURCE)} | environment
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, timeout=300)


def test_help_needs_neither_torch_nor_transformers():
    code = f"""
import sys
import onward_command
for verb in {["", *VERBS]!r}:
    sys.argv = ["onward", *verb.split(), "--help"]
    try:
        onward_command.main()
    except SystemExit as end:
        assert end.code == 0, (verb, end.code)
slow = [name for name in ("torch", "transformers", "datasets", "numpy", "matplotlib") if name in sys.modules]
assert not slow, slow
"""
    ended = run(code)
    assert ended.returncode == 0, ended.stderr.decode()
    shown = ended.stdout.decode()
    assert "--prompt-file" in shown and "--learning-rates" in shown and len(VERBS) == 9 + 3


def test_a_verb_has_the_whole_package_and_a_terminal_may_know_ascii_only(tmp_path):
    model, tokenizer = load_backbone(str(save_small_gpt2(tmp_path / "backbone")))
    add_recurrence(model, carrier="spans", window=24).save_pretrained(tmp_path / "größe")
    tokenizer.save_pretrained(tmp_path / "größe")
    (tmp_path / "text.txt").write_text("the sea and the ship", encoding="utf-8")
    out = tmp_path / "größe" / "中.safetensors"
    code = "import onward_command; onward_command.main()"
    ended = run(
        code, "embed", str(tmp_path / "größe"), str(tmp_path / "text.txt"), "--out", str(out), PYTHONIOENCODING="ascii"
    )
    assert ended.returncode == 0, ended.stderr.decode()
    assert out.is_file() and ended.stdout.decode("ascii").strip().endswith("gr??e/?.safetensors")


def show(line: list[str], monkeypatch, capsys) -> str:
    monkeypatch.setattr(sys, "argv", ["onward", *line])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 1
    return capsys.readouterr().err


def test_what_was_not_foreseen_is_still_no_page_of_python(monkeypatch, capsys):
    def broken(_):
        raise KeyError("carrier")

    monkeypatch.setattr("onward_studies.STUDIES", {"a": None})
    monkeypatch.setattr("onward_studies.command.chosen_study", broken)
    shown = show(["study", "a"], monkeypatch, capsys)
    assert shown.startswith("onward: KeyError: 'carrier'. This should") and "ONWARD_TRACEBACK=1" in shown
    monkeypatch.setenv("ONWARD_TRACEBACK", "1")
    with pytest.raises(KeyError):
        cli.main()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 7 bytes")])
def test_too_little_memory_is_a_sentence(error, monkeypatch, capsys):
    def too_large(_):
        raise error

    monkeypatch.setattr("onward_studies.command.chosen_study", too_large)
    shown = show(["study", "a"], monkeypatch, capsys)
    assert shown.startswith("onward: the memory of this machine is not enough") and str(error) in shown


def test_arguments_that_are_no_text_are_refused(monkeypatch, capsys):
    name = os.fsdecode(b"gr\xf6sse")
    assert r"'gr\udcf6sse' is not UTF-8" in show(["finetune", "x", "--name", name], monkeypatch, capsys)


def test_the_version_needs_no_torch():
    code = "import sys, onward_command\ntry: onward_command.main()\nfinally: assert 'torch' not in sys.modules"
    ended = run(code, "--version")
    assert ended.returncode == 0, ended.stderr.decode()
    assert ended.stdout.decode() == f"onward {__version__}\n"


def test_the_shell_completes_verbs_and_options():
    code = "import sys, onward_command; sys.argv[0] = 'onward'; onward_command.main()"
    for words, wanted in (
        ("onward tr", "train"),
        ("onward train wi", "window"),
        ("onward train block --tok", "--tok"),
        ("onward study ga", "gates"),
    ):
        environment = {"_ONWARD_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        assert wanted in run(code, **environment).stdout.decode().split("\n")[0]


def test_without_the_studies_the_verb_says_what_to_install():
    code = (
        "import importlib.util as util, onward_command\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name: None if name == 'onward_studies' else find(name)\n"
        "onward_command.main()"
    )
    ended = run(code, "study", "gates", "--scale", "smoke")
    assert ended.returncode == 1
    assert "pip install '.[studies]'" in ended.stderr.decode()
