"""`mlm` and `stability`: the smallest scale from beginning to end, and what made-up scores come to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from study_command import run
from transformers import AutoModelForMaskedLM

from onward_studies import STUDIES
from onward_studies.engine.intervals import HOLDS, UNSEEN
from onward_studies.engine.work import Work
from onward_studies.masked.reports import report_mlm, report_stability
from onward_studies.masked.runs import MODELS, order_run, slug


def test_smoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = run(f"study mlm --scale smoke --seeds 1 --out {tmp_path}")
    assert "So small a scale says nothing" in said and f"{tmp_path}/smoke/mlm" in said
    for name in MODELS:
        assert f"| {name} | " in said
        assert AutoModelForMaskedLM.from_pretrained(tmp_path / "smoke" / "runs" / f"mlm-{slug(name)}-seed0" / "model")
    saved = json.loads((tmp_path / "smoke" / "mlm" / "results.json").read_text())
    rates = {o["settings"]["rate"]: o["validation_loss"] for n, o in saved["outcomes"].items() if "rate-bert" in n}
    assert saved["outcomes"]["mlm-bert-seed0"]["learning_rate"] == min(rates, key=rates.__getitem__)
    for name in MODELS:
        read, trained = (saved["outcomes"][f"{kind}-{slug(name)}-seed0"] for kind in ("word-order", "mlm"))
        assert read["in_order"] == pytest.approx(trained["validation_loss"], rel=1e-5)
        assert read["shuffled"] != read["in_order"]
    # The other study has the same runs, and nothing is left to do.
    monkeypatch.setattr("onward_studies.engine.conducting._do", None)
    said = run(f"study stability --scale smoke --seeds 1 --out {tmp_path}")
    assert "| BERT | sst2 | 2 |" in said and (tmp_path / "smoke" / "stability" / "scores.svg").is_file()
    assert run(f"study stability --scale smoke --seeds 1 --report --out {tmp_path}") == said


def made_up(gain: float, lost: dict[str, float]) -> dict[str, Any]:
    """Two seeds; recurrent models are better by `gain` nats and points, and lose so much with the other rate."""
    outcomes: dict[str, Any] = {}
    for name in MODELS:
        recurrent = name != "BERT"
        for seed in (0, 1):
            loss = 3.0 + 0.1 * seed - gain * recurrent
            outcomes[f"mlm-{slug(name)}-seed{seed}"] = {
                "validation_loss": loss,
                "parameters": 10,
                "learning_rate": 1e-3,
                "training_seconds": 3600,
                "curve": [(1000, loss + 1), (2000, loss)],
            }
            outcomes[order_run(name, seed)] = {"in_order": loss, "shuffled": loss + gain * recurrent}
            for task in ("sst2", "rte"):
                score = 0.7 + 0.01 * seed + gain * recurrent / 100
                facts: dict[str, Any] = {"task": task, "metrics": {}, "trivial": 0.5, "margin": 0.02, "ended": None}
                facts |= {"seed": seed} | dict.fromkeys(("examples", "steps", "tokens", "seconds"), 1)
                results = [
                    {**facts, "learning_rate": 1e-3, "score": score},
                    {**facts, "learning_rate": 1e-2, "score": score - lost.get(name, 0.1) + 0.0012 * seed},
                ]
                outcomes[f"{task}-{slug(name)}-seed{seed}"] = {"results": results}
    return outcomes


def test_what_scores_come_to() -> None:
    outcomes = made_up(gain=0.5, lost={"BERT": 0.22, "recurrent, stride 1": 0.08})
    setting = STUDIES["mlm"].setting("smoke", seeds=2)
    found = report_mlm(setting, outcomes)
    table = found.markdown()
    assert "| BERT | 10 | 0.001 | 2 | 1.00 | 3.050 ± 0.635 |  | 70.5 ± 6.4 |  |  |" in table
    assert "| recurrent, stride 1 | 10 | 0.001 | 2 | 1.00 | 2.550 ± 0.635 | -0.500 ± 0.000 |" in table
    assert "| BERT | 3.050 ± 0.635 | 3.050 ± 0.635 | 0.000 ± 0.000 |" in table, "it reads no order"
    assert "| recurrent, stride 2 | 2.550 ± 0.635 | 3.050 ± 0.635 | 0.500 ± 0.000 |" in table
    assert [claim.verdict for claim in found.claims] == [HOLDS, HOLDS]
    assert found.claims[1].we_saw == "0.5 ± 0.0 points"
    stability = report_stability(setting, outcomes)
    # With one of two rates BERT has failed; scores differ by half of what that rate loses, and by the gain.
    assert "| BERT | 50.0 ± 0.0 |  | 59.5 ± 6.7 |  |" in stability.markdown()
    assert "| recurrent, stride 1 | 0.0 ± 0.0 | -50.0 ± 0.0 | 67.0 ± 6.7 | 7.5 ± 0.0 |" in stability.markdown()
    assert [claim.verdict for claim in stability.claims] == [HOLDS, HOLDS]


def test_higher_scores_are_not_less_stable() -> None:
    """What is better with one rate than the other, and never fails, has failed no more often."""
    setting = STUDIES["stability"].setting("smoke", seeds=2)
    found = report_stability(setting, made_up(gain=20, lost={"BERT": 0.05, "recurrent, stride 1": 0.2}))
    assert [claim.verdict for claim in found.claims] == [UNSEEN, HOLDS]
    assert found.claims[0].we_saw == "0.0 ± 0.0 % of all runs fewer"


def test_half_a_study_says_what_it_can() -> None:
    setting = STUDIES["mlm"].setting("smoke", seeds=2)
    outcomes = made_up(0.5, {})
    of_bert = {name: outcome for name, outcome in outcomes.items() if name.startswith("mlm-bert")}
    found = report_mlm(setting, of_bert)
    assert "Too little" in found.summary and "| BERT | 10 |" in found.markdown() and not found.claims
    assert "Nothing to compare" in report_stability(setting, of_bert).summary
    nan = {"validation_loss": None, "parameters": 10, "learning_rate": 1}
    table = report_mlm(setting, outcomes | {"mlm-recurrent-stride1-seed1": nan}).markdown()
    assert "| recurrent, stride 1 | 10 | 0.001 | 1 | 1.00 | 2.500 | -0.500 |" in table, "of the seed that has a loss"


def test_what_a_model_that_diverged_leaves_to_others(tmp_path: Path) -> None:
    study = STUDIES["mlm"]
    setting = study.setting("smoke", seeds=1)
    runs = {run.name: run for run in study.runs(setting)}
    work = Work(tmp_path, setting, list(runs.values()))
    folder = work.folder_of("mlm-bert-seed0")
    folder.mkdir(parents=True)
    (folder / "outcome.json").write_text(json.dumps({"validation_loss": None, "settings": {}}))
    outcome = runs["rte-bert-seed0"].do(work)
    assert outcome["results"] == [] and outcome["said"] == "not done: mlm-bert-seed0 ended with NaN"
    assert "| BERT | " not in report_stability(setting, {"rte-bert-seed0": outcome}).markdown()


def test_tasks_are_looked_at_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="data='nowhere': there is no file or folder"):
        run(f"study mlm --scale smoke --corpus glue=nowhere --out {tmp_path}")
    assert not (tmp_path / "smoke" / "runs").exists()
