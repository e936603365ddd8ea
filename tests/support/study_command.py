"""`onward study`, in this process."""

from __future__ import annotations

from typer.testing import CliRunner

from onward.cli import app


def run(line: str) -> str:
    result = CliRunner().invoke(app, line.split(), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output
