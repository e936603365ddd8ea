"""What all tortures have in common: the trainings, and what they come to when nothing happens to them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import in_a_process
from tortured import Tortured, tortured


@pytest.fixture(scope="session")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tortured]:
    return tortured(tmp_path_factory.mktemp("read"))


@pytest.fixture(scope="session")
def undisturbed(
    kinds: dict[str, Tortured], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Any, float]]:
    """What a kind comes to, and how many seconds it takes."""
    known: dict[str, tuple[Any, float]] = {}

    def find(kind: str) -> tuple[Any, float]:
        if kind not in known:
            folder: Path = tmp_path_factory.mktemp("undisturbed") / kind
            started = time.monotonic()
            process = in_a_process(kinds[kind].do, folder)
            process.join()
            assert process.exitcode == 0
            known[kind] = kinds[kind].out(folder), time.monotonic() - started
        return known[kind]

    return find
