"""Small models and texts for every verb; models are trained once, by the verbs themselves."""

from __future__ import annotations

import json

import pytest
from command_line import TINY_BLOCKS, WORDS, run
from small_models import save_small_bert, save_small_gpt2


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
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
    options = f"--corpus {texts} --out {folder}/run {arguments} --max-tokens 1000 --with-controls"
    run(f"train window {folder}/backbone {options}")
    return folder


@pytest.fixture(scope="session")
def blocks(place):
    """A folder with a small block-recurrent model, trained for a few steps."""
    run(f"train block Rec:fixed:skip --corpus {place}/texts {TINY_BLOCKS} --out {place}/blocks")
    return place / "blocks"
