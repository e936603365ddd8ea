"""`gates`: the smallest scale, and what made-up bits come to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from block_outcomes import bits
from study_command import run

from onward import BlockRecurrentForCausalLM
from onward_studies import STUDIES
from onward_studies.block_recurrent import gates
from onward_studies.block_recurrent.rows import BlockRow, BlockSizes
from onward_studies.engine.conducting import conduct
from onward_studies.engine.intervals import FAILS, HOLDS


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
    with pytest.raises(
        ValueError, match="corpus='installed-cod': there is no corpus, file or folder of this name: did you mean"
    ):
        conduct(study, setting, tmp_path)
    assert not (tmp_path / "smoke" / "runs").exists()


def test_of_code_the_paper_saw_that_feedback_is_worse() -> None:
    setting = STUDIES["gates"].setting("smoke", seeds=2, changes={"texts": ("books", "code")})
    outcomes = bits({"Rec:fixed:skip": 3.0, "Feedback:fixed:skip": 3.25}, "gates")
    outcomes |= {name.replace("books", "code"): outcome for name, outcome in outcomes.items()}
    claims = {claim.claim: (claim.paper_saw, claim.verdict) for claim in gates.report(setting, outcomes).claims}
    assert claims["Feedback is better still (books)"] == ("3.53 -> 3.49", FAILS)
    assert claims["Feedback is worse (code)"] == ("1.11 -> 1.03", HOLDS)


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_every_row_reads_as_many_tokens_a_step(scale: str) -> None:
    sizes: BlockSizes = STUDIES["gates"].sizes[scale]
    for row in gates.ROWS:
        assert sizes.tokens_per_step % row.config(sizes).segment_length == 0, row.name


def test_memories_are_full_when_steps_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = STUDIES["gates"].sizes["smoke"]
    config = BlockRow("Memorizing:32k").config(sizes, vocab_size=99)
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
