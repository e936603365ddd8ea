"""Damaged at random places, checkpoints are passed over or refused by name: never trained on in silence."""

from __future__ import annotations

import os
import random
import shutil
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from damage import KINDS as DAMAGES
from damage import damage
from processes import in_a_process

from onward.training.checkpoints import all_checkpoints
from onward.utils.files import DamagedFile
from onward.utils.manifests import MANIFEST

KINDS = ("window", "block", "masked", "sweep")
CORRUPTIONS = int(os.environ.get("ONWARD_CORRUPTIONS", "100"))


def _is_named(file: Path, message: str) -> bool:
    """A hash that is not what it was accuses the file that it is of."""
    return str(file if file.name != MANIFEST else file.parent) in message


def _until_two_checkpoints(do: Any, folder: Path, seconds: float, draw: random.Random) -> None:
    """Killed with two of them or more, in one run of it."""
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        process = in_a_process(do, folder)
        process.join(draw.uniform(0.2, 0.95) * seconds)
        process.kill()
        process.join()
        if len(_checkpoints(folder)) >= 2 and not list(folder.glob("training.json")):
            return


def _checkpoints(folder: Path) -> list[Path]:
    """Of a training, or of a sweep's run that has not ended."""
    return [c for place in (folder, *folder.glob("runs/*")) if place.is_dir() for c in all_checkpoints(place)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_corruptions(kind: str, kinds, undisturbed, tmp_path: Path) -> None:
    expected, seconds = undisturbed(kind)
    draw = random.Random(kind)
    seen: Counter[str] = Counter()
    for number in range(CORRUPTIONS // len(KINDS)):
        if number % 5 == 0:
            _until_two_checkpoints(kinds[kind].do, tmp_path / "killed", seconds, draw)
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "killed", folder)
        spoilt = []
        for checkpoint in _checkpoints(folder) if draw.random() < 0.25 else _checkpoints(folder)[-1:]:
            file = draw.choice(sorted(file for file in checkpoint.rglob("*") if file.is_file()))
            damage(file, draw.choice(DAMAGES), draw)
            spoilt.append(file)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                kinds[kind].do(folder)
            except DamagedFile as error:
                assert all(_is_named(file, str(error)) for file in spoilt), (spoilt, error)
                seen["refused by name"] += 1
            else:
                assert kinds[kind].out(folder) == expected, f"silently different: {spoilt}"
                seen["resumed equal"] += 1
        seen["warned of"] += any("damaged" in str(warning.message) for warning in told)
        shutil.rmtree(folder)
    print(f"{kind}: {dict(seen)}")
    assert seen["resumed equal"] > 0
