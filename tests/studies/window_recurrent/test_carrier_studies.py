"""`carriers` and `pretrained`: the smallest scale, and what made-up losses come to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from study_command import run

from onward_studies import STUDIES
from onward_studies.engine.intervals import FAILS, HOLDS, UNSEEN
from onward_studies.window_recurrent import carriers
from onward_studies.window_recurrent.runs import run_name


def test_carriers(place: Path) -> None:
    said = run(f"study carriers --scale smoke --seeds 1 --out {place}")
    sizes = STUDIES["carriers"].sizes["smoke"]
    for name in (*sizes.carriers, "plain windows", "longest context", "constant for fading history"):
        assert f"| {name} | " in said
    saved = json.loads((place / "smoke" / "carriers" / "results.json").read_text())["outcomes"]
    ours = saved["books-history-window24-seed0"]["read"]["test"]
    row = next(line for line in said.splitlines() if line.startswith("| history | 7 |"))
    assert f"| {ours['swapped']['loss'] - ours['true']['loss']:.4f} |" in row
    assert "overlap 32" in saved["books-full-window64-seed0"]["read"]["test"]
    assert any(name.startswith("books-rate-full-") for name in saved), "the longest context has a rate of its own"


def test_carriers_of_a_model_that_stays_as_it_is(place: Path) -> None:
    said = run(f"study pretrained --scale smoke --seeds 2 --out {place}")
    assert "| spans | 4 |" in said and "| constant for spans | 4 |" in said and "| history |" not in said
    saved = json.loads((place / "smoke" / "pretrained" / "results.json").read_text())["outcomes"]
    assert not any("rate-plain" in name or "rate-full" in name for name in saved), "what is not trained has no rate"
    tried = {name.split("-rate-")[1].rsplit("-", 1)[0] for name in saved if "-rate-" in name}
    constants = {"constant", "constant-fading-history"}
    assert tried == {"pooled-paper", "pooled", "recurrent", "fading-history"} | constants, "all others have their own"
    names = [f"pretrained-books-plain-window24-seed{seed}" for seed in (0, 1)]
    first, second = (saved[name] for name in names)
    assert first["tokens"] == 0 and (first["name"], second["name"]) == tuple(names) and second["seed"] == 1
    assert second["read"] == first["read"] and second["settings"]["seed"] == 1
    models = place / "smoke" / "runs"
    backbone = load_file(models / "backbone" / "model" / "backbone" / "model.safetensors")
    trained = load_file(models / "pretrained-books-pooled-window24-seed1" / "model" / "model.safetensors")
    kept = {name.removeprefix("backbone."): tensor for name, tensor in trained.items() if name.startswith("backbone.")}
    assert set(backbone) <= set(kept) and all(torch.equal(kept[name], backbone[name]) for name in backbone)


def losses_of_carriers(
    losses: dict[str, float], seeds: tuple[int, ...] = (0, 1), on_validation: Mapping[str, float] = MappingProxyType({})
) -> dict[str, Any]:
    """By what tables call them; swapped memories are 0.125 worse, and validation losses as `on_validation` says. Seeds
    differ by 0.1 in all."""
    outcomes: dict[str, Any] = {}
    sizes = STUDIES["carriers"].sizes["smoke"]
    for name, variant in carriers.variants(sizes).items():
        for seed in seeds:
            loss = losses.get(name, 3.0) + 0.1 * seed
            read = {"true": loss, "swapped": loss + 0.125}
            read |= {"overlap 32": loss, "overlap 8": loss - 0.5, "overlap 4": loss}
            curves = {"by_position": [loss], "by_window": [loss]}
            found, held = (
                {name: {"loss": number + more, "word_perplexity": number, **curves} for name, number in read.items()}
                for more in (0, on_validation.get(name, 0))
            )
            outcomes[run_name(sizes, "books", variant, seed)] = {
                "read": {"test": found, "validation": held},
                "counted_flops": {
                    str(o): (1.25e6 if name in sizes.carriers else 1e6) * variant.window / (variant.window - o)
                    for o in (0, *variant.others)
                },
                "parameters_added": 7,
            }
    return outcomes


def test_what_carriers_come_to() -> None:
    setting = STUDIES["carriers"].setting("smoke", seeds=2)
    losses = {"longest context": 2.0, "fading history": 2.25, "spans": 2.5, "constant for fading history": 2.75}
    outcomes = losses_of_carriers(losses)
    found = STUDIES["carriers"].report(setting, outcomes)
    rows = {line.split(" | ")[0].strip("| "): line for line in found.markdown().splitlines() if line.startswith("| ")}
    assert rows["fading history"].endswith("| 0.7500 ± 0.0000 | 75.0 ± 0.0 | 0.1250 ± 0.0000 |")
    assert "| 2e+06 |" in rows["longest context"], "half of its window is read again"
    claims = {claim.claim: (claim.we_saw, claim.verdict) for claim in found.claims}
    assert claims["A carrier wins back half of what the longest context gains"] == (
        "fading history recovers 75.0 ± 0.0 %",
        HOLDS,
    )
    assert claims["Fading history is better than a constant in its place"][1] == HOLDS
    assert claims["It carries twice the content of the paper's module"][1] == FAILS
    assert "| 1.5e+06 |" in rows["plain windows, 8 read again"], "a third of its window is read again"
    assert rows["plain windows, 8 read again"].endswith("| 0.5000 ± 0.0000 | 50.0 ± 0.0 |  |")
    assert claims["It is better than plain windows that overlap, at no more FLOPs"] == (
        "0.2500 ± 0.0000 nats per token better than plain windows, 8 read again, at 1.20 of its FLOPs",
        HOLDS,
    )
    less = STUDIES["carriers"].report(setting, losses_of_carriers({"longest context": 2.0, "spans": 2.75}))
    assert less.claims[0].verdict == FAILS
    chosen = STUDIES["carriers"].report(setting, losses_of_carriers(losses, on_validation={"fading history": 1.0}))
    assert chosen.claims[0].we_saw == "spans recovers 50.0 ± 0.0 %", "the best on validation, not on test"


@pytest.mark.parametrize("longest", [3.0, 3.5])
def test_no_share_of_nothing(longest: float) -> None:
    """A carrier that is worse than plain windows recovers nothing of a context that is worse, too."""
    losses = {"longest context": longest} | dict.fromkeys(STUDIES["carriers"].sizes["smoke"].carriers, 3.25)
    found = STUDIES["carriers"].report(STUDIES["carriers"].setting("smoke", seeds=2), losses_of_carriers(losses))
    assert found.claims[0].verdict == UNSEEN and "gains nothing for sure" in found.claims[0].we_saw
