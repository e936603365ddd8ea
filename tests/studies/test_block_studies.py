"""The studies of block-recurrent models: the smallest scale from beginning to end, and what made-up bits come to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from study_command import run

from onward import BlockRecurrentConfig, BlockRecurrentForCausalLM
from onward.data import Document
from onward.data.tokens import TokenizedDocument
from onward_studies import STUDIES
from onward_studies.block_recurrent import ablations, gates, scale
from onward_studies.block_recurrent.notes import about_starts
from onward_studies.block_recurrent.rows import BlockSizes, Row
from onward_studies.block_recurrent.runs import run_name
from onward_studies.engine import trainings
from onward_studies.engine.conducting import conduct
from onward_studies.engine.describing import described
from onward_studies.engine.intervals import FAILS, HOLDS
from onward_studies.engine.texts import cut, some_of
from onward_studies.engine.trainings import measured


def test_smoke_of_gates(tmp_path: Path) -> None:
    said = run(f"study gates --scale smoke --seeds 1 --out {tmp_path}")
    for name in gates.PAPER:
        assert f"| {name} | " in said
    saved = json.loads((tmp_path / "smoke" / "gates" / "results.json").read_text())["outcomes"]
    assert saved[gates.TIMES]["relative"]["Slide:13L"] == 1
    ours = saved["blocks2-books-rec-fixed-skip-seed0"]
    trials = {o["learning_rate"]: o["validation_loss"] for n, o in saved.items() if "books-rate-rec" in n}
    assert ours["learning_rate"] == min(trials, key=trials.__getitem__) and ours["test_bits"] > 0
    assert "books, bits per token | paper | books, bits per byte | paper |" in said
    as_bytes = {name for name in saved if name.startswith("blocks2-books-bytes-") and "seed" in name}
    assert as_bytes == {f"blocks2-books-bytes-{name}-seed0" for name in ("slide-13l", "rec-fixed-skip")}
    byte_wise = saved["blocks2-books-bytes-rec-fixed-skip-seed0"]
    assert byte_wise["test_bits"] == pytest.approx(byte_wise["test_bits_per_byte"], rel=0.02)  # the first is not scored
    assert {"test_bits_swapped", "test_bits_ablated"} <= set(ours) and ours["test_bits_ablated"] != ours["test_bits"]
    assert "test_bits_swapped" not in saved["blocks2-books-slide-13l-seed0"], "it carries nothing but its window"
    lost = said.split("### Bits lost")[1].split("###")[0]
    assert "| Memorizing:32k | " in lost and "| Rec:lstm:dual | " in lost and "| Slide:13L | " not in lost
    assert byte_wise["settings"]["bytes"] and not ours["settings"]["bytes"]
    assert ours["parameters"] - byte_wise["parameters"] == (300 - 257) * 32, "as many models, but for their letters"


def test_smoke_of_scale(tmp_path: Path) -> None:
    said = run(f"study scale --scale smoke --seeds 1 --out {tmp_path}")
    assert "| Slide:13L:large | " in said and "| Rec:fixed:skip:large | " in said


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


def bits(names: dict[str, float], study: str, **changes: Any) -> dict[str, Any]:
    """Two seeds, which differ by 0.1 in all."""
    sizes = replace(STUDIES[study].sizes["smoke"], **changes)
    return {
        run_name(sizes, "books", Row("Slide:12L", name), seed): {
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
    assert "| Rec:fixed:skip |  | 0.99 | 3.050 ± 0.635 | 3.53 |  | 0.952 |" in found.markdown()
    assert [(c.claim, c.paper_saw, c.we_saw, c.verdict) for c in found.claims] == [
        ("Recurrence is better than one more layer (books)", "3.57 -> 3.53", "0.5000 ± 0.0000 bits per token", HOLDS),
        ("Feedback is better still (books)", "3.53 -> 3.49", "-0.2500 ± 0.0000 bits per token", FAILS),
    ]
    with_bytes = outcomes | bits({"Rec:fixed:skip": 1.5, "Slide:13L": 1.25}, "gates", vocabulary=None)
    found = gates.report(STUDIES["gates"].setting("smoke", seeds=2), with_bytes)
    assert "| Rec:fixed:skip |  | 0.99 | 3.050 ± 0.635 | 3.53 | 1.550 ± 0.635 | 0.952 |" in found.markdown()
    assert "| Feedback:fixed:skip |  | 1.35 | 3.300 ± 0.635 | 3.49 |  | 0.935 |" in found.markdown()
    (claim,) = (claim for claim in found.claims if "bytes" in claim.claim)
    assert claim.claim == "Recurrence is better than one more layer (books, bytes)" and claim.verdict == FAILS
    assert (claim.paper_saw, claim.we_saw) == ("0.989 -> 0.952", "-0.2500 ± 0.0000 bits per byte")


def test_what_a_user_gives_is_looked_at_even_where_it_is_not_read(tmp_path: Path) -> None:
    study = STUDIES["gates"]
    setting = study.setting("smoke", corpora={"code": "installed-cod"})
    with pytest.raises(ValueError, match="there is no corpus, file or folder 'installed-cod': did you mean"):
        conduct(study, setting, tmp_path)
    assert not (tmp_path / "smoke" / "runs").exists()


def test_of_code_the_paper_saw_that_feedback_is_worse() -> None:
    setting = STUDIES["gates"].setting("smoke", seeds=2, changes={"texts": ("books", "code")})
    outcomes = bits({"Rec:fixed:skip": 3.0, "Feedback:fixed:skip": 3.25}, "gates")
    outcomes |= {name.replace("books", "code"): outcome for name, outcome in outcomes.items()}
    claims = {claim.claim: (claim.paper_saw, claim.verdict) for claim in gates.report(setting, outcomes).claims}
    assert claims["Feedback is better still (books)"] == ("3.53 -> 3.49", FAILS)
    assert claims["Feedback is worse (code)"] == ("1.11 -> 1.03", HOLDS)


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


def test_one_document_has_nothing_to_swap_with() -> None:
    sizes = STUDIES["scale"].sizes["smoke"]
    model = BlockRecurrentForCausalLM(Row("Rec:fixed:skip").config(sizes, vocab_size=9)).eval()
    documents = [TokenizedDocument(str(n), torch.arange(36) % 9, words=4, bytes=36) for n in range(2)]
    memories = ["true", "swapped", "ablated"]
    assert list(measured(model, documents, memories)) == memories
    assert list(measured(model, documents[:1], memories)) == ["true", "ablated"]


def test_what_a_larger_size_comes_to() -> None:
    large = bits({"Slide:13L:large": 3.5, "Rec:fixed:skip:large": 3.25}, "scale")
    report = scale.report(STUDIES["scale"].setting("smoke", seeds=2), large)
    assert "| Slide:13L:large | 1,234 | 3.550 ± 0.635 | 11.3 ± 0.0 | 3.39 | 34.8 |" in report.markdown()
    assert [claim.verdict for claim in report.claims] == [HOLDS]


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


def test_a_vocabulary_is_of_texts_however_they_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, found = STUDIES["scale"], []
    real = trainings.train_vocabulary

    def spy(texts: Any, *given: Any) -> Any:
        found.append([document.text for document in texts])
        return real(texts, *given)

    monkeypatch.setattr(trainings, "train_vocabulary", spy)
    for piece in (100, 600):
        setting = study.setting("smoke", seeds=1, changes={"piece": piece})
        runs = [run for run in study.runs(setting) if run.name == "bpe-300-books"]
        conduct(replace(study, runs=lambda setting, runs=runs: runs), setting, tmp_path / str(piece))
    assert found[0] == found[1]


def test_texts_are_chosen_and_cut() -> None:
    documents = [Document(str(n), "line\n" * 10) for n in range(50)]
    some = some_of(documents, 220)
    assert len(some) == 5 and some == list(some_of(documents, None))[:5] and some != documents[:5]
    assert len(some_of(documents, None)) == 50
    pieces = cut(documents[0], 12)
    assert [piece.text for piece in pieces] == ["line\n" * 3] * 3 + ["line\n"] and pieces[1].name == "0, 2"
    assert [piece.text for piece in cut(Document("d", "no end of line"), 3)] == ["no end of line"]


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_every_row_reads_as_many_tokens_a_step(scale: str) -> None:
    sizes: BlockSizes = STUDIES["gates"].sizes[scale]
    for row in gates.ROWS:
        assert sizes.tokens_per_step % row.config(sizes).segment_length == 0, row.name


def test_memories_are_full_when_steps_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = STUDIES["gates"].sizes["smoke"]
    config = Row("Memorizing:32k").config(sizes, vocab_size=99)
    step = gates._step(config, sizes.tokens_per_step)
    read, states = BlockRecurrentForCausalLM.forward, []

    def spy(model: Any, *given: Any, state: Any = None, **more: Any) -> Any:
        states.append(state)
        return read(model, *given, state=state, **more)

    monkeypatch.setattr(BlockRecurrentForCausalLM, "forward", spy)
    step()
    assert min(states[0].tokens) >= config.memory_size > config.segment_length
    remembered = [layer.memory.keys.shape[2] for layer in states[0].layers if layer.memory is not None]
    assert remembered == [config.memory_size]


def test_texts_and_rows_that_are_none() -> None:
    study = STUDIES["gates"]
    for changes, message in (
        ({"texts": ("books", "bytes")}, "there is no 'bytes'; choose of 'books', 'books, bytes'"),
        ({"rows": ("Slide:14L",)}, "there is no 'Slide:14L'; choose of 'XL:512'"),
        ({"of_texts": {"bytes": {"tokens": 5}}}, "of_texts=.*there is no 'bytes'"),
        ({"of_texts": {"books": {"token": 5}}}, "has no field 'token' .*did you mean 'tokens'"),
        ({"of_texts": 3}, "of_texts=3: it must be of the kind of"),
    ):
        with pytest.raises(ValueError, match=message):
            study.runs(study.setting("smoke", changes=changes))


def test_every_text_has_the_rows_that_are_compared() -> None:
    sizes = STUDIES["gates"].sizes["laptop"]
    for text in gates.TEXTS:
        assert {"Slide:13L", "Rec:fixed:skip", "Feedback:fixed:skip"} <= set(sizes.of(text).rows)
    assert len(sizes.of("books").rows) == len(sizes.of("latex").rows) == 14
    assert len(sizes.of("code").rows) == 8 and "XL:1024" not in sizes.of("code").rows
    assert sizes.of("books, bytes").vocabulary is None


def test_trainings_that_started_from_narrower_kernels_are_named() -> None:
    def trained(version: str) -> dict[str, Any]:
        return {"validation_loss": 1.0, "circumstances": {"versions": {"onward": version}}}

    old, new = {"a": trained("0.1.0"), "tokenizer": {}}, {"b": trained("0.2.0")}
    assert about_starts(new) == [] == about_starts({"tokenizer": {}})
    assert about_starts(old)[0].startswith("All trainings are of onward 0.1.0, whose kernels started narrower")
    assert about_starts(old | new)[0].startswith("1 of 2 trainings")
