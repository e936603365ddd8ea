"""`hotpotqa`: how its models are trained, the smallest scale whole, and what made-up scores come to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from question_runs import do, made_up
from study_command import run

from onward.models.window_recurrent import WindowRecurrentForSequenceClassification
from onward_studies import STUDIES
from onward_studies.engine.conducting import conduct
from onward_studies.engine.folders import MODEL
from onward_studies.engine.intervals import FAILS, HOLDS, UNSEEN
from onward_studies.questions import hotpotqa
from onward_studies.questions import reader as question_reader
from onward_studies.questions.hotpotqa import TASK
from onward_studies.questions.runs import build, plan
from onward_studies.questions.scores import score
from onward_studies.questions.task import CONSTANT, DISJOINT, OURS, PAPERS, chosen_questions, variants

STUDY = STUDIES["hotpotqa"]
run_name = TASK.run_name


# --- training --------------------------------------------------------------------------------------


def smoke(**changes: Any) -> Any:
    return STUDY.setting("smoke", seeds=1, changes=changes)


def test_variants_of_a_seed_differ_in_the_carrier_only() -> None:
    sizes = smoke().sizes
    models = {name: build(sizes, TASK.kinds, name, 0)[0] for name in variants(sizes)}
    of_others = build(sizes, TASK.kinds, OURS, 1)[0].state_dict()
    base = models[DISJOINT].state_dict()
    assert not any("carrier" in name for name in base)
    for name, model in models.items():
        state = model.state_dict()
        assert all(torch.equal(state[key], base[key]) for key in base), name
    assert not torch.equal(of_others["spans.weight"], base["spans.weight"])
    configs = variants(STUDY.setting("paper").sizes)
    papers = configs[PAPERS]
    assert (papers.window, papers.residual, papers.hidden, papers.pooled_layers) == (512, False, ["width"] * 2, "last")
    assert papers._listed_layers == (2,) and configs[OURS].residual and configs[CONSTANT].stands_for == "pooled"


def test_a_killed_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = smoke(rates=(3e-3,), checkpoint_every=3, epochs=2)
    name = run_name(OURS, 0)
    steps = []
    real = question_reader.Learner.training_step

    def step(kill_at: int | None) -> Any:
        def training_step(self: Any, *given: Any, **more: Any) -> Any:
            if self.state.global_step == kill_at:
                raise KeyboardInterrupt
            steps.append(self.state.global_step)
            return real(self, *given, **more)

        return training_step

    monkeypatch.setattr(question_reader.Learner, "training_step", step(None))
    whole = do(STUDY, setting, name, tmp_path / "whole")
    assert steps == list(range(20))
    monkeypatch.setattr(question_reader.Learner, "training_step", step(14))
    with pytest.raises(KeyboardInterrupt):
        do(STUDY, setting, name, tmp_path / "killed")
    (tmp_path / "killed" / MODEL / "checkpoint-12" / "trainer_state.json").unlink()  # killed while it was written
    steps.clear()
    monkeypatch.setattr(question_reader.Learner, "training_step", step(None))
    again = do(STUDY, setting, name, tmp_path / "killed")
    assert steps == list(range(9, 20))
    assert again["validation_loss"] == whole["validation_loss"] and again["read"] == whole["read"]
    assert again["curve"] == whole["curve"] and [questions for questions, _ in whole["curve"]] == [60, 120]
    assert again["tokens"] == whole["tokens"] > 0 and whole["seed"] == 0
    models = [
        WindowRecurrentForSequenceClassification.from_pretrained(tmp_path / place / MODEL).state_dict()
        for place in ("whole", "killed")
    ]
    assert models[0] and all(torch.equal(models[0][key], models[1][key]) for key in models[0])
    # Between the last step and the outcome.
    steps.clear()
    assert do(STUDY, setting, name, tmp_path / "killed")["validation_loss"] == whole["validation_loss"] and not steps


def test_a_carrier_has_its_own_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {}
    real = question_reader.Learner._groups

    def groups(self: Any, model: Any) -> Any:
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        for group in (found := real(self, model)):
            rates.update({names[id(p)]: (group["lr"], group["weight_decay"]) for p in group["params"]})
        return found

    monkeypatch.setattr(question_reader.Learner, "_groups", groups)
    do(STUDY, smoke(rates=(1e-3,), carrier_rate=0.5), run_name(OURS, 0), tmp_path)
    assert set(rates) == {name for name, _ in build(smoke().sizes, TASK.kinds, OURS, 0)[0].named_parameters()}
    assert {rate[0] for name, rate in rates.items() if "carrier." in name} == {0.5}
    assert {rate[0] for name, rate in rates.items() if "carrier." not in name} == {1e-3}
    assert rates["spans.weight"][1] == 0.01 and rates["spans.bias"][1] == 0


def test_nan_is_an_outcome(tmp_path: Path) -> None:
    outcome = do(STUDY, smoke(rates=(1e30,)), run_name(DISJOINT, 0), tmp_path)
    assert outcome["validation_loss"] is None and "the loss is nan" in outcome["ended"] and "read" not in outcome
    assert "Too little" in hotpotqa.report(smoke(), {run_name(DISJOINT, 0): outcome}).summary


def squad_of(folder: Path, count: int) -> str:
    """Two questions for each context."""
    rows = [{"context": f"It is {n // 2} here.", "question": f"{n}?", "answer": f"{n // 2}"} for n in range(count)]
    (folder / "squad.json").write_text(json.dumps(rows))
    return str(folder / "squad.json")


def test_no_paragraph_is_in_two_splits(tmp_path: Path) -> None:
    place = {"train": squad_of(tmp_path, 80)}
    setting = STUDY.setting("smoke", corpora=place, changes={"held": 10, "questions": 40, "distractors": 3})
    read = hotpotqa.read(setting).train.questions
    train, held = chosen_questions(setting, read)
    assert (len(train), len(held)) == (40, 10) and all(len(q.paragraphs) == 4 for q in (*train, *held))
    split = [{paragraph for question in some for paragraph in question.paragraphs} for some in (train, held)]
    assert split[0].isdisjoint(split[1])
    assert chosen_questions(setting, read) == (train, held)


def test_too_few_questions(tmp_path: Path) -> None:
    setting = STUDY.setting("smoke", corpora={"train": squad_of(tmp_path, 12)})
    with pytest.raises(ValueError, match="has 12 questions: held=12 of them leave none to learn from; hold fewer"):
        conduct(STUDY, setting, tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists(), "found before anything is done"


# --- the study -------------------------------------------------------------------------------------


def test_smoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = run(f"study hotpotqa --scale smoke --seeds 1 --out {tmp_path}")
    for row in ("disjoint windows | 0.00", "constant | 0.00", "recurrent, the paper's | ", "recurrent, swapped |  | "):
        assert f"| {row}" in said
    assert "So small a scale says nothing" in said
    place = tmp_path / "smoke"
    assert (place / "hotpotqa" / "f1_and_exact_match.svg").is_file()
    saved = json.loads((place / "hotpotqa" / "results.json").read_text())
    outcomes = saved["outcomes"]
    assert saved["runs"] == "8 of 8 have ended"
    for kind, name in (("disjoint-windows", DISJOINT), ("recurrent", OURS)):
        trials = {o["learning_rate"]: o["validation_loss"] for n, o in outcomes.items() if f"rate-{kind}-" in n}
        assert len(trials) == 2 and outcomes[run_name(name, 0)]["learning_rate"] == min(trials, key=trials.__getitem__)
    assert outcomes[run_name(CONSTANT, 0)]["learning_rate"] == outcomes[run_name(OURS, 0)]["learning_rate"]
    assert set(outcomes[run_name(PAPERS, 0)]["read"]) == {"true", "swapped"}
    assert set(outcomes[run_name(CONSTANT, 0)]["read"]) == {"true"}
    # The answers are in the form that the official script scores, and come to what the outcome says.
    folder = place / "runs" / run_name(OURS, 0)
    answers = json.loads((folder / "answers.json").read_text())["answer"]
    questions = [question for question in hotpotqa.read(smoke()).test.questions if question.id in answers]
    assert len(questions) == len(answers) == 18
    exact = [score(answers[question.id], question.answer)[1] for question in questions]
    assert outcomes[folder.name]["read"]["true"]["exact_match"] == pytest.approx(100 * sum(exact) / 18)
    assert (folder / MODEL / "spans.safetensors").is_file() and not list(folder.glob("model/checkpoint-*"))
    monkeypatch.setattr("onward_studies.engine.conducting._do", None)
    again = run(f"study hotpotqa --scale smoke --seeds 1 --out {tmp_path}")
    assert again.startswith("# Question answering") and said.endswith(again), "nothing is left to do"


def scores_of(f1: float) -> dict[str, Any]:
    """Exact match is 5 below F1."""
    by_kind = {"span": {"f1": f1 + 2, "questions": 3}, "no": {"f1": 7.0, "questions": 1}}
    return {"f1": f1, "exact_match": f1 - 5, "by_kind": by_kind, "span_loss": 9 - f1 / 10}


def test_what_scores_come_to() -> None:
    setting = STUDY.setting("laptop", seeds=2)
    scores = {f"{PAPERS} true": 42.0, f"{OURS} true": 39.0, f"{OURS} swapped": 38.5, f"{CONSTANT} true": 39.0}
    outcomes = made_up(TASK, setting, scores, scores_of)
    found = hotpotqa.report(setting, outcomes)
    table = found.markdown()
    assert "| disjoint windows | 0.0001 | 4.950 ± 0.635 | 40.50 ± 6.35 | 35.50 ± 6.35 |  | 48.17 | 43.55 |" in table
    assert "| recurrent, the paper's | 0.0001 | 4.750 ± 0.635 | 42.50 ± 6.35 | 37.50 ± 6.35 | 2.00 ± 0.00 |" in table
    assert "| recurrent, swapped |  | 5.100 ± 0.635 | 39.00 ± 6.35 | 34.00 ± 6.35 | -1.50 ± 0.00 |  |  |" in table
    assert "| recurrent | 41.50 ± 6.35 |  | 7.00 ± 0.00 |" in table
    judged = [(claim.verdict, claim.we_saw) for claim in found.claims]
    assert judged == [
        (HOLDS, "2.00 ± 0.00 points better"),
        (HOLDS, "2.00 ± 0.00 points better"),
        (FAILS, "-1.00 ± 0.00 points better"),
        (UNSEEN, "0.00 ± 0.00 points better"),
        (HOLDS, "0.50 ± 0.00 points better"),
        (FAILS, "-0.1000 ± 0.0000 nats better"),
        (HOLDS, "0.0500 ± 0.0000 nats better"),
    ]
    assert any("with 2 paragraphs of other questions" in note for note in found.notes)
    one = hotpotqa.report(STUDY.setting("laptop", seeds=1), outcomes)
    assert {claim.verdict for claim in one.claims} == {UNSEEN}
    half = {name: outcome for name, outcome in outcomes.items() if "disjoint" in name}
    assert "Too little" in hotpotqa.report(setting, half).summary
    assert "| disjoint windows |" in hotpotqa.report(setting, half).markdown()


def test_the_papers_scale() -> None:
    setting = STUDY.setting("paper", seeds=1)
    plans = {run.name: run.plan() for run in STUDY.runs(setting) if run.plan is not None}
    assert list(plans) == [run_name(name, 0) for name in variants(setting.sizes)], "one rate needs no trials"
    # RoBERTa-base without its pooler, the head of three labels, and the span head.
    plain = plans[run_name(DISJOINT, 0)]
    assert plain.parameters == 124_055_040 + (768 * 768 + 768) + (3 * 768 + 3) + (2 * 768 + 2)
    # Two hidden layers and an output, all as wide as the encoder.
    assert plans[run_name(PAPERS, 0)].parameters - plain.parameters == 3 * (768 * 768 + 768)
    assert plain.tokens == 4 * 30_000 * (10 * 125 + 25)
    of_layers = 12 * 2 * (4 * 768**2 + 2 * 768 * 3072 + 2 * 512 * 768)
    assert plain.flops_per_token == pytest.approx(of_layers * 512 / (512 - 25), rel=1e-2)
    assert plan(TASK, STUDY.setting("paper", corpora={"train": "x.json"}), OURS).tokens is None
