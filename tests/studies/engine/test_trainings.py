"""Vocabularies, precision and measures, which systems have in common."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from study_command import run

from onward import BlockRecurrentForCausalLM
from onward.data.tokens import TokenizedDocument
from onward_studies import STUDIES
from onward_studies.block_recurrent.rows import BlockRow
from onward_studies.engine import trainings
from onward_studies.engine.conducting import conduct
from onward_studies.engine.trainings import measured


@pytest.mark.parametrize(("instruction", "has"), [("avx512_bf16", True), ("amx_bf16", True), ("avx512_f", False)])
def test_bfloat16_needs_instructions_for_it(instruction: str, has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"avx2": True, "avx512_bf16": False, instruction: True})
    assert trainings.has_bf16() == has
    monkeypatch.delattr("torch.cpu.get_capabilities")  # as in older torch
    assert not trainings.has_bf16()
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)  # such as Apple's
    assert not trainings.has_bf16()


@pytest.mark.parametrize(
    ("chosen", "hardware", "used"),
    [("", True, True), ("--precision float32", True, False), ("--precision bfloat16", False, True)],
)
def test_trainings_are_in_bfloat16_where_there_is_hardware_for_it_or_as_is_chosen(
    chosen: str, hardware: bool, used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward_studies.engine.trainings.has_bf16", lambda: hardware)
    run(f"study backbone --scale smoke --out {tmp_path} {chosen}")
    folder = tmp_path / "smoke" / "runs" / "backbone"
    assert json.loads((folder / "model" / "run.json").read_text())["recipe.bf16"] == used
    outcome = json.loads((folder / "outcome.json").read_text())
    assert outcome["bf16"] == used and math.isfinite(outcome["validation_loss"])


def test_one_document_has_nothing_to_swap_with() -> None:
    sizes = STUDIES["scale"].sizes["smoke"]
    model = BlockRecurrentForCausalLM(BlockRow("Rec:fixed:skip").config(sizes, vocab_size=9)).eval()
    documents = [TokenizedDocument(str(n), torch.arange(36) % 9, words=4, bytes=36) for n in range(2)]
    memories = ["true", "swapped", "ablated"]
    assert list(measured(model, documents, memories)) == memories
    assert list(measured(model, documents[:1], memories)) == ["true", "ablated"]


def test_a_vocabulary_is_of_texts_however_they_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, found = STUDIES["scale"], []
    real = trainings.train_vocabulary

    def spy(texts: Any, *given: Any) -> Any:
        found.append([document.text for document in texts])
        return real(texts, *given)

    monkeypatch.setattr(trainings, "train_vocabulary", spy)
    for piece in (100, 600):
        setting = study.setting("smoke", seeds=1, changes={"piece": piece})
        runs = [run for run in study.runs(setting) if run.name == "bpe-300-books"]
        conduct(replace(study, runs=lambda setting, runs=runs: runs), setting, tmp_path / str(piece))
    assert found[0] == found[1]
