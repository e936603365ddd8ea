"""`onward demo`, on a tiny backbone and a few made-up plays"""

from __future__ import annotations

import json
import random

import pytest
from command_line import WORDS, run

from onward import WindowRecurrenceConfig, data
from onward.commands import demo


@pytest.fixture(scope="module")
def shown(place, tmp_path_factory):
    """(what the demo said, its rows by their names, its folder)"""
    folder = tmp_path_factory.mktemp("demo")
    choose = random.Random(0)
    for part, plays in (("train", 5), ("validation", 1), ("test", 2)):
        (folder / "plays" / part).mkdir(parents=True)
        for number in range(plays):
            lines = (" ".join(choose.choices(WORDS.split(), k=6)) for _ in range(90))
            (folder / "plays" / part / f"{number}.txt").write_text("\n".join(lines), encoding="utf-8")
    corpus = data.load_corpus(str(folder / "plays"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "BACKBONE", str(place / "backbone"))
        patch.setattr(demo, "CONFIG", {**demo.CONFIG, "carrier": "selected"})
        patch.setattr(data, "load_corpus", lambda name: corpus)
        said = " ".join(run(f"demo --quick --out {folder / 'out'}").split())
    rows = json.loads((folder / "out" / "results.json").read_text())["rows"]
    return said, {row["variant"]: row for row in rows}, folder / "out"


def test_it_shows_ours_beside_every_control(shown):
    _, rows, _ = shown
    assert [*rows] == ["full context", "plain", "kept tokens", "constant", "recurrent", "swapped"]
    assert all(row["measures"] and row["overlap"] == 0 for name, row in rows.items() if name != "full context")
    assert not any(row["notes"] for name, row in rows.items() if name != "full context"), "every control was trained"


def test_memories_have_the_same_bytes(shown):
    _, rows, _ = shown
    sizes = {name: row["state_bytes"] for name, row in rows.items()}
    assert sizes["kept tokens"] == sizes["constant"] == sizes["recurrent"] == sizes["swapped"] > sizes["plain"] == 0
    assert sizes["full context"] > sizes["recurrent"]


def test_all_models_learn_from_the_same_tokens_in_the_same_way(shown):
    _, _, folder = shown
    trained = {name: json.loads((folder / name / "run.json").read_text()) for name in (*demo.CONTROLS, "selected")}
    alike = {
        json.dumps({name: value for name, value in run.items() if not name.startswith("model.")})
        for run in trained.values()
    }
    assert len(alike) == 1
    assert [run["model.carrier"] for name, run in trained.items()] == [*demo.CONTROLS, "selected"]
    assert {run["model.slots"] for name, run in trained.items() if name != "none"} == {127}


def test_what_the_memory_is_worth_is_said_of_kept_tokens_only(shown):
    said, rows, _ = shown
    gain = rows["recurrent"]["gain_over_kept"]["mean"]
    assert f"What the memory is worth, its gain over kept tokens in nats per token: {gain:+.3f}" in said
    assert said.count("worth") == 1
    for meaning in ("plain windows", "a constant in the memory's place", "another play's memory"):
        assert f"with {meaning}" in said
    assert "A sample." in said and "minutes in all" in said


def test_it_is_of_the_carrier_that_we_recommend():
    config = WindowRecurrenceConfig(**demo.CONFIG)
    assert (config.carrier, config.window, config.slots) == ("matched", 64, 127)
