"""Killed at random moments, over and over, every training ends as if nothing had happened."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from processes import in_a_process

KINDS = ("window", "block", "masked", "sweep", "study")
KILLS = int(os.environ.get("ONWARD_KILLS", "40"))
KILLS_OF_ONE_RUN = 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_kills(kind: str, kinds, undisturbed, tmp_path: Path) -> None:
    expected, seconds = undisturbed(kind)
    draw = random.Random(kind)
    kills = runs = 0
    while kills < -(-KILLS // len(KINDS)):
        folder, of_this = tmp_path / str(runs), 0
        while True:
            process = in_a_process(kinds[kind].do, folder)
            process.join(draw.uniform(0, 0.8 * seconds) if of_this < KILLS_OF_ONE_RUN else None)
            if not process.is_alive():
                break
            process.kill()
            process.join()
            of_this, kills = of_this + 1, kills + 1
        assert process.exitcode == 0
        assert kinds[kind].out(folder) == expected, f"run {runs}, after {of_this} kills"
        runs += 1
    print(f"{kind}: {kills} kills of {runs} runs")
