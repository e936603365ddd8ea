"""`onward` as a person runs it: in this process, with all that it says."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from onward import cli

WORDS = "the sea and the ship and the long way home, said the old man to the boy. "
TINY_BLOCKS = (
    "--tokenizer bytes --window 16 --set num_hidden_layers=2 --set hidden_size=32 --set num_attention_heads=2 "
    "--set recurrent_layers=[2] --set num_states=4 --batch-size 2 --epochs 2 --learning-rate 0.3 --warmup-steps 2 "
    "--save-every 1500"
)


def run(line: str) -> str:
    result = CliRunner().invoke(cli.app, cli.spread_numbers(line.split(), "--overlap"), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def error_of(line: str, monkeypatch, capsys) -> str:
    """What a person sees when a command cannot be done: one sentence."""
    monkeypatch.setattr("sys.argv", ["onward", *line.split()])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("onward: ")
    return message.removeprefix("onward: ")
