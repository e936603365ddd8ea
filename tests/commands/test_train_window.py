"""`onward train window`"""

from __future__ import annotations

import json

import pytest
from command_line import error_of, run
from typer.testing import CliRunner

from onward.cli import app


def test_train_saves_model_and_control(place):
    assert (place / "run" / "model.safetensors").is_file()
    for folder, carrier in ((".", "spans"), ("constant", "constant"), ("plain", "none")):
        saved = json.loads((place / "run" / folder / "config.json").read_text())
        assert (saved["carrier"], saved["history"], saved["insert_at"]) == (carrier, [3, 2], [1, 2])


def recipe(folder) -> dict:
    return json.loads((folder / "training.json").read_text())["recipe"]


def test_adapters_learn_faster_unless_told(place):
    assert recipe(place / "run")["learning_rate"] == 5e-4
    options = "--train lora --learning-rate 1e-6 --window 24 --max-tokens 100 --batch-size 1 --windows-per-segment 2"
    run(f"train window {place}/backbone --corpus {place}/texts {options} --out {place}/slow")
    assert recipe(place / "slow")["learning_rate"] == 1e-6 and recipe(place / "run")["epochs"] == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train PLACE/backbone --out x y", "use `onward train window PLACE/backbone --out x y`"),
        ("train PLACE/blocks", "use `onward train block PLACE/blocks`"),
        ("train Rec:fixed:skip", "needs the kind of model, window, block or masked: use `onward train block Rec"),
        ("train recurrent-bert:base", "use `onward train masked recurrent-bert:base`"),
        ("train Rec:fixd:skip", "there is no preset 'Rec:fixd:skip': did you mean 'Rec:fixed:skip'"),
        ("train window Rec:fixed:skip", "is a block-recurrent model: use `onward train block Rec:fixed:skip`"),
        ("train window PLACE/blocks", "is a block-recurrent model: use `onward train block PLACE/blocks`"),
        ("train window bert:base", "bert:base is a masked language model: use `onward train masked bert:base`"),
        ("train window PLACE/run", "run has recurrence already"),
        ("train block PLACE/run", "run has recurrence already"),
        ("train masked PLACE/run", "run has recurrence already"),
        ("train PLACE/run", "run has recurrence already"),
        ("train window minilm-l6", "use `onward embed minilm-l6`"),
        ("train block PLACE/backbone", "backbone is a pretrained backbone: use `onward train window PLACE/backbone`"),
        ("train block bert:base", "bert:base is a masked language model: use `onward train masked bert:base`"),
        ("train block ./nowhere", "there is no model './nowhere': give a preset, or the folder of a trained model"),
        ("train masked Slide:12L", "Slide:12L is a block-recurrent model: use `onward train block Slide:12L`"),
    ],
)
def test_the_right_command_is_named(place, blocks, line, message, monkeypatch, capsys):
    line, message = (text.replace("PLACE", str(place)) for text in (line, message))
    assert message in error_of(line, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("block Rec:fixed:skip --carrier spans", "--carrier"),
        ("block Rec:fixed:skip --train lora", "--train"),
        ("block Rec:fixed:skip --no-residual", "--no-residual"),
        ("block Rec:fixed:skip --with-controls", "--with-controls"),
        ("block Slide:12L --whole-words", "--whole-words"),
        ("masked bert:base --carrier spans", "--carrier"),
        ("window smollm2-135m --set hidden_size=64", "--set"),
        ("window smollm2-135m --tokenizer bytes", "--tokenizer"),
    ],
)
def test_options_of_other_kinds_do_not_exist(line, option):
    result = CliRunner().invoke(app, ["train", *line.split()], env={"COLUMNS": "200"})
    assert result.exit_code == 2 and f"No such option: {option}" in result.output


def test_a_misspelt_kind_is_not_a_model():
    result = CliRunner().invoke(app, ["train", "windw", "smollm2-135m"], env={"COLUMNS": "200"})
    assert result.exit_code == 2 and "No such command 'windw'. Did you mean 'window'?" in result.output
