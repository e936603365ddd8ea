"""Every verb, run as a person would, on a tiny model and a small text."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import time
from types import SimpleNamespace

import pytest
from rich.console import Console
from safetensors.torch import load_file
from small_models import save_small_bert, save_small_gpt2
from typer.testing import CliRunner

from onward import cli
from onward.commands import shared
from onward.training.progress import ProgressBar

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
    carrier = "--carrier spans --window 24 --history 3,2 --insert-at 1,2"
    arguments = f"{carrier} --train lora --windows-per-segment 3 --batch-size 2"
    (folder / "latin.txt").write_bytes("größe".encode("latin-1"))
    (folder / "notes.jsonl").write_text("".join(json.dumps({"body": WORDS * 9}) + "\n" for _ in range(4)))
    code = folder / "code"
    code.mkdir()
    for i in range(4):
        (code / f"{i}.py").write_text(f"number = {i}\n" * 40, encoding="utf-8")
    train = f"train {folder}/backbone --corpus {texts} --out {folder}/run {arguments} --max-tokens 1000 --with-controls"
    run(train)
    return folder


TINY = (
    "--tokenizer bytes --window 16 --set num_hidden_layers=2 --set hidden_size=32 --set num_attention_heads=2 "
    "--set recurrent_layers=[2] --set num_states=4 --batch-size 2 --epochs 2 --learning-rate 0.3 --warmup-steps 2 "
    "--save-every 1500"
)


@pytest.fixture(scope="module")
def blocks(place):
    """A folder with a small block-recurrent model, trained for a few steps."""
    run(f"train Rec:fixed:skip --corpus {place}/texts {TINY} --out {place}/blocks")
    return place / "blocks"


def error_of(line: str, monkeypatch, capsys) -> str:
    """What a person sees when a command cannot be done: one sentence."""
    monkeypatch.setattr("sys.argv", ["onward", *line.split()])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("onward: ")
    return message.removeprefix("onward: ")


def run(line: str) -> str:
    result = CliRunner().invoke(cli.app, cli.spread_numbers(line.split(), "--overlap"), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_train_saves_model_and_control(place):
    assert (place / "run" / "model.safetensors").is_file()
    for folder, carrier in ((".", "spans"), ("constant", "constant"), ("plain", "none")):
        saved = json.loads((place / "run" / folder / "config.json").read_text())
        assert (saved["carrier"], saved["history"], saved["insert_at"]) == (carrier, [3, 2], [1, 2])


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


# --- block-recurrent models ------------------------------------------------------------------------


def test_train_a_preset(blocks):
    config = json.loads((blocks / "config.json").read_text())
    assert (config["model_type"], config["vocab_size"], config["window"]) == ("onward_block_recurrent", 257, 16)
    assert (config["hidden_size"], config["num_states"], config["recurrent_layers"]) == (32, 4, [2])
    assert (config["gate"], config["segment_length"], config["eos_token_id"]) == ("fixed", 128, 0)
    recipe = json.loads((blocks / "training.json").read_text())["recipe"]
    assert (recipe["optimizer"], recipe["schedule"], recipe["learning_rate"]) == ("adafactor", "inverse_sqrt", 0.3)


def test_a_killed_run_goes_on_with_the_same_losses(place, blocks):
    command = f"train Rec:fixed:skip --corpus {place}/texts {TINY} --out {place}/killed"
    shutil.copytree(blocks, place / "killed")
    whole = json.loads((place / "killed" / "training.json").read_text())
    checkpoints = sorted((place / "killed").glob("checkpoint-*"), key=lambda folder: int(folder.name.split("-")[1]))
    assert len(checkpoints) > 1
    shutil.rmtree(checkpoints[-1])
    for left in ("training.json", "model.safetensors"):
        (place / "killed" / left).unlink()
    output = run(command)
    again = json.loads((place / "killed" / "training.json").read_text())
    assert again["history"] == whole["history"] and again["validation_loss"] == whole["validation_loss"]
    assert f"resuming from {checkpoints[-2].name}\n" in output
    loaded = run(command)
    assert "had already finished" in loaded and "had already finished" not in output
    assert output.splitlines()[-1] in loaded


def test_what_is_trained_is_said_before_and_how_good_it_is_after(place):
    options = "--max-tokens 600 --evaluate-every 100 --learning-rate 50"
    output = run(f"train Rec:fixed:skip --corpus {place}/texts {TINY} {options} --out {place}/said")
    first, facts, steps, *between, last = output.splitlines()
    assert first == f"Rec:fixed:skip, into {place}/said"
    assert re.fullmatch(r"[\d,]{5,} parameters, 4 training documents with [\d,]+ tokens", facts)
    result = json.loads((place / "said" / "training.json").read_text())
    assert re.fullmatch(rf"{result['steps']} steps of about 2\d\d tokens, starting anew", steps)
    assert all(re.search(r"loss \d+\.\d{3} nats/token, validation \d+\.\d{3} nats/token,", line) for line in between)
    nats = result["best_validation_loss"]
    assert result["best_validation_loss"] < result["validation_loss"]
    assert f"best validation loss {nats:.4f} nats/token ({nats / 0.6931471805599453:.4f} bits/token), after" in last
    assert f"step {result['best_step']} of {result['steps']}" in last and last.endswith(f"saved in {place}/said")


def test_a_bar_in_eighty_columns_is_whole():
    screen = io.StringIO()
    bar = ProgressBar(90_000_000, Console(file=screen, force_terminal=True, width=80, legacy_windows=False))
    state = SimpleNamespace(num_input_tokens_seen=0, global_step=0, max_steps=1000, is_world_process_zero=True)
    model = SimpleNamespace(num_parameters=lambda only_trainable=False: 1000)
    documents = SimpleNamespace(dataset=SimpleNamespace(documents=["some tokens"]))
    bar.on_train_begin(None, state, None, model=model, train_dataloader=documents)
    state.num_input_tokens_seen, state.global_step, bar.started = 30_000_000, 333, time.monotonic() - 100
    bar.on_log(None, state, None, {"loss": 12.34567})
    bar.on_evaluate(None, state, None, {"eval_loss": 5.66104})
    bar.on_prediction_step(None, state, None)  # "validating" is the longest word before the bar
    shown = io.StringIO()
    Console(file=shown, width=80).print(bar.bar.get_renderable())
    bar.close()
    pattern = r"validating [━╸╺ ]{10,} 33% +[-\d]+:[-\d]+:[-\d]+ left, [\d,]{7} tokens/s, loss 12\.346 nats/token *"
    assert re.fullmatch(pattern, shown.getvalue().strip())
    assert "step 333/1000, validation 5.661 nats/token" in screen.getvalue()


def test_names_are_shown_as_they_are():
    shown = shared.console.render_str("Rec:fixed:skip is in [red]/a:smile:b")
    assert shown.plain == "Rec:fixed:skip is in [red]/a:smile:b" and not shown.spans


def test_train_a_model_further(place, blocks, monkeypatch, capsys):
    further = f"train {blocks} --corpus {place}/texts --batch-size 2 --max-tokens 500"
    run(f"{further} --set dropout=0.2 --set segment_length=64 --optimizer adamw --out {place}/further")
    config = json.loads((place / "further" / "config.json").read_text())
    assert (config["dropout"], config["segment_length"], config["hidden_size"]) == (0.2, 64, 32)
    message = error_of(f"{further} --set hidden_size=64 --out {place}/other", monkeypatch, capsys)
    assert "--set hidden_size=64 would change parameters" in message
    assert "its own tokenizer" in error_of(f"{further} --tokenizer bytes --out {place}/other", monkeypatch, capsys)
    assert "another folder for --out" in error_of(f"{further} --out {blocks}", monkeypatch, capsys)


def test_train_with_a_vocabulary_of_the_corpus(place):
    for kind in ("bpe", "sentencepiece"):
        folder = place / kind
        assert f"--tokenizer {folder}" in run(
            f"vocabulary --corpus {place}/texts --size 280 --kind {kind} --out {folder}"
        ).replace("\n", "")
    tokens = len(json.loads((place / "bpe" / "tokenizer.json").read_text())["model"]["vocab"])
    sizes = TINY.replace("--tokenizer bytes", f"--tokenizer {place}/bpe") + " --set gate=lstm --set feedback=True"
    run(f"train Rec:fixed:dual --corpus {place}/texts {sizes} --max-tokens 500 --out {place}/with-bpe")
    config = json.loads((place / "with-bpe" / "config.json").read_text())
    assert 257 < config["vocab_size"] == tokens <= 280
    assert (config["gate"], config["gate_configuration"], config["feedback"]) == ("lstm", "dual", True)


def test_a_vocabulary_is_not_overwritten(place, monkeypatch, capsys):
    command = f"vocabulary --corpus {place}/texts --size 270 --out {place}/once"
    run(command)
    before = (place / "once" / "tokenizer.json").read_bytes()
    message = error_of(command.replace("270", "260"), monkeypatch, capsys)
    assert f"--out {place}/once holds a vocabulary already: choose another folder" in message
    assert (place / "once" / "tokenizer.json").read_bytes() == before


def test_train_on_code_and_on_a_field(place):
    run(f"train Rec:fixed:skip --corpus {place}/code --pattern *.py {TINY} --max-tokens 300 --out {place}/coder")
    run(f"evaluate {place}/coder --corpus {place}/code --pattern *.py --max-tokens 50 --out {place}/coder-eval")
    assert (place / "coder-eval" / "results.json").is_file()
    run(f"vocabulary --corpus {place}/notes.jsonl --field body --size 260 --out {place}/of-notes")
    run(f"embed {place}/encoder {place}/notes.jsonl --field body --window 32 --out {place}/n.safetensors")
    assert "notes.jsonl:3.document" in load_file(place / "n.safetensors")


def test_more_lanes_than_documents(place, monkeypatch, capsys):
    sizes = TINY.replace("--batch-size 2", "--tokens-per-step 1280")
    message = error_of(f"train Rec:fixed:skip --corpus {place}/texts {sizes} --out {place}/wide", monkeypatch, capsys)
    assert message.startswith("10 lanes, the rows of a step, are too many: 2 of them would stand idle")
    assert message.endswith("use --batch-size 8 or less (instead of --tokens-per-step), or more --epochs")


def test_a_place_that_cannot_be_written_is_found_at_once(place, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    message = error_of(f"evaluate no-such-model --out {place}/new/results", monkeypatch, capsys)
    assert message.startswith(f"--out {place}/new/results: {place} may not be written to")
    monkeypatch.undo()

    def refuse(**given):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr("onward.commands.shared.TemporaryDirectory", refuse)  # as places like /sys do
    message = error_of(f"study scale --scale smoke --out {place}/new", monkeypatch, capsys)
    assert message.startswith(f"--out {place}/new: {place} may not be written to")


def test_evaluate_blocks(place, blocks):
    run(f"evaluate {blocks} --corpus {place}/texts --split train --max-tokens 100 --out {place}/block-eval")
    results = json.loads((place / "block-eval" / "results.json").read_text())
    assert [row["variant"] for row in results["rows"]] == ["recurrent", "swapped", "ablated"]
    assert all(row["measures"]["bits_per_token"] > 0 for row in results["rows"])
    assert (place / "block-eval" / "loss_by_distance.svg").is_file() and results["max_tokens"] is None


def test_generate_blocks(place, blocks):
    output = run(f"generate {blocks} --prompt-file {place}/texts/0.txt --tokens 40 --no-sample --endless")
    assert WORDS * 8 in output and len(output) >= len(WORDS * 8) + 40


def test_inspect_blocks(place, blocks):
    output = run(f"inspect {blocks} --text {place}/texts/0.txt --max-tokens 200")
    for shown in (
        "4 states at layer 2, gate fixed:skip",
        "ablated",
        "attention gate",
        "taken in",
        "spread over states",
        "effective",
        "128 to 199",
    ):
        assert shown in output, output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--carrier spans", "--carrier is for window-recurrent models, and Rec:fixed:skip is block-recurrent"),
        ("--train lora", "--train is for window-recurrent models"),
        ("--no-residual", "--residual is for window-recurrent models"),
        ("--with-controls", "--with-controls is for window-recurrent models"),
        ("--batch-size 2 --tokens-per-step 100", "give one of them"),
        ("--set window=8 --window 8", "give one of them"),
        ("--set gate", "--set gate: write it as FIELD=VALUE"),
        ("--set gate=lstm --set gate=fixed", "gate is set twice"),
        ("--set dropout=half", "--set dropout=half: dropout is a number, not 'half'"),
        ("--set hidden_size=2.5", "hidden_size is a whole number, not 2.5"),
        ("--set feedback=1", "feedback is True or False, not 1"),
        ("--set recurrent_layers=[1,", "'[1,' is neither a number, True, False, None, a list nor a word"),
        ("--set recurrent_layers=3", "recurrent_layers is a list such as [4,10], not 3"),
        ("--set recurrent_layers=[13]", "recurrent_layers has 13: layers are counted from 1 to 12"),
        ("--set hidden_sise=64", "did you mean 'hidden_size'?"),
        ("--set gate=both", "gate='both' is not known"),
        ("--set vocab_size=100", "--set vocab_size=100 is smaller than the tokenizer's 257 ids"),
        ("--optimizer sgd", "--optimizer 'sgd': it is not known"),
        ("--evaluate-every 0", "--evaluate-every 0: it must be"),
        ("--pattern *.md", "holds no *.md files: put some there, or choose others with --pattern '*.ending'"),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(place, options, message, monkeypatch, capsys):
    command = f"train Rec:fixed:skip --corpus {place}/texts --tokenizer bytes --out {place}/nothing {options}"
    assert message in error_of(command, monkeypatch, capsys)
    assert not (place / "nothing").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train Rec:fixd:skip --tokenizer bytes", "no preset 'Rec:fixd:skip': did you mean 'Rec:fixed:skip'"),
        ("train rec:FIXED:skip", "did you mean 'Rec:fixed:skip'"),
        ("train Rec:fixed:skip", "Rec:fixed:skip needs a tokenizer: --tokenizer bytes"),
        ("train PLACE/backbone --set hidden_size=64", "--set is for models from presets"),
        ("train PLACE/backbone --history few", "--history 'few': give a number of windows, or spans of each as 63,"),
        ("train PLACE/backbone --history all", "--history 'all': give a number of windows"),
        ("train PLACE/backbone --insert-at 2,x", "--insert-at '2,x': give a layer, several as 2,5,9, or all"),
        ("train PLACE/backbone --tokenizer bytes", "--tokenizer is for models from presets"),
        ("train Slide:12L --corpus PLACE/blank --tokenizer bytes", "is empty: remove it, or put text into it"),
        ("train Slide:12L --corpus PLACE/nothing-there --tokenizer bytes", "no file or folder"),
        ("evaluate Rec:fixed:skip", "Rec:fixed:skip is a preset, not a trained model"),
        ("evaluate PLACE/blocks --batch-size 0", "--batch-size 0: read at least 1 document at a time"),
        ("evaluate PLACE/blocks --overlap 3", "--overlap is for window-recurrent models"),
        ("generate PLACE/blocks --prompt hello --window 8", "windows of its own, of 16 tokens: leave --window out"),
        ("embed PLACE/blocks PLACE/texts/0.txt", "is block-recurrent"),
        ("inspect PLACE/blocks --max-tokens 9", "give one with --text"),
        ("inspect PLACE/blocks --text PLACE/texts/0.txt --max-tokens 9", "9 tokens have no second block"),
        ("vocabulary --corpus PLACE/texts --size 100 --out PLACE/small", "--size 100: bytes, or letters"),
        ("evaluate PLACE/blocks --corpus PLACE/texts --out PLACE/latin.txt", "is a file, and results go into"),
        ("train Slide:12L --tokenizer bytes --out PLACE/latin.txt/run", "latin.txt is a file, not a folder"),
        ("vocabulary --out PLACE/latin.txt", "latin.txt is a file, and results go into a folder"),
        ("demo --out PLACE/latin.txt", "latin.txt is a file, and results go into a folder"),
        ("embed PLACE/run PLACE/texts/0.txt --out PLACE/texts", "texts is a folder, and vectors go into a file"),
        ("evaluate PLACE/blocks --corpus PLACE/code", "choose others with --pattern '*.ending'"),
        ("evaluate PLACE/blocks --corpus PLACE/notes.jsonl", "holds the text with --field"),
        ("evaluate PLACE/blocks --corpus PLACE/notes.jsonl --pattern *.py", "--pattern *.py chooses files of a folder"),
        ("evaluate PLACE/blocks --pattern *.py", "corpus 'shakespeare' has no --pattern: leave it out"),
        ("vocabulary --corpus pg19 --out PLACE/small", "or pg19:FOLDER and wikitext-103:FOLDER"),
        ("generate PLACE/blocks --prompt a --prompt-file PLACE/texts/0.txt", "give one of them"),
        ("generate PLACE/blocks --prompt-file PLACE/none.txt", "none.txt: there is no such file; check the path"),
        ("generate PLACE/blocks --prompt-file PLACE/texts", "texts is a folder: give a text file"),
        ("generate PLACE/blocks --prompt-file PLACE/latin.txt", "is not UTF-8: byte 0xf6 at position 2"),
        ("inspect PLACE/blocks --text PLACE/latin.txt", "--text"),
        ("generate PLACE/blocks --prompt a --temperature 0", "--temperature 0.0: it must be above 0; --no-sample"),
        ("generate PLACE/blocks --prompt a --temperature -1", "--temperature -1.0: it must be above 0"),
        ("generate PLACE/blocks --prompt a --temperature nan", "--temperature nan: it must be above 0"),
        ("generate PLACE/blocks --prompt a --top-p 1.5", "--top-p 1.5: it must be above 0 and at most 1"),
        ("generate PLACE/blocks --prompt a --top-p 0", "--top-p 0.0: it must be above 0 and at most 1"),
        ("generate PLACE/blocks --prompt a --tokens 0", "--tokens 0: write at least 1"),
    ],
)
def test_other_mistakes_are_one_sentence(place, blocks, line, message, monkeypatch, capsys):
    (place / "blank").mkdir(exist_ok=True)
    (place / "blank" / "a.txt").write_text(" \n", encoding="utf-8")
    assert message in error_of(line.replace("PLACE", str(place)), monkeypatch, capsys)
