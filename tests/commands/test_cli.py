"""The command line as a whole: what it accepts, and errors that are one sentence."""

from __future__ import annotations

import pytest
from command_line import error_of

from onward import cli


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


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train block Rec:fixd:skip --tokenizer bytes", "no preset 'Rec:fixd:skip': did you mean 'Rec:fixed:skip'"),
        ("train rec:FIXED:skip", "did you mean 'Rec:fixed:skip'"),
        ("train block Rec:fixed:skip", "Rec:fixed:skip needs a tokenizer: --tokenizer bytes"),
        (
            "train window PLACE/backbone --history few",
            "--history few: give a number of windows, or spans of each as 63,",
        ),
        ("train window PLACE/backbone --history all", "--history all: give a number of windows"),
        ("train window PLACE/backbone --insert-at 2,x", "--insert-at 2,x: give a layer, several as 2,5,9, or all"),
        ("train block Slide:12L --corpus PLACE/blank --tokenizer bytes", "is empty: remove it, or put text into it"),
        ("train block Slide:12L --corpus PLACE/nothing-there --tokenizer bytes", "no file or folder"),
        ("evaluate Rec:fixed:skip", "Rec:fixed:skip is a preset, not a trained model"),
        ("evaluate PLACE/blocks --batch-size 0", "--batch-size 0: process at least 1 document at a time"),
        ("evaluate PLACE/blocks --overlap 3", "--overlap is for window-recurrent models"),
        ("generate PLACE/blocks --prompt hello --window 8", "windows of its own, of 16 tokens: leave --window out"),
        ("embed PLACE/blocks PLACE/texts/0.txt", "is block-recurrent"),
        ("inspect PLACE/blocks --max-tokens 9", "--max-tokens 9: it limits a text; give one with --text"),
        ("inspect PLACE/blocks --text PLACE/texts/0.txt --max-tokens 9", "9 tokens have no second block"),
        ("vocabulary --corpus PLACE/texts --size 100 --out PLACE/small", "--size 100: bytes, or letters"),
        ("evaluate PLACE/blocks --corpus PLACE/texts --out PLACE/latin.txt", "is a file, and results go into"),
        ("train block Slide:12L --tokenizer bytes --out PLACE/latin.txt/run", "latin.txt is a file, not a folder"),
        ("vocabulary --out PLACE/latin.txt", "latin.txt is a file, and results go into a folder"),
        ("demo --out PLACE/latin.txt", "latin.txt is a file, and results go into a folder"),
        ("embed PLACE/run PLACE/texts/0.txt --out PLACE/texts", "texts is a folder, and vectors go into a file"),
        ("evaluate PLACE/blocks --corpus PLACE/code", "--pattern: folder "),
        ("evaluate PLACE/blocks --corpus PLACE/notes.jsonl", "name the field that holds the text"),
        (
            "evaluate PLACE/blocks --corpus PLACE/notes.jsonl --pattern *.py",
            "--pattern '*.py': it chooses files of a folder",
        ),
        (
            "evaluate PLACE/blocks --pattern *.py",
            "--pattern '*.py': the corpus 'shakespeare' has no such option; leave it out",
        ),
        ("vocabulary --corpus pg19 --out PLACE/small", "or .jsonl, pg19:FOLDER or wikitext-103:FOLDER"),
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
