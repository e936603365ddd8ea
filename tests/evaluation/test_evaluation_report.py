"""Tables and files of an evaluation, for both kinds of model."""

import json
from xml.etree import ElementTree

import pytest
from rich.console import Console

from onward.evaluation import Measures, Row
from onward.evaluation.report import BLOCK_REPORT, WINDOW_REPORT, markdown, refuse_other_results, table, write

# --- windows -----------------------------------------------------------------------------------------


def test_files_are_made_and_parse(window_rows):
    _, found, folder = window_rows
    results = json.loads((folder / "results.json").read_text())
    assert {"command", "seed", "versions", "machine", "model", "documents", "rows"} <= set(results)
    assert results["versions"]["torch"] and results["machine"]["processors"]
    assert [row["variant"] for row in results["rows"]] == [row.variant for row in found]
    first = results["rows"][1]
    assert first["measures"]["word_perplexity"] == pytest.approx(found[1].measures.word_perplexity)
    assert len(first["measures"]["by_position"]["means"]) == 10
    assert len(first["measures"]["documents"]) == 4
    for name in ("loss_by_position", "perplexity_by_flops", "perplexity_by_bytes"):
        assert ElementTree.parse(folder / f"{name}.svg").getroot().tag.endswith("svg")
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_markdown_is_a_table_with_notes(window_rows):
    _, found, folder = window_rows
    text = (folder / "table.md").read_text()
    assert text == markdown(found)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(found)
    assert {line.count("|") for line in lines} == {len(WINDOW_REPORT.columns) + 2}
    assert "trained with an overlap of 0" in text


def test_terminal_table_shows_every_row(window_rows, capsys):
    _, found, _ = window_rows
    Console(width=80).print(table(found, title="results"))
    shown = capsys.readouterr().out
    assert "…" not in shown
    for variant in ("plain", "kept tokens", "constant", "recurrent", "swapped", "full context"):
        assert variant in shown


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


# --- blocks ------------------------------------------------------------------------------------------


def test_files_hold_table_results_and_picture(block_rows):
    _, found, folder = block_rows
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


def test_the_table_fits_a_terminal(block_rows, capsys):
    Console(width=80).print(table(block_rows[1], "blocks of 8 tokens", BLOCK_REPORT))
    shown = capsys.readouterr().out
    assert "…" not in shown and all(word in shown for word in ("recurrent", "swapped", "ablated", "word"))
    assert max(map(len, shown.splitlines())) <= 80


def test_large_perplexities_do_not_squeeze_the_table(block_rows, capsys, monkeypatch):
    monkeypatch.setattr(Measures, "word_perplexity", 1437562094287.11)
    Console(width=80).print(table(block_rows[1], "blocks of 8 tokens", BLOCK_REPORT))
    shown = capsys.readouterr().out
    assert "…" not in shown and shown.count("1.4e+12") == 3
    assert "1437562094287" not in markdown(block_rows[1], BLOCK_REPORT)
