"""`onward train block`"""

from __future__ import annotations

import io
import json
import re
import shutil
import time
from types import SimpleNamespace

import pytest
from command_line import TINY_BLOCKS, error_of, run
from rich.console import Console
from safetensors.torch import load_file

from onward.training.progress import ProgressBar


def test_train_a_preset(blocks):
    config = json.loads((blocks / "config.json").read_text())
    assert (config["model_type"], config["vocab_size"], config["window"]) == ("onward_block_recurrent", 257, 16)
    assert (config["hidden_size"], config["num_states"], config["recurrent_layers"]) == (32, 4, [2])
    assert (config["gate"], config["segment_length"], config["eos_token_id"]) == ("fixed", 128, 0)
    recipe = json.loads((blocks / "training.json").read_text())["recipe"]
    assert (recipe["optimizer"], recipe["schedule"], recipe["learning_rate"]) == ("adafactor", "inverse_sqrt", 0.3)


def test_a_killed_run_goes_on_with_the_same_losses(place, blocks):
    command = f"train block Rec:fixed:skip --corpus {place}/texts {TINY_BLOCKS} --out {place}/killed"
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
    output = run(f"train block Rec:fixed:skip --corpus {place}/texts {TINY_BLOCKS} {options} --out {place}/said")
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


def test_train_a_model_further(place, blocks, monkeypatch, capsys):
    further = f"train block {blocks} --corpus {place}/texts --batch-size 2 --max-tokens 500"
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
    sizes = (
        TINY_BLOCKS.replace("--tokenizer bytes", f"--tokenizer {place}/bpe") + " --set gate=lstm --set feedback=True"
    )
    run(f"train block Rec:fixed:dual --corpus {place}/texts {sizes} --max-tokens 500 --out {place}/with-bpe")
    config = json.loads((place / "with-bpe" / "config.json").read_text())
    assert 257 < config["vocab_size"] == tokens <= 280
    assert (config["gate"], config["gate_configuration"], config["feedback"]) == ("lstm", "dual", True)


def test_train_on_code_and_on_a_field(place):
    options = f"--pattern *.py {TINY_BLOCKS} --max-tokens 300 --out {place}/coder"
    run(f"train block Rec:fixed:skip --corpus {place}/code {options}")
    run(f"evaluate {place}/coder --corpus {place}/code --pattern *.py --max-tokens 50 --out {place}/coder-eval")
    assert (place / "coder-eval" / "results.json").is_file()
    run(f"vocabulary --corpus {place}/notes.jsonl --field body --size 260 --out {place}/of-notes")
    run(f"embed {place}/encoder {place}/notes.jsonl --field body --window 32 --out {place}/n.safetensors")
    assert "notes.jsonl:3.document" in load_file(place / "n.safetensors")


def test_more_lanes_than_documents(place, monkeypatch, capsys):
    sizes = TINY_BLOCKS.replace("--batch-size 2", "--tokens-per-step 1280")
    message = error_of(
        f"train block Rec:fixed:skip --corpus {place}/texts {sizes} --out {place}/wide", monkeypatch, capsys
    )
    assert message.startswith("--tokens-per-step 1280: it makes 10 lanes, and there are only 8 documents in 2 epochs")
    assert message.endswith("use a batch_size of at most 8 instead, or more epochs")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--batch-size 2 --tokens-per-step 100", "give one of them"),
        ("--set window=8 --window 8", "give one of them"),
        ("--tokenizer ./nowhere", "--tokenizer ./nowhere: there is no tokenizer './nowhere'"),
        ("--set gate", "--set gate: write it as FIELD=VALUE"),
        ("--set gate=lstm --set gate=fixed", "gate is set twice"),
        ("--set dropout=half", "--set dropout=half: dropout is a number, not 'half'"),
        ("--set hidden_size=2.5", "hidden_size is a whole number, not 2.5"),
        ("--set feedback=1", "feedback is True or False, not 1"),
        ("--set recurrent_layers=[1,", "'[1,' is neither a number, True, False, None, a list nor a word"),
        ("--set recurrent_layers=3", "recurrent_layers is a list such as [4,10], not 3"),
        (
            "--set recurrent_layers=[13]",
            "--set recurrent_layers=[13]: layers are counted from 1 to 12, and 13 is none of them",
        ),
        ("--set hidden_sise=64", "did you mean 'hidden_size'?"),
        ("--set gate=both", "--set gate=both: choose one of fixed, lstm"),
        ("--set vocab_size=100", "--set vocab_size=100: the tokenizer has 257 ids, which is more"),
        ("--optimizer sgd", "--optimizer sgd: choose one of adafactor, adamw"),
        ("--evaluate-every 0", "--evaluate-every 0: it must be"),
        ("--pattern *.md", "holds no *.md files; put some there, or choose others, such as '*.ending'"),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(place, options, message, monkeypatch, capsys):
    command = f"train block Rec:fixed:skip --corpus {place}/texts --tokenizer bytes --out {place}/nothing {options}"
    assert message.replace("PLACE", str(place)) in error_of(command, monkeypatch, capsys)
    assert not (place / "nothing").exists()
