"""A window-recurrent model next to its controls."""

import pytest
import torch
from window_models import backbone, recurrent

from onward import add_recurrence
from onward.data.tokens import tokenize
from onward.evaluation import at_overlap, evaluate, measure


def test_every_overlap_has_the_model_and_its_controls(window_rows):
    model, found, _ = window_rows
    assert [(row.variant, row.window, row.overlap) for row in found] == [
        ("full context", 64, 32),
        *((v, 10, o) for o in (0, 3) for v in ("plain", "kept tokens", "constant", "recurrent", "swapped")),
    ]
    assert all(row.measures.tokens == 44 + 7 + 32 + 69 for row in found)
    assert all(row.measures.words == 45 + 8 + 33 + 70 for row in found)
    by_name = {(row.variant, row.overlap): row for row in found}
    for overlap in (0, 3):
        plain, true = by_name["plain", overlap], by_name["recurrent", overlap]
        assert true.gain.mean == pytest.approx(plain.measures.loss - true.measures.loss)
        assert true.measures.nll != by_name["swapped", overlap].measures.nll
        assert true.cost.counted > plain.cost.counted
    assert model.config.overlap == 0 and model.config.pooled_positions == "all"


def test_another_overlap_than_the_trained_one_is_marked(window_rows):
    _, found, _ = window_rows
    for row in found:
        marked = any("trained with an overlap of 0" in note for note in row.notes)
        assert marked == (row.overlap == 3 and row.variant in ("constant", "recurrent", "swapped"))


def test_rows_equal_measures_made_alone(window_rows, tokenizer, documents):
    model, found, _ = window_rows
    tokenized = tokenize(documents, tokenizer)
    with at_overlap(model, 3):
        assert model.config.pooled_positions == "before_next_window"
        alone = measure(model, tokenized)
    row = next(row for row in found if row.variant == "recurrent" and row.overlap == 3)
    assert row.measures.nll == pytest.approx(alone.nll, abs=1e-8)


def test_a_missing_control_says_how_to_make_it(tokenizer, documents):
    found = evaluate(recurrent(), documents, tokenizer=tokenizer, progress=False)
    row = next(row for row in found if row.variant == "constant")
    assert row.measures is None and "with_carrier('constant')" in row.notes[0]


def test_a_single_document_is_evaluated_without_swapping(tokenizer, documents):
    found = evaluate(recurrent(), documents[-1:], tokenizer=tokenizer, progress=True, max_tokens=25)
    swapped = next(row for row in found if row.variant == "swapped")
    assert swapped.measures is None and "give at least two" in swapped.notes[0]
    assert all(row.measures.words == 25 and row.measures.tokens == 24 for row in found if row.measures)


def test_plain_windows_alone(tokenizer, documents):
    found = evaluate(recurrent(carrier="none"), documents, tokenizer=tokenizer, progress=False)
    assert [row.variant for row in found] == ["full context", "plain"]


def test_without_a_longer_context_nothing_is_said_of_it(tokenizer, documents):
    model = add_recurrence(backbone(positions=10), carrier="pooled", window=10, hidden=[16])
    found = evaluate(model, documents, tokenizer=tokenizer, progress=False)
    assert "full context" not in [row.variant for row in found]
    assert all(row.context_recovered is None for row in found)


def test_another_backbone_can_score_plain_windows(tokenizer, documents):
    other = backbone()
    torch.nn.init.normal_(other.transformer.wte.weight)
    found = evaluate(recurrent(), documents, tokenizer=tokenizer, plain_model=other, progress=False)
    own = evaluate(recurrent(), documents, tokenizer=tokenizer, progress=False)
    plain, own_plain = (next(r for r in rs if r.variant == "plain") for rs in (found, own))
    assert plain.measures.loss != own_plain.measures.loss
    assert not plain.notes and "plain_model=" in own_plain.notes[0]


def test_wrong_controls_are_refused(tokenizer, documents):
    with pytest.raises(ValueError, match="constant=.*: its carrier is 'pooled'"):
        evaluate(recurrent(), documents, tokenizer=tokenizer, constant=recurrent())
    with pytest.raises(ValueError, match="they must agree"):
        control = recurrent(carrier="constant", window=9)
        evaluate(recurrent(), documents, tokenizer=tokenizer, constant=control)
    with pytest.raises(TypeError, match="add_recurrence"):
        evaluate(backbone(), documents, tokenizer=tokenizer)
    with pytest.raises(ValueError, match="overlap"):
        evaluate(recurrent(), documents, tokenizer=tokenizer, overlaps=[10])


def test_a_file_for_results_is_refused_at_once(tokenizer, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="notes.txt': it is a file, and results go into a folder"):
        evaluate(recurrent(), [None], tokenizer=tokenizer, out=tmp_path / "notes.txt", progress=False)


def test_what_is_lost_by_swapping_is_content(window_rows):
    _, found, _ = window_rows
    shares = {(row.variant, row.overlap): row.context_recovered for row in found}
    for row in found:
        if row.variant == "recurrent" and row.context_recovered is not None:
            assert row.by_content == pytest.approx(row.context_recovered - shares["swapped", row.overlap])
        else:
            assert row.by_content is None
