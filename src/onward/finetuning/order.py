"""Batches of like length, in an order that a run which is taken up in the middle of an epoch finds again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.trainer_pt_utils import LengthGroupedSampler

FILE = "order.safetensors"


class ByLength(LengthGroupedSampler):
    """transformers' own draws an epoch's order from torch's random numbers: `drawn_from` are those."""

    drawn_from: Tensor | None = None
    taken_up: Tensor | None = None

    def __iter__(self) -> Iterator[int]:
        if self.taken_up is None:
            self.drawn_from = torch.get_rng_state()
            return super().__iter__()
        self.drawn_from, self.taken_up = self.taken_up, None
        with torch.random.fork_rng([]):
            torch.set_rng_state(self.drawn_from)
            return super().__iter__()

    def save(self, folder: Path) -> None:
        if self.drawn_from is not None:
            save_file({"drawn_from": self.drawn_from}, folder / FILE)

    def take_up(self, folder: Path) -> None:
        self.taken_up = load_file(folder / FILE)["drawn_from"]
