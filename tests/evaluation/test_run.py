import json
import random
from xml.etree import ElementTree

import pytest
import torch
from rich.console import Console
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from onward import add_recurrence
from onward.data import Document
from onward.data.tokens import tokenize
from onward.evaluation import Row, at_overlap, evaluate, measure
from onward.evaluation.plots import plot_by_flops, plot_by_position
from onward.evaluation.report import WINDOW_REPORT, markdown, refuse_other_results, table, write

WORDS = [f"w{i}" for i in range(60)]


@pytest.fixture(scope="module")
def tokenizer():
    vocabulary = {"[UNK]": 0} | {word: i for i, word in enumerate(WORDS, start=1)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")


@pytest.fixture(scope="module")
def documents():
    choose = random.Random(0)
    return [Document(f"d{n}", " ".join(choose.choices(WORDS, k=n))) for n in (45, 8, 33, 70)]


def backbone(positions=64):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=positions, bos_token_id=0)
    return GPT2LMHeadModel(config).double().eval()


def recurrent(**fields):
    return add_recurrence(backbone(), **{"window": 10, "hidden": [16], **fields})


def shaken(model):
    for parameter in model.carrier.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


@pytest.fixture(scope="module")
def rows(tokenizer, documents, tmp_path_factory):
    model = shaken(recurrent(carrier="spans", vectors=4, rank=4))
    constant = shaken(add_recurrence(model.backbone, model.config.with_carrier("constant")))
    folder = tmp_path_factory.mktemp("report")
    found = evaluate(
        model, documents, tokenizer=tokenizer, overlaps=[0, 3], constant=constant, out=folder, progress=False
    )
    return model, found, folder


def test_every_overlap_has_the_model_and_its_controls(rows):
    model, found, _ = rows
    assert [(row.variant, row.window, row.overlap) for row in found] == [
        ("full context", 64, 32),
        *((v, 10, o) for o in (0, 3) for v in ("plain", "constant", "recurrent", "swapped")),
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


def test_another_overlap_than_the_trained_one_is_marked(rows):
    _, found, _ = rows
    for row in found:
        marked = any("trained with an overlap of 0" in note for note in row.notes)
        assert marked == (row.overlap == 3 and row.variant in ("constant", "recurrent", "swapped"))


def test_rows_equal_measures_made_alone(rows, tokenizer, documents):
    model, found, _ = rows
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
    model = add_recurrence(backbone(positions=10), window=10, hidden=[16])
    found = evaluate(model, documents, tokenizer=tokenizer, progress=False)
    assert "full context" not in [row.variant for row in found]
    assert all(row.context_recovered is None for row in found)


def test_another_backbone_can_read_plain_windows(tokenizer, documents):
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


# --- reports ---------------------------------------------------------------------------------------


def test_files_are_made_and_parse(rows):
    _, found, folder = rows
    results = json.loads((folder / "results.json").read_text())
    assert {"command", "seed", "versions", "machine", "model", "documents", "rows"} <= set(results)
    assert results["versions"]["torch"] and results["machine"]["processors"]
    assert [row["variant"] for row in results["rows"]] == [row.variant for row in found]
    first = results["rows"][1]
    assert first["measures"]["word_perplexity"] == pytest.approx(found[1].measures.word_perplexity)
    assert len(first["measures"]["by_position"]["means"]) == 10
    assert len(first["measures"]["documents"]) == 4
    for name in ("loss_by_position", "perplexity_by_flops"):
        assert ElementTree.parse(folder / f"{name}.svg").getroot().tag.endswith("svg")
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_lost_by_swapping_is_content(rows):
    _, found, _ = rows
    shares = {(row.variant, row.overlap): row.context_recovered for row in found}
    for row in found:
        if row.variant == "recurrent" and row.context_recovered is not None:
            assert row.by_content == pytest.approx(row.context_recovered - shares["swapped", row.overlap])
        else:
            assert row.by_content is None


def test_markdown_is_a_table_with_notes(rows):
    _, found, folder = rows
    text = (folder / "table.md").read_text()
    assert text == markdown(found)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(found)
    assert {line.count("|") for line in lines} == {len(WINDOW_REPORT.columns) + 2}
    assert "trained with an overlap of 0" in text


def test_terminal_table_shows_every_row(rows, capsys):
    _, found, _ = rows
    Console(width=80).print(table(found, title="results"))
    shown = capsys.readouterr().out
    assert "…" not in shown
    for variant in ("plain", "constant", "recurrent", "swapped", "full context"):
        assert variant in shown


def test_plots_tell_variants_apart_without_colour(rows):
    _, found, _ = rows
    measured = [row for row in found if row.measures]
    panels = plot_by_position(measured).axes
    assert [panel.get_title() for panel in panels] == ["overlap 0", "overlap 3"]
    for panel in (*panels, *plot_by_flops(measured).axes):
        styles = [(line.get_marker(), line.get_linestyle()) for line in panel.lines]
        assert len(styles) >= 4 and len({marker for marker, _ in styles}) == len(styles)
    assert min(panels[1].lines[0].get_xdata()) >= 3


def test_rows_without_measures_are_reported(tmp_path):
    write([Row("constant", 10, 0, notes=("not measured",))], tmp_path)
    assert "not measured" in (tmp_path / "table.md").read_text()
    assert json.loads((tmp_path / "results.json").read_text())["rows"][0]["measures"] is None


def test_results_of_something_else_are_left_alone(tmp_path):
    (tmp_path / "results.json").write_text('{"mine": 1}')
    with pytest.raises(FileExistsError, match=r"results\.json is of something else"):
        refuse_other_results(tmp_path)
    (tmp_path / "results.json").write_text('{"rows": []}')
    refuse_other_results(tmp_path)
