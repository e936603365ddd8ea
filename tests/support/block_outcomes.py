"""Outcomes of block-recurrent models that were never run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onward_studies import STUDIES
from onward_studies.block_recurrent.rows import BlockRow
from onward_studies.block_recurrent.runs import run_name


def bits(names: dict[str, float], study: str, **changes: Any) -> dict[str, Any]:
    """Two seeds, which differ by 0.1 in all."""
    sizes = replace(STUDIES[study].sizes["smoke"], **changes)
    return {
        run_name(sizes, "books", BlockRow("Slide:12L", name), seed): {
            "test_bits": number + 0.1 * seed,
            "test_word_perplexity": 2**number,
            "parameters": 1234,
        }
        for name, number in names.items()
        for seed in (0, 1)
    }
