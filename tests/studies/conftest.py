"""Trainings in float32 on every processor: what is compared here would differ in the fourth digit in bfloat16."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def no_instructions_for_bfloat16() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.cpu.get_capabilities", dict)
        yield
