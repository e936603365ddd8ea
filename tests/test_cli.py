"""Every verb, run as a person would, on a tiny model and a small text."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file
from small_models import save_small_bert, save_small_gpt2
from typer.testing import CliRunner

from onward import cli

WORDS = "the sea and the ship and the long way home, said the old man to the boy. "


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    save_small_gpt2(folder / "backbone")
    save_small_bert(folder / "encoder")
    texts = folder / "texts"
    texts.mkdir()
    for i in range(6):
        (texts / f"{i}.txt").write_text(WORDS * (8 + i), encoding="utf-8")
    arguments = "--carrier spans --window 24 --vectors 4 --train lora --windows-per-segment 3 --batch-size 2"
    train = f"train {folder}/backbone --corpus {texts} --out {folder}/run {arguments} --max-tokens 1000 --with-controls"
    run(train)
    return folder


def run(line: str) -> str:
    result = CliRunner().invoke(cli.app, cli.spread_numbers(line.split(), "--overlap"), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_train_saves_model_and_control(place):
    assert (place / "run" / "model.safetensors").is_file()
    for folder, carrier in (("constant", "constant"), ("plain", "none")):
        assert json.loads((place / "run" / folder / "config.json").read_text())["carrier"] == carrier


def test_a_window_of_its_own_is_not_overruled(place):
    with pytest.raises(ValueError, match="windows of its own, of 24"):
        cli.load_model(str(place / "run"), window=32)


def test_an_encoder_is_sent_to_embed():
    with pytest.raises(ValueError, match="onward embed"):
        cli.load_model("minilm-l6")


def test_evaluate_reports_every_control(place):
    run(f"evaluate {place}/run --corpus {place}/texts --split train --overlap 0 6 --max-tokens 100 --out {place}/eval")
    rows = json.loads((place / "eval" / "results.json").read_text())["rows"]
    seen = {(row["variant"], row["overlap"]) for row in rows if row["measures"]}
    wanted = {(v, o) for v in ("plain", "constant", "recurrent", "swapped") for o in (0, 6)}
    assert wanted <= seen


def test_evaluate_a_plain_backbone(place):
    run(f"evaluate {place}/backbone --window 24 --corpus {place}/texts --max-tokens 60 --out {place}/plain")
    assert (place / "plain" / "table.md").is_file()


def test_generate_from_a_long_prompt(place, capsys):
    (place / "prompt.txt").write_text(WORDS * 3, encoding="utf-8")
    run(f"generate {place}/run --prompt-file {place}/prompt.txt --tokens 30 --no-sample")


def test_generate_needs_a_prompt(place):
    with pytest.raises(ValueError, match="nothing to go on from"):
        CliRunner().invoke(cli.app, ["generate", str(place / "run"), "--prompt", " "], catch_exceptions=False)


def test_embed_encoders_and_decoders(place):
    texts = f"{place}/texts/0.txt {place}/texts/1.txt"
    run(f"embed {place}/encoder {texts} --window 32 --overlap 8 --tokens --out {place}/e.safetensors")
    run(f"embed {place}/run {texts} --out {place}/d.safetensors")
    encoded, decoded = load_file(place / "e.safetensors"), load_file(place / "d.safetensors")
    assert encoded["0.txt.document"].shape == decoded["0.txt.document"].shape == (32,)
    assert encoded["1.txt.tokens"].shape == (len(WORDS * 9), 32)


def test_inspect_tells_where_the_memory_goes(place):
    output = run(f"inspect {place}/run --text {place}/texts/0.txt")
    assert "seam taken at layers" in output and "attention that goes to the memory" in output


def test_an_error_is_one_sentence(place, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["onward", "evaluate", str(place / "backbone"), "--corpus", "no-such-corpus"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 1
    error = capsys.readouterr().err
    assert "--window" in error and "Traceback" not in error


def test_one_option_takes_many_numbers():
    given = ["evaluate", "m", "--overlap", "0", "5", "10", "--out", "7"]
    spread = ["evaluate", "m", "--overlap", "0", "--overlap", "5", "--overlap", "10", "--out", "7"]
    assert cli.spread_numbers(given, "--overlap") == spread
