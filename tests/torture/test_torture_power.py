"""The power fails at random moments, and all that was not synced is gone: the same command goes on to the same end."""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path

import pytest
from power import FAILED, run_until_it_fails
from processes import in_a_process

KINDS = ("window", "block", "masked", "sweep", "study")
FAILURES = int(os.environ.get("ONWARD_POWER_FAILURES", "60"))
RENAMES = 40  # about as many as a run has


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_power_failures(kind: str, kinds, undisturbed, tmp_path: Path) -> None:
    expected, _ = undisturbed(kind)
    draw = random.Random(kind)
    for number in range(FAILURES // len(KINDS)):
        disk, left = tmp_path / f"disk-{number}", tmp_path / f"left-{number}"
        disk.mkdir()
        work = partial(kinds[kind].do, disk / "run")
        process = in_a_process(run_until_it_fails, disk, draw.randint(1, RENAMES), left, number % 2 == 0, work)
        process.join()
        assert process.exitcode == FAILED
        kinds[kind].do(left / "run")
        assert kinds[kind].out(left / "run") == expected, f"failure {number}"
    print(f"{kind}: {FAILURES // len(KINDS)} power failures")
