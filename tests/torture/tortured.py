"""All that trains, as small as it can be: how to start it in a folder, and what must come out, to the bit."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import block_runs
import masked_runs
import window_runs
from small_models import byte_tokenizer
from tiny_tasks import save_encoder, save_sentiment

from onward.finetuning import FinetuningRecipe, sweep
from onward_studies import STUDIES
from onward_studies.engine.conducting import conduct

TIMES = ("seconds", "training_seconds", "circumstances", "machine", "command", "versions")


@dataclass(frozen=True)
class Tortured:
    """`do` works in a folder; `out` is what it has come to there."""

    do: Callable[[Path], Any]
    out: Callable[[Path], Any]


def _training(folder: Path) -> Any:
    record = json.loads((folder / "training.json").read_text())
    kept = {name: record[name] for name in ("history", "best_step", "tokens", "steps", "best_validation_loss", "files")}
    return kept, (folder / "model.safetensors").read_bytes(), (folder / "tokenizer.json").read_bytes()


def _sweep(folder: Path) -> Any:
    found = {}
    for file in sorted(folder.glob("runs/*/result.json")):
        result = json.loads(file.read_text())
        weights = (file.parent / "model" / "model.safetensors").read_bytes()
        found[file.parent.name] = {name: v for name, v in result.items() if name not in TIMES}, weights
    return found, (folder / "table.md").read_bytes()


def _study(folder: Path) -> Any:
    runs = folder / "smoke" / "runs"
    outcomes = {file.parent.name: json.loads(file.read_text()) for file in sorted(runs.glob("*/outcome.json"))}
    kept = {run: {n: v for n, v in outcome.items() if n not in TIMES} for run, outcome in outcomes.items()}
    model = runs / "backbone" / "model"
    files = [model / "model.safetensors", model / "backbone" / "model.safetensors"]
    return kept, [file.read_bytes() for file in (*files, *sorted(runs.glob("bpe*/model/tokenizer.json")))]


def _sweep_in(place: Path, folder: Path) -> None:
    sys.modules["onward.finetuning.run"].MINUTES_BETWEEN_CHECKPOINTS = 0
    recipe = FinetuningRecipe(epochs=2.5, batch_size=8, max_length=16, train_examples=24, group_by_length=True)
    options: dict[str, Any] = {"learning_rates": [1e-3, 1e-2], "seeds": 1, "recipe": recipe, "save_models": True}
    sweep(place / "bert", "sst2", folder, data=place / "sst2", progress=False, **options)


def _study_in(folder: Path) -> None:
    study = STUDIES["backbone"]
    conduct(study, study.setting("smoke", seeds=1, bf16=False), folder, progress=False)


def tortured(place: Path) -> dict[str, Tortured]:
    """`place` is for what they read."""
    save_encoder(place / "bert", hidden_size=16)
    save_sentiment(place / "sst2", held=24)
    words = window_runs.word_tokenizer()
    blocks = partial(block_runs.run, tokenizer=byte_tokenizer(), segments_at_once=2, **block_runs.LONG)
    return {
        "window": Tortured(partial(window_runs.run, tokenizer=words, changes=window_runs.LONG), _training),
        "block": Tortured(blocks, _training),
        "masked": Tortured(partial(masked_runs.run, save_every_tokens=100), _training),
        "sweep": Tortured(partial(_sweep_in, place), _sweep),
        "study": Tortured(_study_in, _study),
    }
