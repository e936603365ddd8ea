"""`onward generate`"""

from __future__ import annotations

import pytest
from command_line import WORDS, run
from typer.testing import CliRunner

from onward import cli


def test_generate_from_a_long_prompt(place, capsys):
    (place / "prompt.txt").write_text(WORDS * 3, encoding="utf-8")
    run(f"generate {place}/run --prompt-file {place}/prompt.txt --tokens 30 --no-sample")


def test_generate_needs_a_prompt(place):
    with pytest.raises(ValueError, match="nothing to continue"):
        CliRunner().invoke(cli.app, ["generate", str(place / "run"), "--prompt", " "], catch_exceptions=False)


def test_generate_blocks(place, blocks):
    output = run(f"generate {blocks} --prompt-file {place}/texts/0.txt --tokens 40 --no-sample --endless")
    assert WORDS * 8 in output and len(output) >= len(WORDS * 8) + 40
