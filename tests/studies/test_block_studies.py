"""The studies of block-recurrent models: the smallest scale from beginning to end, and what made-up bits come to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_masked_study import run

from onward import BlockRecurrentConfig
from onward.corpora import Document
from onward.studies import STUDIES, block_sizes, gates
from onward.studies.blocks import BlockSizes, Row, run_name
from onward.studies.intervals import FAILS, HOLDS
from onward.studies.training_runs import cut, some_of


def test_smoke_of_gates(tmp_path: Path) -> None:
    said = run(f"study gates --scale smoke --seeds 1 --out {tmp_path}")
    for name in gates.PAPER:
        assert f"| {name} | " in said
    saved = json.loads((tmp_path / "smoke" / "gates" / "results.json").read_text())["outcomes"]
    assert saved[gates.TIMES]["relative"]["Slide:13L"] == 1
    ours = saved["blocks2-books-rec-fixed-skip-seed0"]
    trials = {o["learning_rate"]: o["validation_loss"] for n, o in saved.items() if "rate-rec" in n}
    assert ours["learning_rate"] == min(trials, key=trials.__getitem__) and ours["test_bits"] > 0


def test_smoke_of_scale(tmp_path: Path) -> None:
    said = run(f"study scale --scale smoke --seeds 1 --out {tmp_path}")
    assert "| Slide:13L:large | " in said and "| Rec:fixed:skip:large | " in said


def test_all_ablations_are_models() -> None:
    for scale, sizes in STUDIES["ablations"].sizes.items():
        for row in block_sizes.ablation_rows(sizes):
            config = row.config(sizes, vocab_size=99)
            assert isinstance(config, BlockRecurrentConfig), scale
    laptop = STUDIES["ablations"].sizes["laptop"]
    rows = {row.name: row.config(laptop) for row in block_sizes.ablation_rows(laptop)}
    assert rows["Rec:fixed:skip, two far apart"].recurrent_layers == [2, 5]
    assert rows["Rec:fixed:skip, two side by side"].recurrent_layers == [4, 5]
    smaller = rows["Rec:fixed:skip, window 8"]
    assert (smaller.window, smaller.num_states, smaller.segment_length) == (8, 32, 256)
    deeper = rows["Rec:fixed:skip, one more layer"]
    assert deeper.num_hidden_layers == 7 and deeper.recurrent_layers == [5]


def bits(names: dict[str, float], study: str) -> dict[str, Any]:
    """Two seeds, which differ by 0.1 in all."""
    return {
        run_name(STUDIES[study].sizes["smoke"], "books", Row("Slide:12L", name), seed): {
            "test_bits": number + 0.1 * seed,
            "test_word_perplexity": 2**number,
            "parameters": 1234,
        }
        for name, number in names.items()
        for seed in (0, 1)
    }


def test_what_bits_come_to() -> None:
    outcomes = bits({"Rec:fixed:skip": 3.0, "Slide:13L": 3.5, "Feedback:fixed:skip": 3.25}, "gates")
    found = gates.report(STUDIES["gates"].setting("smoke", seeds=2), outcomes | {gates.TIMES: {"relative": {}}})
    assert "| Rec:fixed:skip |  | 0.99 | 3.050 ± 0.635 | 3.53 |" in found.markdown()
    assert [(c.claim, c.paper_saw, c.we_saw, c.verdict) for c in found.claims] == [
        ("Recurrence is better than one more layer (books)", "3.57 -> 3.53", "0.5000 ± 0.0000 bits per token", HOLDS),
        ("Feedback is better still (books)", "3.53 -> 3.49", "-0.2500 ± 0.0000 bits per token", FAILS),
    ]
    large = bits({"Slide:13L:large": 3.5, "Rec:fixed:skip:large": 3.25}, "scale")
    report = block_sizes.report_scale(STUDIES["scale"].setting("smoke", seeds=2), large)
    assert "| Slide:13L:large | 1,234 | 3.550 ± 0.635 | 11.3 ± 0.0 | 3.39 | 34.8 |" in report.markdown()
    assert [claim.verdict for claim in report.claims] == [HOLDS]


def test_what_ablations_come_to() -> None:
    setting = STUDIES["ablations"].setting("smoke", seeds=2)
    names = {row.name: 4.0 for row in block_sizes.ablation_rows(setting.sizes)}
    names |= {"Slide:13L, window 2": 5.0, "Rec:fixed:skip, window 2": 4.25, "Rec:fixed:skip, 1 states": 4.5}
    names |= {"Rec:fixed:skip, two far apart": 3.75, "Rec:fixed:skip, one more layer": 3.5}
    names |= {"Rec:fixed:skip, two side by side": 3.5}
    found = block_sizes.report_ablations(setting, bits(names, "ablations"))
    assert [claim.verdict for claim in found.claims] == [HOLDS, HOLDS, HOLDS, HOLDS, FAILS]
    assert found.claims[0].we_saw == "0.7500 ± 0.0000 bits per token"
    assert "| 1 | 4.550 ± 0.635 | 0.5000 ± 0.0000 |" in found.markdown()
    assert "Too little" in block_sizes.report_ablations(setting, {}).summary


def test_texts_are_chosen_and_cut() -> None:
    documents = [Document(str(n), "line\n" * 10) for n in range(50)]
    some = some_of(documents, 220)
    assert len(some) == 5 and some == some_of(documents, None)[:5] and some != documents[:5]
    assert len(some_of(documents, None)) == 50
    pieces = cut(documents[0], 12)
    assert [piece.text for piece in pieces] == ["line\n" * 3] * 3 + ["line\n"] and pieces[1].name == "0, 2"
    assert [piece.text for piece in cut(Document("d", "no end of line"), 3)] == ["no end of line"]


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_every_row_reads_as_many_tokens_a_step(scale: str) -> None:
    sizes: BlockSizes = STUDIES["gates"].sizes[scale]
    for row in gates.ROWS:
        assert sizes.tokens_per_step % row.config(sizes).segment_length == 0, row.name
