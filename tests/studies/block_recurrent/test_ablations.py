"""`ablations`: its models, and what made-up bits come to."""

from __future__ import annotations

from block_outcomes import bits

from onward import BlockRecurrentConfig
from onward_studies import STUDIES
from onward_studies.block_recurrent import ablations
from onward_studies.engine.describing import described
from onward_studies.engine.intervals import FAILS, HOLDS


def test_all_ablations_are_models() -> None:
    for of_scale, sizes in STUDIES["ablations"].sizes.items():
        for row in ablations.ablation_rows(sizes):
            config = row.config(sizes, vocab_size=99)
            assert isinstance(config, BlockRecurrentConfig), of_scale
    laptop = STUDIES["ablations"].sizes["laptop"]
    rows = {row.name: row.config(laptop) for row in ablations.ablation_rows(laptop)}
    assert rows["Rec:fixed:skip, two far apart"].recurrent_layers == [1, 3]
    assert rows["Rec:fixed:skip, two side by side"].recurrent_layers == [2, 3]
    smaller = rows["Rec:fixed:skip, window 8"]
    assert (smaller.window, smaller.num_states, smaller.segment_length) == (8, 32, 256)
    deeper = rows["Rec:fixed:skip, one more layer"]
    assert deeper.num_hidden_layers == 5 and deeper.recurrent_layers == [3]


def test_ablations_have_runs_of_the_gates_on_a_laptop() -> None:
    runs = {name: described(STUDIES[name].runs(STUDIES[name].setting())) for name in SHARING}
    shared = set(runs["gates"]) & set(runs["ablations"])
    assert {"bpe-2000-books", "blocks4-books-slide-13l-seed2", "blocks4-books-rec-fixed-skip-seed0"} <= shared
    assert all(runs["gates"][name] == runs["ablations"][name] for name in shared)


SHARING = ("gates", "ablations")


def test_what_ablations_come_to() -> None:
    setting = STUDIES["ablations"].setting("smoke", seeds=2)
    names = {row.name: 4.0 for row in ablations.ablation_rows(setting.sizes)}
    names |= {"Slide:13L, window 2": 5.0, "Rec:fixed:skip, window 2": 4.25, "Rec:fixed:skip, 1 states": 4.5}
    names |= {"Rec:fixed:skip, two far apart": 3.75, "Rec:fixed:skip, one more layer": 3.5}
    names |= {"Rec:fixed:skip, two side by side": 4.5}
    found = ablations.report(setting, bits(names, "ablations"))
    assert [claim.verdict for claim in found.claims] == [HOLDS, HOLDS, HOLDS, HOLDS, HOLDS, FAILS]
    assert [claim.we_saw for claim in found.claims[:2]] == ["0.7500 ± 0.0000 bits per token"] * 2
    assert "| 1 | 4.550 ± 0.635 | 0.5000 ± 0.0000 |" in found.markdown()
    assert "two far apart: 1 and 2 of 3" in found.markdown()
    assert "Too little" in ablations.report(setting, {}).summary
