"""Models, texts and places that verbs find by their names."""

from __future__ import annotations

import os

import pytest
from command_line import error_of

from onward.commands import shared
from onward.utils.fields import FieldError


def test_a_window_of_its_own_is_not_overruled(place):
    with pytest.raises(ValueError, match="windows of its own, of 24"):
        shared.load_model(str(place / "run"), window=32)


def test_a_memory_of_its_own_is_not_overruled(place, blocks):
    with pytest.raises(FieldError, match="carrier='matched': .* has a memory of its own, spans"):
        shared.load_model(str(place / "run"), carrier="matched")
    with pytest.raises(FieldError, match="slots=4: carrier='spans' has as many vectors as it was made with"):
        shared.load_model(str(place / "run"), slots=4)
    with pytest.raises(ValueError, match="is block-recurrent, .* leave --carrier and --slots out"):
        shared.load_model(str(blocks), slots=4)


def test_an_empty_name_is_no_carrier(place):
    with pytest.raises(FieldError, match="carrier='': choose one of"):
        shared.load_model(str(place / "backbone"), window=24, carrier="")


def test_a_saved_memory_can_have_another_size(place, tmp_path):
    made, tokenizer = shared.load_model(str(place / "backbone"), window=24, slots=5)
    made.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded, _ = shared.load_model(str(tmp_path), slots=3)
    assert (made.config.carrier, made.config.slots, loaded.config.slots) == ("matched", 5, 3)


def test_an_encoder_is_sent_to_embed():
    with pytest.raises(ValueError, match="onward embed"):
        shared.load_model("minilm-l6")


def test_names_are_shown_as_they_are():
    shown = shared.console.render_str("Rec:fixed:skip is in [red]/a:smile:b")
    assert shown.plain == "Rec:fixed:skip is in [red]/a:smile:b" and not shown.spans


def test_a_place_that_cannot_be_written_is_found_at_once(place, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    message = error_of(f"evaluate no-such-model --out {place}/new/results", monkeypatch, capsys)
    assert message.startswith(f"--out {place}/new/results: {place} is not writable")
    monkeypatch.undo()

    def refuse(**given):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr("onward.commands.shared.TemporaryDirectory", refuse)  # as places like /sys do
    message = error_of(f"study scale --scale smoke --out {place}/new", monkeypatch, capsys)
    assert message.startswith(f"--out {place}/new: {place} is not writable")
