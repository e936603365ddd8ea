import json
import random
from functools import partial
from xml.etree import ElementTree

import block_models
import pytest
from rich.console import Console

from onward.data import Document
from onward.data.tokens import tokenize
from onward.data.vocabularies import byte_tokenizer
from onward.evaluation import evaluate, measure, paired_difference
from onward.evaluation.measures import Measures
from onward.evaluation.plots import by_distance, plot_by_distance
from onward.evaluation.report import BLOCK_REPORT, markdown, table

build = partial(block_models.build, vocab_size=257)
WORDS = ["the", "sea", "and", "the", "ship", "and", "the", "long", "way", "home"]


@pytest.fixture(scope="module")
def documents():
    choose = random.Random(0)
    return [Document(f"d{n}", " ".join(choose.choices(WORDS, k=n))) for n in (12, 3, 9)]


@pytest.fixture(scope="module")
def rows(documents, tmp_path_factory):
    model, folder = build("Rec:fixed:skip"), tmp_path_factory.mktemp("report")
    return model, evaluate(model, documents, tokenizer=byte_tokenizer(), out=folder, progress=False), folder


def test_the_model_stands_beside_its_controls(rows, documents):
    model, found, _ = rows
    assert [row.variant for row in found] == ["recurrent", "swapped", "ablated"]
    tokenized = tokenize(documents, byte_tokenizer())
    for row, memory in zip(found, ("true", "swapped", "ablated"), strict=True):
        assert row.measures.nll == pytest.approx(measure(model, tokenized, memory=memory).nll, abs=1e-8)
        assert row.measures.bytes == sum(document.bytes for document in documents)
    recurrent, swapped, ablated = found
    assert recurrent.gain == paired_difference(ablated.measures, recurrent.measures)
    assert swapped.gain.mean == pytest.approx(ablated.measures.loss - swapped.measures.loss)
    assert ablated.gain is None and "Slide:13L" in ablated.notes[0]
    assert recurrent.cost.counted > 0


def test_files_hold_table_results_and_picture(rows):
    _, found, folder = rows
    text = (folder / "table.md").read_text()
    assert text == markdown(found, BLOCK_REPORT)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(found) and {line.count("|") for line in lines} == {len(BLOCK_REPORT.columns) + 2}
    results = json.loads((folder / "results.json").read_text())
    assert results["model"]["gate"] == "fixed" and results["model"]["window"] == 8
    first = results["rows"][0]["measures"]
    assert first["bits_per_token"] == pytest.approx(found[0].measures.bits_per_token)
    assert first["word_perplexity"] > 0 and first["tokens_per_second"] > 0 and first["peak_memory"] >= 0
    assert len(first["by_window"]["means"]) == len(found[0].measures.by_window.counts)
    assert results["rows"][0]["cost"]["parameters"] == found[0].cost.parameters
    assert ElementTree.parse(folder / "loss_by_distance.svg").getroot().tag.endswith("svg")
    assert (folder / "loss_by_distance.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_fits_a_terminal(rows, capsys):
    Console(width=80).print(table(rows[1], "blocks of 8 tokens", BLOCK_REPORT))
    shown = capsys.readouterr().out
    assert "…" not in shown and all(word in shown for word in ("recurrent", "swapped", "ablated", "word"))
    assert max(map(len, shown.splitlines())) <= 80


def test_large_perplexities_do_not_squeeze_the_table(rows, capsys, monkeypatch):
    monkeypatch.setattr(Measures, "word_perplexity", 1437562094287.11)
    Console(width=80).print(table(rows[1], "blocks of 8 tokens", BLOCK_REPORT))
    shown = capsys.readouterr().out
    assert "…" not in shown and shown.count("1.4e+12") == 3
    assert "1437562094287" not in markdown(rows[1], BLOCK_REPORT)


def test_the_picture_has_loss_by_distance(rows):
    measures = rows[1][0].measures
    places, losses = by_distance(measures, points=100)
    assert places[:2] == [4, 12] and len(places) == len(measures.by_window.counts)
    assert losses[1] == pytest.approx(measures.by_window.means[1] / 0.6931471805599453)
    places, losses = by_distance(measures, points=2)
    half = -(-len(measures.by_window.counts) // 2)
    assert places[0] == 8 * half / 2
    tokens = sum(measures.by_window.counts[:half])
    assert losses[0] == pytest.approx(sum(measures.by_window.sums[:half]) / tokens / 0.6931471805599453)
    markers = [line.get_marker() for line in plot_by_distance(rows[1]).axes[0].lines]
    assert len(set(markers)) == 3


def test_a_model_that_carries_nothing_stands_alone(documents):
    found = evaluate(build("Slide:12L"), documents, tokenizer=byte_tokenizer(), progress=True)
    assert [row.variant for row in found] == ["plain"]


def test_a_single_document_is_evaluated_without_swapping(documents):
    found = evaluate(build("little memory"), documents[:1], tokenizer=byte_tokenizer(), max_tokens=30)
    assert [row.variant for row in found] == ["recurrent", "swapped", "ablated"]
    assert found[1].measures is None and "give at least two" in found[1].notes[0]
    assert found[0].measures.tokens == 29


def test_options_for_windows_are_refused(documents):
    model = build("Slide:12L")
    for name, value in {"overlaps": [0], "constant": model, "plain_model": model, "full_context_cap": 9}.items():
        with pytest.raises(ValueError, match=f"{name}=.*: it is for window-recurrent models"):
            evaluate(model, documents, tokenizer=byte_tokenizer(), **{name: value})
    with pytest.raises(TypeError, match="recurrent causal language model, got a BlockRecurrentModel"):
        evaluate(model.model, documents, tokenizer=byte_tokenizer())
