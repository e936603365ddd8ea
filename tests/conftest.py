"""For all tests: one thread each, the same random numbers, and which folders `make quick` leaves out."""

import os
from pathlib import Path

# Tiny models gain nothing from threads, and threads that wait for each other cost much on a busy machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)

LONG = ("training", "studies", "torture")  # folders whose tests train, launch processes or run whole studies


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(Path(__file__).parent).parts[0] in LONG:
            item.add_marker(pytest.mark.long)


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Whichever tests ran before on the same worker."""
    torch.manual_seed(0)
