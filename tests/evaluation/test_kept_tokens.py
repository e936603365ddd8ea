"""The control that keeps tokens, in the bytes of the memory that is evaluated."""

import json
import math
from dataclasses import replace

import pytest
import torch
from window_models import backbone, recurrent, shaken

from onward import add_recurrence
from onward.data.tokens import tokenize
from onward.evaluation import Row, evaluate, kept_tokens, measure, paired_difference
from onward.evaluation.report import markdown, write
from onward.evaluation.worth import worth
from onward.models.window_recurrent import probe
from onward.models.window_recurrent.turning import CannotTurn

SLOTS = {"carrier": "selected", "slots": 6, "rank": 4}


@pytest.fixture(scope="module")
def slot_rows(tokenizer, documents, tmp_path_factory):
    """(model, rows, folder), with the control on the model's own backbone."""
    model, folder = shaken(recurrent(**SLOTS)), tmp_path_factory.mktemp("kept")
    found = evaluate(model, documents, tokenizer=tokenizer, overlaps=[0, 3], out=folder, progress=False)
    return model, found, folder


def rows_of(found, variant):
    return [row for row in found if row.variant == variant]


@pytest.mark.parametrize("overlap", [0, 3])
def test_its_row_is_what_recent_gives_when_it_is_evaluated_itself(slot_rows, tokenizer, documents, overlap):
    model, found, _ = slot_rows
    alone = add_recurrence(model.backbone, carrier="recent", slots=6, window=10, overlap=overlap)
    row = next(row for row in rows_of(found, "kept tokens") if row.overlap == overlap)
    assert row.measures.nll == pytest.approx(measure(alone, tokenize(documents, tokenizer)).nll, abs=1e-8)
    assert row.measures.nll != next(r for r in rows_of(found, "plain") if r.overlap == overlap).measures.nll


def test_it_says_that_a_backbone_trained_with_a_memory_deserves_a_trained_control(slot_rows):
    _, found, _ = slot_rows
    for row in rows_of(found, "kept tokens"):
        assert len(row.notes) == 1 and "--with-controls" in row.notes[0] and "another memory" in row.notes[0]


@pytest.mark.parametrize("fields", [SLOTS, {"carrier": "spans", "vectors": 9, "rank": 4}])
def test_the_evaluated_model_is_not_disturbed(fields, tokenizer, documents):
    model = shaken(recurrent(**fields)).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    before, ids = model.config.to_dict(), torch.arange(35)[None]
    logits = model(ids).logits
    evaluate(model, documents, tokenizer=tokenizer, overlaps=[0, 3], progress=False)
    assert torch.equal(model(ids).logits, logits) and model.config.to_dict() == before
    assert all(module.training for module in model.modules())


def test_a_trained_control_is_taken_as_it_is(tokenizer, documents):
    model = shaken(recurrent(**SLOTS))
    kept = add_recurrence(backbone(), model.config.with_carrier("recent"))
    torch.nn.init.normal_(kept.backbone.transformer.wte.weight)
    found = evaluate(model, documents, tokenizer=tokenizer, overlaps=[0, 3], kept=kept, progress=False)
    own, other = rows_of(found, "kept tokens")
    assert own.measures.nll == pytest.approx(measure(kept, tokenize(documents, tokenizer)).nll, abs=1e-8)
    assert own.notes == () and len(other.notes) == 1 and "trained with an overlap of 0" in other.notes[0]
    assert kept.config.overlap == 0


def test_other_models_are_no_such_control(tokenizer, documents):
    model = recurrent(**SLOTS)
    with pytest.raises(ValueError, match=r"kept=.*: its carrier is 'selected'; .*with_carrier\('recent'\)"):
        evaluate(model, documents, tokenizer=tokenizer, kept=recurrent(**SLOTS))
    with pytest.raises(ValueError, match="kept=.*they must agree"):
        evaluate(model, documents, tokenizer=tokenizer, kept=recurrent(carrier="recent", slots=6, window=9))


def test_unequal_bytes_are_noted(tokenizer, documents):
    model = recurrent(**SLOTS)
    for slots, noted in ((5, True), (6, False), (7, True)):
        kept = recurrent(carrier="recent", slots=slots)
        found = evaluate(model, documents, tokenizer=tokenizer, kept=kept, progress=False)
        (row,) = rows_of(found, "kept tokens")
        assert any("not compared at equal bytes" in note for note in row.notes) == noted


def test_gains_over_it_are_paired(slot_rows):
    _, found, _ = slot_rows
    for kept in rows_of(found, "kept tokens"):
        assert kept.gain_over_kept is None
        for row in found:
            if row.overlap == kept.overlap and row.variant in ("recurrent", "swapped"):
                assert row.gain_over_kept == paired_difference(kept.measures, row.measures)
                assert row.gain_over_kept.standard_error > 0
    assert all(row.gain_over_kept is None for row in found if row.variant in ("plain", "full context"))


def test_rows_have_the_bytes_of_their_memory(slot_rows, window_rows):
    model, found, folder = slot_rows
    own = sum(tensor.nbytes for tensor in model(torch.arange(35)[None]).state.memory)
    # 64 tokens, 2 layers, keys and values of 32 numbers with 8 bytes each
    sizes = {"plain": 0, "kept tokens": own, "recurrent": own, "swapped": own, "full context": 64 * 2 * 2 * 32 * 8}
    assert {row.variant: row.state_bytes for row in found if row.measures} == sizes
    kept, spans = (rows_of(window_rows[1], variant)[0].state_bytes for variant in ("kept tokens", "recurrent"))
    assert kept != spans  # the smallest control is larger than four spans
    saved = json.loads((folder / "results.json").read_text())["rows"]
    assert [row["state_bytes"] for row in saved] == [row.state_bytes for row in found]
    assert [row["gain_over_kept"] and row["gain_over_kept"]["mean"] for row in saved] == [
        row.gain_over_kept and row.gain_over_kept.mean for row in found
    ]
    assert f"| {own:,} |" in (folder / "table.md").read_text()


def test_a_backbone_whose_keys_cannot_be_turned_has_no_such_control(tokenizer, documents, monkeypatch, tmp_path):
    model = recurrent(carrier="spans", vectors=4, rank=4)

    def cannot(base):
        raise CannotTurn("its keys are of another kind")

    monkeypatch.setattr(probe, "turnings_of", cannot)
    found = evaluate(model, documents, tokenizer=tokenizer, out=tmp_path, progress=False)
    (kept,) = rows_of(found, "kept tokens")
    assert kept.measures is None and kept.notes[0].startswith("not measured: ")
    assert "its keys are of another kind" in kept.notes[0]
    assert rows_of(found, "recurrent")[0].measures and rows_of(found, "recurrent")[0].gain_over_kept is None
    assert "is not known: kept tokens, its control, were not measured" in (tmp_path / "table.md").read_text()


def test_a_model_of_an_earlier_version_gets_the_same_control():
    model = recurrent(carrier="spans", vectors=9, rank=4)
    slots = kept_tokens(model).config.slots
    model.config.slot_shapes = None
    assert kept_tokens(model).config.slots == slots > 2
    assert model.config.slot_shapes is None


def test_bytes_are_those_of_the_precision_that_the_model_has_now():
    model = recurrent(carrier="spans", vectors=9, rank=4).bfloat16()
    own, kept = (sum(t.nbytes for t in m(torch.arange(35)[None]).state.memory) for m in (model, kept_tokens(model)))
    assert own - kept < kept / kept_tokens(model).config.slots and kept <= own


# --- the sentence -----------------------------------------------------------------------------------


def test_what_a_memory_is_worth_is_its_gain_over_kept_tokens_only(slot_rows, tmp_path):
    _, found, folder = slot_rows
    said = worth(found)
    for row in rows_of(found, "recurrent"):
        assert f"{row.gain_over_kept} at overlap {row.overlap} (in {row.state_bytes:,} bytes" in said
    better = [replace(row, gain=None) for row in found]
    assert worth(better) == said, "gains over plain windows say nothing about it"
    assert said in (folder / "table.md").read_text() and said in markdown(found)
    write([Row("plain", 10, 0)], tmp_path)
    assert "worth" not in (tmp_path / "table.md").read_text()


def test_a_gain_within_the_noise_is_said_to_be(slot_rows):
    _, found, _ = slot_rows
    own, kept = (rows_of(found, variant)[0] for variant in ("recurrent", "kept tokens"))
    for error, noise in ((0.05, False), (0.07, True), (None, True), (math.inf, True)):
        row = replace(own, gain_over_kept=replace(own.gain_over_kept, mean=0.12, standard_error=error))
        assert ("within the noise" in worth([kept, row])) == noise
