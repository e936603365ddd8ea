"""Masked language models on the command line."""

import json

import pytest
from command_line import error_of, run
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertForMaskedLM, pipeline

from onward import RecurrentBertForMaskedLM

TINY = (
    "--set num_hidden_layers=2 --set hidden_size=32 --set num_attention_heads=2 --set intermediate_size=48 "
    "--set max_position_embeddings=32 --batch-size 4 --learning-rate 0.01 --warmup-steps 2 --max-tokens 600"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with texts, a vocabulary, and both models trained for a few steps."""
    folder = tmp_path_factory.mktemp("masked")
    (folder / "texts").mkdir()
    for i in range(5):
        words = " ".join(f"The reader {n} reads on, and the readers' reading goes onward." for n in range(20 + i))
        (folder / "texts" / f"{i}.txt").write_text(words, encoding="utf-8")
    said = run(f"vocabulary --corpus {folder}/texts --kind wordpiece --size 300 --out {folder}/vocabulary")
    assert f"use --tokenizer {folder}/vocabulary" in said
    for name, more in (("bert", "--whole-words"), ("recurrent-bert", "--set stride=2 --window 16")):
        source = f"train masked {name}:base --corpus {folder}/texts --tokenizer {folder}/vocabulary"
        said = run(f"{source} --out {folder}/{name} {TINY} {more}")
        assert f"that model is saved in {folder}/{name}" in said
    return folder


def test_both_are_trained_with_what_was_set(place):
    plain = AutoModelForMaskedLM.from_pretrained(place / "bert")
    recurrent = AutoModelForMaskedLM.from_pretrained(place / "recurrent-bert")
    assert type(plain) is BertForMaskedLM and type(recurrent) is RecurrentBertForMaskedLM
    assert recurrent.config.stride == 2 and recurrent.config.hidden_size == plain.config.hidden_size == 32
    tokenizer = AutoTokenizer.from_pretrained(place / "recurrent-bert")
    assert len(tokenizer) == plain.config.vocab_size and plain.config.pad_token_id == tokenizer.pad_token_id
    records = [(place / name / "training.json").read_text() for name in ("bert", "recurrent-bert")]
    recipes = [json.loads(record)["recipe"] for record in records]
    assert [r["whole_words"] for r in recipes] == [True, False]
    assert [r["sequence_length"] for r in recipes] == [None, 16] and recipes[0]["weight_decay"] == 0.01


def test_the_model_fills_masks(place):
    for name in ("bert", "recurrent-bert"):
        found = pipeline("fill-mask", str(place / name))("The [MASK] reads on.", top_k=3)
        assert len(found) == 3 and all(" reads on" in answer["sequence"] for answer in found)


def test_a_trained_model_is_trained_on_with_other_dropout(place):
    options = "--batch-size 4 --max-tokens 200 --set hidden_dropout_prob=0.3"
    run(f"train masked {place}/recurrent-bert --corpus {place}/texts --out {place}/on {options}")
    assert AutoModelForMaskedLM.from_pretrained(place / "on").config.hidden_dropout_prob == 0.3


def test_a_bert_of_the_hub_is_trained_on(place, monkeypatch, capsys):
    monkeypatch.setattr("onward.utils.hub.hub_is_reachable", lambda: True)
    monkeypatch.setattr(
        "huggingface_hub.hf_hub_download", lambda name, file, local_files_only: str(place / "bert" / file)
    )
    # It is known for what it is; loading it is transformers' own, from a Hub that cannot be reached here.
    message = error_of(f"train window google/bert --out {place}/x", monkeypatch, capsys)
    assert message == "google/bert is a masked language model: use `onward train masked google/bert`"


def test_a_recurrent_bert_starts_from_a_plain_one(place):
    options = "--batch-size 4 --max-tokens 40 --learning-rate 1e-9 --set stride=3"
    run(f"train masked recurrent-bert:{place}/bert --corpus {place}/texts --out {place}/upcycled {options}")
    plain, upcycled = (AutoModelForMaskedLM.from_pretrained(place / name) for name in ("bert", "upcycled"))
    assert type(upcycled) is RecurrentBertForMaskedLM and upcycled.config.stride == 3
    ours, theirs = (m.bert.encoder.layer[1].attention.self.query.weight for m in (upcycled, plain))
    assert (ours - theirs).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "train masked bert:base",
            "bert:base needs a tokenizer: --tokenizer a folder (`onward vocabulary --kind wordpiece`",
        ),
        ("train masked bert:basse --tokenizer VOC", "there is no preset 'bert:basse': did you mean 'bert:base'"),
        ("train masked bert:base --tokenizer bytes", "the tokenizer has no mask token"),
        (
            "train masked bert:base --tokenizer VOC --set hiden_size=3",
            "BertConfig has no field 'hiden_size' (given 3): did",
        ),
        ("train masked bert:base --tokenizer VOC --set stride=2", "BertConfig has no field 'stride' (given 2)"),
        (
            "train masked recurrent-bert:base --tokenizer VOC --set stride=512",
            "--set stride=512: it must be less than max_position_embeddings=512",
        ),
        (
            "train masked recurrent-bert:base --tokenizer VOC --set direction=back",
            "--set direction=back: choose one of alternating, bidirectional",
        ),
        (
            "train masked recurrent-bert:base --tokenizer VOC --set hidden_size=big",
            "hidden_size is a whole number, not 'big'",
        ),
        (
            "train masked bert:base --tokenizer VOC --window 513",
            "--window 513: it is more than the model's max_position",
        ),
        (
            "train masked bert:base --tokenizer VOC --masked-share 1.5",
            "--masked-share 1.5: some tokens must stay visible",
        ),
        ("train masked PLACE/bert --tokenizer VOC", "has its own tokenizer: leave --tokenizer out"),
        ("train masked PLACE/bert --set hidden_size=64", "would change parameters"),
        ("train masked PLACE/bert --set hiden_size=64", "did you mean 'hidden_size'?"),
        ("train masked recurrent-bert:PLACE/recurrent-bert", "only a BERT can be given recurrence this way"),
        (
            "evaluate PLACE/bert",
            "is a masked language model, and this command is for models that predict the next token",
        ),
        ("generate PLACE/recurrent-bert --prompt x", "use it in transformers' fill-mask pipeline"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(place, line, message, monkeypatch, capsys):
    line = line.replace("PLACE", str(place)).replace("VOC", str(place / "vocabulary"))
    line += f" --corpus {place}/texts --out {place}/nothing" if line.startswith("train") else ""
    assert message in error_of(line, monkeypatch, capsys)
    assert not (place / "nothing" / "run.json").exists()
