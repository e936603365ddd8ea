"""`onward evaluate`"""

from __future__ import annotations

import json
import shutil

import pytest
from command_line import run


def test_evaluate_reports_every_control(place):
    run(f"evaluate {place}/run --corpus {place}/texts --split train --overlap 0 6 --max-tokens 100 --out {place}/eval")
    rows = json.loads((place / "eval" / "results.json").read_text())["rows"]
    seen = {(row["variant"], row["overlap"]) for row in rows if row["measures"]}
    wanted = {(v, o) for v in ("plain", "kept tokens", "constant", "recurrent", "swapped") for o in (0, 6)}
    assert wanted <= seen
    assert not any("own backbone" in note for row in rows for note in row["notes"]), "controls trained beside it"


def test_without_controls_tokens_are_kept_by_the_models_own_backbone(place):
    alone = shutil.copytree(place / "run", place / "alone", ignore=lambda *_: ["constant", "plain", "kept"])
    run(f"evaluate {alone} --corpus {place}/texts --split train --max-tokens 100 --out {place}/alone-eval")
    rows = json.loads((place / "alone-eval" / "results.json").read_text())["rows"]
    kept = next(row for row in rows if row["variant"] == "kept tokens")
    assert kept["measures"] and "--with-controls" in kept["notes"][0]


@pytest.mark.parametrize(("options", "variants"), [("", {"recurrent", "kept tokens"}), ("--carrier none", set())])
def test_a_plain_backbone_has_a_memory_without_training(place, options, variants):
    said = f"--window 24 {options} --corpus {place}/texts --max-tokens 60 --out {place}/plain{options[-4:]}"
    run(f"evaluate {place}/backbone {said}")
    rows = json.loads((place / f"plain{options[-4:]}" / "results.json").read_text())["rows"]
    assert variants <= {row["variant"] for row in rows if row["measures"]}


def test_memories_of_other_sizes(place):
    bytes_of = {}
    for slots in (3, 9):
        run(
            f"evaluate {place}/backbone --window 24 --carrier recent --slots {slots} --corpus {place}/texts "
            f"--max-tokens 60 --out {place}/slots{slots}"
        )
        rows = json.loads((place / f"slots{slots}" / "results.json").read_text())["rows"]
        bytes_of[slots] = next(row["state_bytes"] for row in rows if row["variant"] == "recurrent")
    assert bytes_of[9] == 3 * bytes_of[3] > 0


def test_evaluate_blocks(place, blocks):
    run(f"evaluate {blocks} --corpus {place}/texts --split train --max-tokens 100 --out {place}/block-eval")
    results = json.loads((place / "block-eval" / "results.json").read_text())
    assert [row["variant"] for row in results["rows"]] == ["recurrent", "swapped", "ablated"]
    assert all(row["measures"]["bits_per_token"] > 0 for row in results["rows"])
    assert (place / "block-eval" / "loss_by_distance.svg").is_file() and results["max_tokens"] is None
