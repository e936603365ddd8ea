"""`memory`: the smallest scale, how stretches are cut and scored, and what made-up losses come to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from study_command import run
from window_models import recurrent, word_documents, word_tokenizer

from onward.data import Document
from onward.data.tokens import TokenizedDocument
from onward.utils.fields import FieldError
from onward_studies import STUDIES
from onward_studies.engine.intervals import FAILS, HOLDS, UNSEEN
from onward_studies.window_recurrent import memory
from onward_studies.window_recurrent.memory_rows import FULL, PLAIN, Reading, fields_of
from onward_studies.window_recurrent.stretches import losses_of, stretches_of

STUDY = STUDIES["memory"]


def test_memory(place: Path) -> None:
    said = run(f"study memory --scale smoke --seeds 1 --out {place}")
    sizes = STUDY.sizes["smoke"]
    for title in ("Untrained: books, windows of 8", "Untrained: code, windows of 16", "Trained: books, windows of 8"):
        assert f"### {title}" in said
    for name in sizes.untrained:
        assert f"| {name} | 4 |" in said and f"| {name} | 8 |" in said
    assert "| constant | 8 |" in said and "| chosen |" in said
    folder = place / "smoke" / "memory"
    saved = json.loads((folder / "results.json").read_text())["outcomes"]
    kept, ours = (saved[f"memory-books-window8-{name}-8"] for name in ("recent", "matched"))
    assert kept["state_bytes"] == ours["state_bytes"] > saved["memory-books-window8-recent-4"]["state_bytes"]
    assert set(ours["read"]["test"]) == {"true", "swapped"}, "at the size for which they are swapped"
    assert set(saved["memory-books-window8-matched-4"]["read"]["test"]) == {"true"}
    assert saved["memory-books-window8-plain-windows"]["state_bytes"] == 0
    full = saved["memory-books-window64-full-context"]
    assert full["state_bytes"] > ours["state_bytes"] and len(full["read"]["test"]["true"]["documents"]) == 3
    trainings = [name for name in saved if "-training-" in name]
    assert len(trainings) == 5, "one for each memory, and for both models without one: it serves all sizes"
    assert {"untrained_window8.svg", "untrained_window16.svg", "trained_window8.svg"} <= {
        file.name for file in folder.iterdir()
    }


# --- which runs there are


def test_parts_of_it_can_be_run_alone() -> None:
    def names(**changes: Any) -> list[str]:
        return [run.name for run in STUDY.runs(STUDY.setting("laptop", 2, changes=changes))]

    everything = names()
    assert set(everything) > set(names(texts=("books",))) and not any("code" in n for n in names(texts=("books",)))
    untrained = names(trained_on=())
    assert set(everything) > set(untrained) and not any("train" in name for name in untrained)
    assert set(everything) > set(names(slots=(32, 128))), "a size more or less does nothing again"
    first_other = next(i for i, name in enumerate(everything) if "wikipedia" in name)
    assert all("-books-" in name for name in everything[:first_other]), "books come first"
    assert not any("-books-" in name for name in everything[first_other:])
    own = names(untrained=("recent", "pooled"), texts=("books",), trained_on=())
    assert "memory-books-window64-pooled-16" in own


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("texts", ("poems",)),
        ("windows", (60,)),
        ("scored_from", 1024),
        ("untrained", ("recent", "forgotten")),
        ("untrained", ("selected-luck",)),
        ("trained", ("recent", "spans")),
    ],
)
def test_what_cannot_be_read_is_refused(name: str, value: Any) -> None:
    with pytest.raises(FieldError):
        STUDY.runs(STUDY.setting("laptop", 1, changes={name: value}))


def test_a_memory_is_a_carrier_and_its_score() -> None:
    assert fields_of("selected-key_difference") == {"carrier": "selected", "score": "key_difference"}
    assert fields_of(PLAIN) == fields_of(FULL) == {"carrier": "none"}


# --- stretches


def numbered(*lengths: int) -> list[Document]:
    return [Document(f"d{n}", " ".join(f"w{n}" for _ in range(length))) for n, length in enumerate(lengths)]


def test_stretches_are_spread_over_documents() -> None:
    found = stretches_of(numbered(40, 5, 40, 12), word_tokenizer(), 6, 10, 30)
    assert [s.name for s in found] == ["d0", "d2", "d3", "d0", "d2"], "a short one has one, or none"
    assert all(len(stretch) == 10 for stretch in found)
    words = Document("d", " ".join(f"w{n}" for n in range(40)))
    middles = stretches_of([words, words], word_tokenizer(), 4, 10, 40)
    first = [int(stretch.ids[0]) - 1 for stretch in middles]
    assert first == [5, 5, 25, 25], "each in the middle of its half"
    with pytest.raises(ValueError, match="of 2 that are held out 1 are so long"):
        stretches_of(numbered(40, 5), word_tokenizer(), 4, 10, 40)


def test_only_later_tokens_are_scored() -> None:
    model = recurrent(carrier="spans", slots=5)
    (ids,) = (word_tokenizer()(d.text, return_tensors="pt").input_ids for d in word_documents()[:1])
    stretches = [TokenizedDocument(name, part, 0, 0) for name, part in (("a", ids[0, :40]), ("b", ids[0, 5:45]))]
    found = losses_of(model, stretches, ["true", "swapped"], 25)
    for stretch, (name, loss) in zip(stretches, found["true"]["documents"], strict=True):
        with torch.no_grad():
            logits = model(stretch.ids[None]).logits[0]
        expected = torch.nn.functional.cross_entropy(logits[24:-1], stretch.ids[25:])
        assert name == stretch.name and loss == pytest.approx(float(expected), abs=1e-6)
    assert found["swapped"]["loss"] != pytest.approx(found["true"]["loss"], abs=1e-9)


# --- what losses come to


def outcomes_of(loss: Callable[[Reading, str], float], seeds: Iterable[int] = (0, 1, 2)) -> dict[str, Any]:
    """Of all rows at laptop scale. Documents, or seeds, differ by 0.1 in all; swapped memories are 0.5 worse."""
    sizes, found = STUDY.sizes["laptop"], {}
    rows = [r for text in sizes.texts for r in memory.readings(sizes, text, sizes.windows, sizes.untrained)]
    rows += memory.readings(sizes, "books", sizes.trained_windows, sizes.trained, trained=True)
    for row in rows:
        for seed in seeds if row.trained else [None]:
            read: dict[str, Any] = {}
            for split in ("validation", "test"):
                own = loss(row, split) + 0.1 * (seed or 0)
                for name, more in (("true", 0.0), ("swapped", 0.5)):
                    documents = [(f"d{n}", own + more + 0.1 * n) for n in range(3)]
                    read.setdefault(split, {})[name] = {"loss": own + more + 0.1, "documents": documents}
            facts = {"state_bytes": 1000 * (row.slots or 0), "counted_flops": 1e8, "tokens_per_second": 100.0}
            found[row.run(seed)] = {"read": read, **facts}
    return found


def made_up(row: Reading, split: str) -> float:
    if row.slots is None:
        return 3.0 if row.memory == FULL else 4.0
    gains = {"selected-received": 0.125, "matched": 0.09375, "constant": -0.25}
    gain = gains.get(row.memory, 0.0)
    if row.trained and row.memory == "matched":
        gain = 0.4375
    if split == "validation" and row.memory == "matched":
        gain += 0.25  # the best on validation, not on test
    return 3.5 - gain


def test_what_losses_come_to() -> None:
    setting = STUDY.setting("laptop", seeds=3)
    found = STUDY.report(setting, outcomes_of(made_up))
    (choice,) = (table for table in found.tables if table.title.startswith("The choice"))
    assert [row[0] for row in choice.rows if row[-1] == "chosen"] == ["matched"], (
        "on validation, whatever the test says"
    )
    tables = {table.title: {tuple(row[:2]): row for row in table.rows} for table in found.tables}
    columns = next(table.columns for table in found.tables if table.title.startswith("Untrained"))
    row = dict(zip(columns, tables["Untrained: books, windows of 64"]["selected-received", "128"], strict=True))
    assert row["gain over kept tokens"] == "0.125 ± 0.000" and row["won back, %"] == "25"
    assert row["lost when swapped"] == "0.500 ± 0.000" and row["test loss"] == "3.475"
    trained = dict(zip(columns, tables["Trained: books, windows of 64"]["matched", "128"], strict=True))
    assert trained["won back, %"] == "88 ± 0"
    verdicts = [(claim.claim.partition(" are ")[0], claim.verdict) for claim in found.claims]
    assert verdicts[:2] == [("Untrained, 128 slots", HOLDS), ("Untrained, 32 slots", FAILS)]
    won_back, constant = found.claims[-2:]
    assert won_back.we_saw == "matched: 87.5 ± 0.0 %" and (won_back.verdict, constant.verdict) == (HOLDS, HOLDS)
    assert set(found.figures) == {"untrained_window64", "untrained_window256", "trained_window64"}
    assert [len(figure.axes) for figure in found.figures.values()] == [4, 4, 1]


def test_no_share_of_nothing() -> None:
    """Where kept tokens are as good as the full context, nothing can be won back."""
    setting = STUDY.setting("laptop", seeds=3)
    found = STUDY.report(setting, outcomes_of(lambda row, split: 3.0))
    assert any(claim.verdict == UNSEEN and "nothing for sure" in claim.we_saw for claim in found.claims)


def test_what_has_ended_is_shown() -> None:
    setting = STUDY.setting("laptop", seeds=3)
    one = {name: outcome for name, outcome in outcomes_of(made_up).items() if name == "memory-latex-window64-recent-16"}
    (table,) = (table for table in STUDY.report(setting, one).tables if table.rows)
    assert table.title == "Untrained: latex, windows of 64" and len(table.rows) == 1
