"""Whatever is given, a person sees one sentence that names the option, the field or the file."""

from __future__ import annotations

import json
import re
import shutil
import sys

import pytest
from small_models import save_small_gpt2

from onward import BlockRecurrentConfig, BlockRecurrentForCausalLM, add_recurrence, cli
from onward.data import load_documents
from onward.data.vocabularies import byte_tokenizer, train_vocabulary
from onward.models.pretrained import load_backbone
from onward.utils.manifests import listing
from onward.utils.safe_json import write_json

WORDS = "the sea and the ship and the long way home, said the old man to the boy. "
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
OF_PRESETS = " ".join(f"--set {name}={value}" for name, value in SMALL.items())


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("manners")
    model, tokenizer = load_backbone(str(save_small_gpt2(folder / "backbone")))
    add_recurrence(model, carrier="spans", window=24).save_pretrained(folder / "run")
    tokenizer.save_pretrained(folder / "run")
    fields = {"vocab_size": 257, "window": 16, "recurrent_layers": [2], "num_states": 4}
    config = BlockRecurrentConfig.preset("Rec:fixed:skip", **SMALL, **fields)
    BlockRecurrentForCausalLM(config).save_pretrained(folder / "blocks")
    byte_tokenizer().save_pretrained(folder / "blocks")
    (folder / "texts").mkdir()
    for number in range(4):
        (folder / "texts" / f"{number}.txt").write_text(WORDS * 9, encoding="utf-8")
    train_vocabulary(load_documents(folder / "texts"), 300, "wordpiece").save_pretrained(folder / "pieces")
    return folder


def at(place, line: str) -> list[str]:
    return line.replace("@", str(place)).split()


@pytest.fixture
def told(monkeypatch, capsys):
    def run(*arguments: str) -> str:
        """What a person reads; nothing, where all went well."""
        monkeypatch.setattr(sys, "argv", ["onward", *arguments])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        shown = capsys.readouterr().err
        if not stopped.value.code:
            return ""
        assert stopped.value.code == 1 and "Traceback" not in shown, shown
        sentence = shown[shown.rindex("onward: ") :].strip()
        assert "should have been found earlier" not in sentence, sentence
        return sentence

    return run


# --- numbers ---------------------------------------------------------------------------------------

TRAIN = "train window @/backbone --corpus @/texts --carrier spans --window 24 --out @/new"
PRESET = f"train block Rec:fixed:skip --corpus @/texts --tokenizer bytes --window 16 {OF_PRESETS} --out @/new"
MASKED = f"train masked bert:base --corpus @/texts --tokenizer @/pieces {OF_PRESETS} --out @/new"
RECURRENT = MASKED.replace("bert:base", "recurrent-bert:base")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"{TRAIN} --epochs inf", "--epochs inf: it must be a finite number"),
        (f"{TRAIN} --epochs 1e300", r"--epochs 1e\+300: that is too much"),
        (f"{TRAIN} --learning-rate nan", "--learning-rate nan: it must be a number above 0"),
        (f"{TRAIN} --batch-size {10**22}", f"--batch-size {10**22}: that is too much"),
        (f"{TRAIN} --max-tokens {10**22}", "--max-tokens .*: that is too much"),
        (f"{TRAIN} --seed {10**10}", "--seed 10000000000: that is too much; choose at most 4,294,967,295"),
        ("evaluate @/run --corpus @/texts --overlap 99999999999999999", "--overlap 9.*: that is too much"),
        ("generate @/run --prompt x --seed -1", "--seed -1: it must be a whole number of at least 0"),
        (
            "generate @/run --prompt x --temperature 1e-300",
            "--temperature 1e-300: choose 0.000001 or more",
        ),
        ("generate @/run --prompt x --top-p inf", "--top-p inf: it must be a finite number"),
        ("generate @/backbone --prompt x --window 0", "--window 0: it must be at least 1 token"),
        ("inspect @/run --text @/texts/0.txt --max-tokens 0", "--max-tokens 0: at least 1"),
        ("embed @/backbone @/texts/0.txt --out @/v --window 0", "--window 0: it must be at least 1 token"),
        ("embed @/run @/texts/0.txt --out @/v --window 24", "windows of its own, of 24 tokens: leave --window out"),
        ("embed @/run @/texts/0.txt --out @/v --overlap 0", "windows of its own, of 24 tokens: leave --overlap out"),
        ("vocabulary --corpus @/texts --size 99999999999 --out @/new", "99999999999: no vocabulary has that many"),
        ("finetune @/backbone --task rte --epochs inf --out @/new", "--epochs inf: it must be a finite number"),
        ("finetune @/backbone --task rte --margin nan --out @/new", "--margin nan: give a number"),
        (
            "train block Slide:13L --tokenizer bytes --corpus @/texts --set num_hidden_layers=99999 --out @/new",
            "10,000",
        ),
        ("study gates --seeds 99999 --out @/new", "--seeds 99999: that is too much"),
    ],
)
def test_numbers(place, told, line, message):
    assert re.search(message, told(*at(place, line)))


@pytest.mark.parametrize(
    ("line", "setting", "message"),
    [
        (PRESET, "hidden_act=foo", "--set hidden_act=foo: choose one of gelu"),
        (PRESET, "dtype=foo", "--set dtype=foo: models are trained in float32"),
        (PRESET, "pad_token_id=-1", "--set pad_token_id=-1: the vocabulary has 257 ids"),
        (PRESET, "eos_token_id=99999", "--set eos_token_id=99999: the vocabulary has 257 ids"),
        (PRESET, "rms_norm_eps=-1", "--set rms_norm_eps=-1: it must be a number above 0"),
        (PRESET, f"vocab_size={10**22}", "no model can be made of these --set fields"),
        (PRESET, f"intermediate_size={10**14}", "the memory of this machine is not enough"),
        ("train block @/blocks --corpus @/texts --out @/new", "pad_token_id=777", "the vocabulary has 257 ids"),
        *[
            (line, setting, message)
            for line in (MASKED, RECURRENT)
            for setting, message in {
                "hidden_act=foo": "--set hidden_act=foo: choose one of gelu",
                "torch_dtype=float16": "--set torch_dtype=float16: models are trained in float32",
                "pad_token_id=999": "pad_token_id=999: the vocabulary has",
                "layer_norm_eps=-1": "--set layer_norm_eps=-1: it must be a number above 0",
                "hidden_dropout_prob=2": "--set hidden_dropout_prob=2: it must be a number of at least 0 and below 1",
                "type_vocab_size=0": "--set type_vocab_size=0: it must be a whole number of at least 1",
                "initializer_range=-1": "--set initializer_range=-1: it must be a number above 0",
                "is_decoder=True": "masked language models are encoders",
                "model_type=x": "--set model_type=x: model_type means nothing",
            }.items()
        ],
    ],
)
def test_fields(place, told, line, setting, message):
    assert message in told(*at(place, line), "--set", setting)


@pytest.mark.parametrize("line", [PRESET, MASKED, RECURRENT])
def test_no_heads(place, told, line):
    line = line.replace("num_attention_heads=2", "num_attention_heads=0")
    assert "--set num_attention_heads=0: it must be a whole number" in told(*at(place, line))


@pytest.mark.parametrize("line", [PRESET, MASKED, RECURRENT])
def test_heads_that_cannot_share_the_width(place, told, line):
    line = line.replace("hidden_size=32", "hidden_size=33")
    assert "--set hidden_size=33: it cannot be shared by num_attention_heads=2; choose" in told(*at(place, line))


# --- paths -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        ["train", "window", "@/backbone", "--corpus", "@/texts", "--out", ""],
        ["train", "window", "@/backbone", "--corpus", "", "--out", "@/new"],
        ["embed", "@/run", "", "--out", "@/v"],
        ["embed", "@/run", "@/texts", "--out", "@/v", "--pattern", ""],
        ["evaluate", "@/run", "--corpus="],
        ["finetune", "@/run", "--task", "rte", "--data", ""],
        ["study", "gates", "--known", ""],
        ["generate", ""],
    ],
)
def test_nothing_is_not_the_present_folder(place, told, line):
    assert "has an empty value" in told(*[argument.replace("@", str(place)) for argument in line])


def test_an_empty_argument_is_told_by_its_place(told):
    said = "onward: the argument after 'window' has an empty value: give a name or a path"
    assert told("train", "window", "", "--corpus", "x") == said


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("embed @/run @/texts --out @/v --pattern /etc/*", "--pattern '/etc/*': it chooses files inside a folder"),
        ("embed @/run @/texts --out @/v --field body", "texts holds plain text, which has no fields; leave it out"),
        ("embed @/run @/none.txt --out @/v", "there is no file or folder"),
        ("inspect @/texts/0.txt", "is a file, and a backbone is a folder"),
        ("generate @/texts --prompt x", "has no config.json"),
        ("generate @/run --prompt-file @/texts", "texts is a folder: give a text file"),
        ("evaluate @/run --corpus hub:../texts", "'../texts' is no name of a data set on the Hugging Face Hub"),
    ],
)
def test_paths(place, told, line, message):
    assert message in told(*at(place, line))


# --- files -----------------------------------------------------------------------------------------

BROKEN = ["{}", "[]", "null", '""', "", "garbage", '{"a": ']
READERS = {"run": "generate @/copy --prompt x --tokens 1", "blocks": "inspect @/copy"}
MAY_BE_EMPTY = ("tokenizer_config.json", "generation_config.json")


@pytest.mark.parametrize("model", READERS)
def test_any_json_of_a_model_may_be_broken(place, told, model):
    files = [file.name for file in (place / model).glob("*.json")]
    assert {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"} <= set(files)
    for name in files:
        for content in BROKEN:
            shutil.copytree(place / model, place / "copy", dirs_exist_ok=True)
            (place / "copy" / name).write_text(content)
            said = told(*at(place, READERS[model]))
            assert name in said or "copy" in said or (content == "{}" and name in MAY_BE_EMPTY), (name, content, said)


@pytest.mark.parametrize("model", READERS)
@pytest.mark.parametrize("kept", [0, 7, 300, -1])
def test_weights_that_broke_off(place, told, model, kept):
    shutil.copytree(place / model, place / "copy", dirs_exist_ok=True)
    file = place / "copy" / "model.safetensors"
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[:kept])
    trained_on = ["train block @/copy --corpus @/texts --out @/new"] if model == "blocks" else []
    for line in (READERS[model], *trained_on):
        assert f"{file} is damaged" in told(*at(place, line))


def test_corpora_that_broke_off(place, told):
    (place / "a.jsonl").write_text(json.dumps({"text": "x"}) + "\n" + "[" * 10**5)
    assert "a.jsonl, line 2: lists or objects are nested too deep" in told(
        "vocabulary", "--corpus", str(place / "a.jsonl")
    )


def test_weights_other_than_those_that_were_saved(place, told):
    shutil.copytree(place / "run", place / "changed")
    file = place / "changed" / "model.safetensors"
    listed = listing(file.parent, [file])
    write_json(place / "changed" / "training.json", {"files": listed})
    assert told(*at(place, "inspect @/changed")) == ""
    content = bytearray(file.read_bytes())
    content[-50] ^= 1
    file.unlink()
    file.write_bytes(content)
    for line in ("inspect @/changed", "generate @/changed --prompt x --tokens 1"):
        assert f"{file} is damaged: its content is not what was written" in told(*at(place, line))
    write_json(place / "changed" / "training.json", {"files": None})
    assert "training.json is damaged: its field 'files'" in told(*at(place, "inspect @/changed"))


def test_a_model_with_recurrence_is_given_no_other(place, told):
    assert "has recurrence already" in told(*at(place, "train window @/run --corpus @/texts --out @/again"))
