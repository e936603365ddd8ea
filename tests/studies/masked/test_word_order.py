"""Rows whose visible words are shuffled."""

from __future__ import annotations

import torch

from onward.data.masked_rows import Hiding
from onward_studies.masked.word_order import shuffled


def test_what_is_asked_for_stays_where_it_is() -> None:
    ids = torch.arange(40)
    special = (ids == 0) | (ids == 39)
    hiding = Hiding(mask=1, known=40, special=special, continues=torch.zeros(40, dtype=torch.bool))
    labels = torch.where(ids % 5 == 2, ids, -100)
    mixed = shuffled(ids, labels, hiding, number=3)
    kept = special | (labels != -100)
    assert torch.equal(mixed[kept], ids[kept]) and torch.equal(mixed.sort().values, ids)
    assert (mixed != ids).sum() > 20 and torch.equal(mixed, shuffled(ids, labels, hiding, number=3))
    assert not torch.equal(mixed, shuffled(ids, labels, hiding, number=4))
