"""`onward train window`"""

from __future__ import annotations

import json

import pytest
from command_line import error_of, run
from typer.testing import CliRunner

from onward.cli import app
from onward.models.window_recurrent import probe
from onward.models.window_recurrent.turning import CannotTurn


def config_of(folder) -> dict:
    return json.loads((folder / "config.json").read_text())


def test_train_saves_model_and_controls(place):
    assert (place / "run" / "model.safetensors").is_file()
    for folder, carrier in ((".", "spans"), ("constant", "constant"), ("plain", "none")):
        saved = config_of(place / "run" / folder)
        history = None if carrier == "none" else [3, 2]  # plain windows have none
        assert (saved["carrier"], saved["history"], saved["insert_at"]) == (carrier, history, [1, 2])


def test_train_saves_kept_tokens_of_the_same_bytes(place):
    kept = config_of(place / "run" / "kept")
    assert (kept["carrier"], kept["window"], kept["insert_at"], kept["rank"]) == ("recent", 24, [1, 2], 32)
    # 6 vectors of 32 numbers and 6 flags; a token has a key, a value and for each of 4 heads 12 bytes of notes
    assert kept["slots"] == (2 * 6 * 32 * 4 + 6) // (2 * (2 * 32 * 4 + 4 * 12)) == 2
    trained, control = (json.loads((place / "run" / name / "training.json").read_text()) for name in (".", "kept"))
    assert trained["recipe"] == control["recipe"] and trained["history"] != control["history"]


def test_the_carrier_alone_needs_no_plain_control_but_kept_tokens(place):
    options = "--carrier selected --slots 7 --sinks 2 --score received --rank 3 --window 24 --train carrier"
    size = "--max-tokens 100 --batch-size 1 --windows-per-segment 2"
    run(f"train window {place}/backbone --corpus {place}/texts {options} {size} --with-controls --out {place}/light")
    wanted = {"slots": 7, "sinks": 2, "rank": 3, "score": "received", "window": 24}
    for folder, carrier in ((".", "selected"), ("constant", "constant"), ("kept", "recent")):
        saved = config_of(place / "light" / folder)
        assert saved["carrier"] == carrier and {name: saved[name] for name in wanted} == wanted
    assert not (place / "light" / "plain").exists()


def test_a_backbone_that_cannot_keep_tokens_is_trained_without_them(place, monkeypatch):
    def cannot(base):
        raise CannotTurn("its keys are of another kind")

    monkeypatch.setattr(probe, "turnings_of", cannot)
    options = "--carrier spans --slots 6 --window 24 --max-tokens 100 --batch-size 1 --windows-per-segment 2"
    said = run(f"train window {place}/backbone --corpus {place}/texts {options} --with-controls --out {place}/unkept")
    assert "without the control that keeps tokens: " in said and "its keys are of another kind" in said
    assert not (place / "unkept" / "kept").exists() and (place / "unkept" / "constant" / "config.json").is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--carrier matchd",
            "--carrier matchd: choose one of constant, matched, none, pooled, recent, selected, spans",
        ),
        ("--carrier matched --slots 0", "--slots 0: it must be a whole number of at least 1, or None"),
        ("--carrier recent --slots 2 --sinks 2", "--sinks 2: they are a part of the 2 slots"),
        ("--carrier matched --sinks -1", "--sinks -1: it must be a whole number of at least 0"),
        ("--carrier matched --score best", "--score best: choose one of attention, key_difference, received"),
        ("--carrier matched --rank 0", "--rank 0: it must be a whole number of at least 1"),
        ("--carrier matched --vectors 9", "--vectors 9: carrier='matched' has slots"),
        ("--carrier spans --vectors 9", "--vectors 9: it is for pooled; use --slots 9"),
        ("--carrier pooled --slots 9", "--slots 9: carrier='pooled' inserts vectors"),
        ("--carrier matched --history 2", "--history 2: it is for carrier='spans'"),
    ],
)
def test_a_wrong_value_is_told_with_its_option(place, options, message, monkeypatch, capsys):
    line = f"train window {place}/backbone --corpus {place}/texts --window 24 {options}"
    assert message in error_of(line, monkeypatch, capsys)


def recipe(folder) -> dict:
    return json.loads((folder / "training.json").read_text())["recipe"]


def test_adapters_learn_faster_unless_told(place):
    assert recipe(place / "run")["learning_rate"] == 5e-4
    options = "--train lora --learning-rate 1e-6 --window 24 --max-tokens 100 --batch-size 1 --windows-per-segment 2"
    run(f"train window {place}/backbone --corpus {place}/texts {options} --out {place}/slow")
    assert recipe(place / "slow")["learning_rate"] == 1e-6 and recipe(place / "run")["epochs"] == 2


def test_a_teacher_and_sizes_at_random(place, monkeypatch, capsys):
    memory = "--carrier selected --slots 6 --window 8 --random-slots 3,12 --train carrier"
    line = f"train window {place}/backbone --corpus {place}/texts {memory} --max-tokens 100 --batch-size 1"
    run(f"{line} --teacher full-context --teacher-share 0.75 --windows-per-segment 2 --out {place}/taught")
    chosen = recipe(place / "taught")
    assert (chosen["teacher"], chosen["teacher_share"], chosen["random_slots"]) == ("full-context", 0.75, [3, 12])
    assert json.loads((place / "taught" / "config.json").read_text())["slots"] == 6
    error = error_of(f"{line} --teacher full-context --windows-per-segment 500 --out {place}/no", monkeypatch, capsys)
    assert error.startswith(
        "--windows-per-segment 500: a segment then has 4000 tokens, and the teacher, the backbone, "
    )
    error = error_of(f"{line} --random-slots 3,x --out {place}/no", monkeypatch, capsys)
    assert error == "--random-slots 3,x: give the least and the most, as 16,512"


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
