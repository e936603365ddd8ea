"""`onward vocabulary`"""

from __future__ import annotations

from command_line import error_of, run


def test_a_vocabulary_is_not_overwritten(place, monkeypatch, capsys):
    command = f"vocabulary --corpus {place}/texts --size 270 --out {place}/once"
    run(command)
    before = (place / "once" / "tokenizer.json").read_bytes()
    message = error_of(command.replace("270", "260"), monkeypatch, capsys)
    assert f"--out {place}/once holds a vocabulary already: choose another folder" in message
    assert (place / "once" / "tokenizer.json").read_bytes() == before
