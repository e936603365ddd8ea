"""`topics` and `continuations`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from study_command import run
from tiny_models import recurrent_variant as recurrent_model

from onward.evaluation import plain
from onward_studies import STUDIES
from onward_studies.engine.intervals import FAILS, HOLDS
from onward_studies.engine.work import Work
from onward_studies.window_recurrent import topics


def test_topics_and_continuations(place: Path) -> None:
    assert "| swapped | " in run(f"study topics --scale smoke --seeds 1 --out {place}")
    said = run(f"study continuations --scale smoke --seeds 1 --out {place}")
    assert "| context, its end | recurrent | plain | swapped | divergence |" in said
    saved = json.loads((place / "smoke" / "topics" / "results.json").read_text())["outcomes"]["topics-seed0"]
    assert saved["contexts"] == 6 and len(saved["samples"]) == 2
    assert 0 <= saved["divergence"]["recurrent"] <= 1


def test_contexts_are_taken_evenly_and_from_all_documents() -> None:
    sizes = STUDIES["topics"].setting("smoke", changes={"contexts": 4}).sizes
    documents = [torch.arange(100), torch.arange(1000, 1200), torch.arange(30)]
    found = topics.contexts_of(sizes, documents)
    assert found.shape == (4, 49) and found[:, 0].tolist() == [0, 1000, 51, 1151]
    with pytest.raises(ValueError, match="no validation document has the 49 tokens"):
        topics.contexts_of(sizes, documents[2:])


def test_only_the_memory_differs() -> None:
    model = recurrent_model("gpt2", "spans", window=6)
    contexts = torch.randint(1, 60, (3, 13))
    found = topics.continued(plain(model, 6), model, contexts, 4)
    alone = [topics.continued(plain(model, 6), model, contexts[[i]], 4) for i in range(3)]
    for i in range(3):
        assert torch.equal(found["recurrent"][i], alone[i]["recurrent"][0])
        assert torch.equal(found["plain"][i], alone[i]["plain"][0])
        assert torch.equal(alone[i]["swapped"], alone[i]["recurrent"]), "its own memory, where there is no other"
    # What swaps reads the next context, and then what followed its own.
    swapped = torch.cat([contexts[[1, 2, 0], :-1], contexts[:, -1:]], dim=1)
    assert torch.equal(topics.continued(plain(model, 6), model, swapped, 4)["recurrent"], found["swapped"])
    assert not torch.equal(found["swapped"], found["recurrent"])
    # The likeliest token at every step, by reading it all at once.
    ids = torch.cat([contexts, found["recurrent"]], dim=1)
    assert torch.equal(model(ids).logits[:, 12:-1].argmax(-1), found["recurrent"])


def test_what_topics_come_to() -> None:
    setting = STUDIES["topics"].setting("smoke", seeds=2)
    sign = {"share": 0.75, "p": 0.01}
    outcomes = {
        f"topics-seed{seed}": {
            "divergence": {"recurrent": 0.5 + 0.1 * seed, "plain": 0.6 + 0.1 * seed, "swapped": 0.4 + 0.1 * seed},
            "wordless": dict.fromkeys(topics.CONTINUED_BY, 0.0),
            "sign_test": {"plain": sign, "swapped": sign},
        }
        for seed in (0, 1)
    }
    found = topics.report_topics(setting, outcomes)
    assert [claim.verdict for claim in found.claims] == [HOLDS, FAILS]
    assert found.claims[0].we_saw == "0.1000 ± 0.0000 bits closer"


def test_topics_are_those_of_five_thousand_books_at_the_papers_scale(tmp_path: Path) -> None:
    study = STUDIES["topics"]
    for place, count in (("few", 6), ("many", 9)):
        (tmp_path / place).mkdir()
        for number in range(count):
            (tmp_path / place / f"{number}.txt").write_text(f"{place} {number}")
    places = {"books": str(tmp_path / "few"), "wikipedia": "shakespeare", "topics": str(tmp_path / "many")}
    assert study.corpora["paper"]["topics"] == "pg19-all" and study.sizes["paper"].topic_books == 5000
    setting = study.setting("paper", seeds=1, corpora=places, changes={"topic_books": 3})
    work = Work(tmp_path / "out", setting, study.runs(setting))
    assert [text.text for text in topics.texts_with_topics(setting.sizes, work)] == ["many 0", "many 1", "many 2"]
    studies = (STUDIES["overlap-books"], study)
    shared, own = ({run.name: run.settings for run in some.runs(some.setting("paper"))} for some in studies)
    both = shared.keys() & own.keys()
    assert len(both) > 6 and all(shared[name] == own[name] for name in both), "models are those of Table 2"
