"""Tables and notes that reports of block-recurrent models share."""

from __future__ import annotations

from typing import Any

from block_outcomes import bits

from onward_studies import STUDIES
from onward_studies.block_recurrent import gates
from onward_studies.block_recurrent.notes import about_starts
from onward_studies.engine.intervals import HOLDS


def test_what_other_states_come_to() -> None:
    outcomes = bits({"Rec:fixed:skip": 3.0, "Slide:13L": 3.5}, "gates")
    for seed in (0, 1):
        ours = outcomes[f"blocks2-books-rec-fixed-skip-seed{seed}"]
        ours |= {"test_bits_swapped": ours["test_bits"] + 0.25, "test_bits_ablated": ours["test_bits"] + 0.5}
    found = gates.report(STUDIES["gates"].setting("smoke", seeds=2), outcomes)
    lost = found.tables[1]
    assert list(lost.columns[1:3]) == ["books, another document's", "books, none"]
    assert lost.rows == [["Rec:fixed:skip", "0.250 ± 0.000", "0.500 ± 0.000", "", ""]]
    claim = found.claims[-1]
    assert claim.claim == "Its states are about the document: another's are worse (ours, books)"
    assert (claim.we_saw, claim.verdict) == ("0.2500 ± 0.0000 bits per token", HOLDS)


def test_the_learning_rates_of_both_kinds_are_told() -> None:
    outcomes = bits({"Rec:fixed:skip": 3.0, "Slide:13L": 3.5}, "gates")
    for name, outcome in outcomes.items():
        outcome["learning_rate"] = 0.1 if "rec" in name else 1.0
    found = gates.report(STUDIES["gates"].setting("smoke", seeds=2), outcomes)
    told = "Learning rates, the best of 0.1, 1 on validation: books 1 without states, 0.1 with. Slide:13L and"
    assert any(note.startswith(told) for note in found.notes)


def test_trainings_that_started_from_narrower_kernels_are_named() -> None:
    def trained(version: str) -> dict[str, Any]:
        return {"validation_loss": 1.0, "circumstances": {"versions": {"onward": version}}}

    old, new = {"a": trained("0.1.0"), "tokenizer": {}}, {"b": trained("0.2.0")}
    assert about_starts(new) == [] == about_starts({"tokenizer": {}})
    assert about_starts(old)[0].startswith("All trainings are of onward 0.1.0, whose kernels started narrower")
    assert about_starts(old | new)[0].startswith("1 of 2 trainings")
