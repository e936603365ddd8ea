"""`hotpotqa`: the model beside plain references, the smallest scale whole, and what made-up scores come to."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import WIDTH, recurrent, tokens
from test_masked_study import run
from torch import Tensor, nn
from torch.testing import assert_close

from onward.models.window_recurrent import WindowRecurrentForSequenceClassification
from onward.questions import EncodedQuestion, Question
from onward.studies import STUDIES, Work, conduct, hotpotqa, question_reader
from onward.studies.hotpotqa import CONSTANT, DISJOINT, OURS, PAPERS, build, run_name
from onward.studies.intervals import FAILS, HOLDS, UNSEEN
from onward.studies.question_reader import (
    NO_TOKEN,
    InOrder,
    QuestionReader,
    answer,
    best_span,
    collate,
    read_swapped,
    score,
    span_head,
)
from onward.studies.study import MODEL

WINDOW = 7
STUDY = STUDIES["hotpotqa"]


# --- the model -------------------------------------------------------------------------------------


def reader(variant: str, family: str = "bert") -> QuestionReader:
    model = recurrent(family, variant, "sequence-classification", window=WINDOW, num_labels=3)
    torch.manual_seed(5)
    return QuestionReader(model, nn.Linear(WIDTH, 2).double())


def encoded(prefix: int, length: int, span: tuple[int, int] | None, right: str = "x", seed: int = 0) -> EncodedQuestion:
    ids = tokens(length, seed=seed).numpy().astype(np.int32)
    places = np.stack([np.arange(length - prefix), np.arange(length - prefix) + 1], 1)
    types = np.repeat(np.array([0, 1], np.int32), [prefix, length - prefix])
    question = Question(str(seed), "q", ("abcdefghijklmnopqrstuvwxyz"[: length - prefix],), right)
    return EncodedQuestion(question, prefix, ids, types, places, span)


def some_questions() -> list[EncodedQuestion]:
    return [encoded(3, 18, (5, 8), seed=1), encoded(2, 9, None, "yes", seed=2), encoded(4, 13, (12, 12), seed=3)]


def batch_of(questions: list[EncodedQuestion]) -> dict[str, Tensor]:
    return collate(questions, 0)


def test_disjoint_windows_are_each_read_alone() -> None:
    model = reader("none")
    backbone = model.reader.backbone
    batch = batch_of(some_questions())
    seen = model(**batch)
    wanted_kinds, wanted_loss, spans = [], 0.0, 0
    for row, question in enumerate(some_questions()):
        ids = torch.tensor(question.input_ids).long()
        types = torch.tensor(question.token_type_ids).long()
        prefix, room = question.prefix, WINDOW - question.prefix
        hidden, firsts = [], []
        for begin in range(prefix, len(ids), room):
            window = torch.cat([ids[:prefix], ids[begin : begin + room]])[None]
            of_window = torch.cat([types[:prefix], types[begin : begin + room]])[None]
            out = backbone.bert(window, token_type_ids=of_window).last_hidden_state[0]
            hidden.append(out[prefix:])
            firsts.append(out[0])
        logits = model.spans(torch.cat(hidden))  # of the context only
        for place, mine in enumerate((seen.starts, seen.ends)):
            assert_close(mine[row, prefix : len(ids)], logits[:, place])
            assert (mine[row, :prefix] == -torch.inf).all() and (mine[row, len(ids) :] == -torch.inf).all()
        pooled = torch.stack(firsts).amax(0)
        wanted_kinds.append(backbone.classifier(backbone.bert.pooler(pooled[None, None]))[0])
        if question.answer is not None:
            start, end = (token - prefix for token in question.answer)
            chances = logits.softmax(0)
            wanted_loss = wanted_loss - (chances[start, 0].log() + chances[end, 1].log()) / 2
            spans += 1
    kinds = torch.stack(wanted_kinds)
    assert_close(seen.kinds, kinds)
    of_kinds = -sum(kinds[row].log_softmax(0)[kind] for row, kind in enumerate((0, 1, 0))) / 3
    wanted = of_kinds + wanted_loss / spans
    assert_close(seen.loss, wanted)
    parameters = [p for p in model.parameters() if p.requires_grad]
    for ours, theirs in zip(
        torch.autograd.grad(seen.loss, parameters, allow_unused=True),
        torch.autograd.grad(wanted, parameters, allow_unused=True),
        strict=True,
    ):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert_close(ours, theirs)


def test_a_batch_without_spans_has_a_loss() -> None:
    model = reader("pooled")
    batch = batch_of([encoded(2, 9, None, "yes", seed=1), encoded(2, 12, None, "no", seed=2)])
    found = model(**batch)
    assert (batch["start"] == NO_TOKEN).all()
    assert_close(found.loss, nn.functional.cross_entropy(found.kinds, torch.tensor([1, 2])))
    found.loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("variant", ["paper", "pooled", "constant", "none"])
def test_rows_do_not_see_each_other(variant: str, family: str) -> None:
    model = reader(variant, family)
    questions = [q if family == "bert" else replace(q, token_type_ids=None) for q in some_questions()]
    together = model(**batch_of(questions))
    for row, question in enumerate(questions):
        alone = model(**batch_of([question]))
        assert_close(together.kinds[row], alone.kinds[0])
        assert_close(together.starts[row, : len(question)], alone.starts[0])


@torch.no_grad()
@pytest.mark.parametrize("variant", ["paper", "pooled"])
def test_swapped_memories(variant: str) -> None:
    model, questions, others = reader(variant), some_questions(), [1, 2, 0]
    batch = batch_of(questions)
    whole, same = model(**batch), read_swapped(model, batch, [0, 1, 2])
    for name in ("kinds", "starts", "ends"):
        assert_close(same[name], whole[name])
    chunks = [chunks_of(question) for question in questions]

    @cache
    def read(row: int, window: int) -> Any:
        """One row, one window: it sees what the other's window before it has left, or the other's last."""
        state = None
        if window:
            left = read(others[row], min(window, len(chunks[others[row]])) - 1).state
            state = replace(read(row, window - 1).state, memory=left.memory)
        ids, types = chunks[row][window]
        prefix = questions[row].prefix
        return model.reader(ids, token_type_ids=types, prefix_length=prefix, state=state, output_hidden_states=True)

    swapped = read_swapped(model, batch, others)
    for row, question in enumerate(questions):
        windows = [read(row, window) for window in range(len(chunks[row]))]
        scores = model.spans(torch.cat([window.hidden_states[-1][0] for window in windows]))
        assert_close(swapped.starts[row, question.prefix : len(question)], scores[question.prefix :, 0])
        assert_close(swapped.kinds[row], windows[-1].logits[0])
    assert not torch.allclose(swapped.kinds[0], whole.kinds[0])


def chunks_of(question: EncodedQuestion) -> list[tuple[Tensor, Tensor]]:
    """What is new in each window: ids and token types."""
    cuts = [0, *range(WINDOW, len(question), WINDOW - question.prefix), len(question)]
    rows = [torch.tensor(row).long()[None] for row in (question.input_ids, question.token_type_ids)]
    return [(rows[0][:, a:b], rows[1][:, a:b]) for a, b in itertools.pairwise(cuts)]


def test_the_best_span_is_the_best_of_all() -> None:
    draw = torch.Generator().manual_seed(0)
    for length, longest in ((1, 5), (6, 1), (12, 3), (12, 30)):
        starts, ends = (torch.randn(length, generator=draw) for _ in range(2))
        starts[: length // 3] = ends[: length // 3] = -torch.inf
        every = [(a, b) for a in range(length) for b in range(a, min(length, a + longest))]
        assert best_span(starts, ends, longest) == max(every, key=lambda span: float(starts[span[0]] + ends[span[1]]))
    # The best end is before the best start, and one further away than an answer may be long.
    starts, ends = torch.tensor([0.0, 0.0, 5.0, 0.0, 0.0]), torch.tensor([5.0, 0.0, 0.0, 1.0, 2.0])
    assert best_span(starts, ends, 2) == (2, 3) and best_span(starts, ends, 3) == (2, 4)


@torch.no_grad()
@pytest.mark.parametrize("likeliest", [0, 1, 2])
def test_answers_are_the_models(likeliest: int) -> None:
    model = reader("pooled").eval()
    model.reader.backbone.classifier.bias[likeliest] += 9
    questions = some_questions()
    found = answer(model, questions, 0, rows=2)
    assert found.questions == [question.question for question in questions]
    logits = [model(**batch_of([question])) for question in questions]
    for question, text, reading in zip(questions, found.texts, logits, strict=True):
        kind = int(reading.kinds.argmax())
        assert kind == likeliest
        start, end = best_span(reading.starts[0], reading.ends[0])
        letters = question.question.context[start - question.prefix : end - question.prefix + 1]
        assert text == (letters if kind == 0 else ("span", "yes", "no")[kind])
    whole = model(**batch_of(questions))
    assert found.loss == pytest.approx(float(whole.loss), rel=1e-5)
    of_kinds = nn.functional.cross_entropy(whole.kinds, torch.tensor([0, 1, 0]))
    assert found.span_loss == pytest.approx(float(whole.loss - of_kinds), rel=1e-5)
    others = answer(model, questions, 0, rows=2, swapped=True)
    assert others.loss != found.loss


def test_a_question_is_never_alone_in_a_batch() -> None:
    assert question_reader._batches(range(5), 2) == [range(0, 2), [2, 3, 4]]
    assert question_reader._batches(range(4), 2) == [range(0, 2), range(2, 4)]
    assert question_reader._batches(range(1), 2) == [range(0, 1)]


# --- scores ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "right", "f1", "exact"),
    [
        ("The Cat!", "cat", 1, 1),
        ("a black cat", "cat", 2 / 3, 0),
        ("dog", "cat", 0, 0),
        ("yes", "yes", 1, 1),
        ("Yes.", "yes", 1, 1),
        ("yes", "no", 0, 0),
        ("yes we can", "yes", 0, 0),  # words in common do not count
        ("no", "no way", 0, 0),
        ("the", "a", 0, 1),  # as the official script: nothing in common, and yet equal
    ],
)
def test_scores_are_the_official_scripts(given: str, right: str, f1: float, exact: float) -> None:
    assert score(given, right) == (pytest.approx(f1), exact)


def test_scores_by_kind() -> None:
    questions = [Question(str(n), "q", ("p",), right) for n, right in enumerate(("black cat", "yes", "yes", "dog"))]
    found = question_reader.Answers(questions, ["cat", "yes", "no", "dog"], 2.0, 1.5).scores()
    assert found.exact_match == 50 and found.span_loss == 1.5
    assert found.f1 == pytest.approx(100 * (2 / 3 + 1 + 0 + 1) / 4)
    assert found.by_kind == {
        "span": {"f1": pytest.approx(100 * (2 / 3 + 1) / 2), "questions": 2},
        "yes": {"f1": 50, "questions": 2},
    }


# --- learning --------------------------------------------------------------------------------------


def test_every_question_once_in_batches_of_like_length() -> None:
    lengths = torch.randint(10, 1000, (403,), generator=torch.Generator().manual_seed(0)).tolist()
    questions = [encoded(2, 4, None, seed=number) for number in range(len(lengths))]
    ordered = InOrder(questions, 4, 2, seed=0)
    ordered.order = order = question_reader._order(lengths, 4, 2, seed=0)
    assert len(ordered) == 806 and ordered[3] is questions[order[3]]
    assert sorted(order[:403]) == sorted(order[403:]) == list(range(403)) and order[:403] != order[403:]
    spread = [max(part) - min(part) for part in ([lengths[n] for n in order[i : i + 4]] for i in range(0, 400, 4))]
    assert sum(spread) / len(spread) < 100, "of 990"
    assert question_reader._order(lengths, 4, 2, seed=0) == order != question_reader._order(lengths, 4, 2, seed=1)


def smoke(**changes: Any) -> Any:
    return STUDY.setting("smoke", seeds=1, changes=changes)


def test_variants_of_a_seed_differ_in_the_carrier_only() -> None:
    sizes = smoke().sizes
    models = {name: build(sizes, name, 0)[0] for name in hotpotqa.variants(sizes)}
    of_others = build(sizes, OURS, 1)[0].state_dict()
    base = models[DISJOINT].state_dict()
    assert not any("carrier" in name for name in base)
    for name, model in models.items():
        state = model.state_dict()
        assert all(torch.equal(state[key], base[key]) for key in base), name
    assert not torch.equal(of_others["spans.weight"], base["spans.weight"])
    configs = hotpotqa.variants(STUDY.setting("paper").sizes)
    papers = configs[PAPERS]
    assert (papers.window, papers.residual, papers.hidden, papers.pooled_layers) == (512, False, ["width"] * 2, "last")
    assert papers._listed_layers == (2,) and configs[OURS].residual and configs[CONSTANT].stands_for == "pooled"


def do(setting: Any, name: str, folder: Path) -> Any:
    """The run of this name, alone."""
    runs = hotpotqa.runs(setting)
    work = Work(folder, setting, runs)
    work.folder = folder
    (found,) = [found for found in runs if found.name == name]
    return found.do(work)


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
    whole = do(setting, name, tmp_path / "whole")
    assert steps == list(range(20))
    monkeypatch.setattr(question_reader.Learner, "training_step", step(14))
    with pytest.raises(KeyboardInterrupt):
        do(setting, name, tmp_path / "killed")
    (tmp_path / "killed" / MODEL / "checkpoint-12" / "trainer_state.json").unlink()  # killed while it was written
    steps.clear()
    monkeypatch.setattr(question_reader.Learner, "training_step", step(None))
    again = do(setting, name, tmp_path / "killed")
    assert steps == list(range(9, 20))
    assert again["validation_loss"] == whole["validation_loss"] and again["read"] == whole["read"]
    models = [
        WindowRecurrentForSequenceClassification.from_pretrained(tmp_path / place / MODEL).state_dict()
        for place in ("whole", "killed")
    ]
    assert models[0] and all(torch.equal(models[0][key], models[1][key]) for key in models[0])
    # Between the last step and the outcome.
    steps.clear()
    assert do(setting, name, tmp_path / "killed")["validation_loss"] == whole["validation_loss"] and not steps


def test_a_carrier_has_its_own_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {}
    real = question_reader.Learner._groups

    def groups(self: Any, model: Any) -> Any:
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        for group in (found := real(self, model)):
            rates.update({names[id(p)]: (group["lr"], group["weight_decay"]) for p in group["params"]})
        return found

    monkeypatch.setattr(question_reader.Learner, "_groups", groups)
    do(smoke(rates=(1e-3,), carrier_rate=0.5), run_name(OURS, 0), tmp_path)
    assert set(rates) == {name for name, _ in build(smoke().sizes, OURS, 0)[0].named_parameters()}
    assert {rate[0] for name, rate in rates.items() if "carrier." in name} == {0.5}
    assert {rate[0] for name, rate in rates.items() if "carrier." not in name} == {1e-3}
    assert rates["spans.weight"][1] == 0.01 and rates["spans.bias"][1] == 0


def test_nan_is_an_outcome(tmp_path: Path) -> None:
    outcome = do(smoke(rates=(1e30,)), run_name(DISJOINT, 0), tmp_path)
    assert outcome["validation_loss"] is None and "the loss is nan" in outcome["ended"] and "read" not in outcome
    found = hotpotqa.report(smoke(), {run_name(DISJOINT, 0): outcome})
    assert "Too little" in found.summary and any("Ended with NaN" in note for note in found.notes)


def squad_of(folder: Path, count: int) -> str:
    """Two questions for each context."""
    rows = [{"context": f"It is {n // 2} here.", "question": f"{n}?", "answer": f"{n // 2}"} for n in range(count)]
    (folder / "squad.json").write_text(json.dumps(rows))
    return str(folder / "squad.json")


def test_no_paragraph_is_in_two_splits(tmp_path: Path) -> None:
    place = {"train": squad_of(tmp_path, 80)}
    setting = STUDY.setting("smoke", corpora=place, changes={"held": 10, "questions": 40, "distractors": 3})
    train, held = hotpotqa.chosen_questions(setting)
    assert (len(train), len(held)) == (40, 10) and all(len(q.paragraphs) == 4 for q in (*train, *held))
    split = [{paragraph for question in some for paragraph in question.paragraphs} for some in (train, held)]
    assert split[0].isdisjoint(split[1])
    assert hotpotqa.chosen_questions(setting) == (train, held)


def test_too_few_questions(tmp_path: Path) -> None:
    setting = STUDY.setting("smoke", corpora={"train": squad_of(tmp_path, 12)})
    with pytest.raises(ValueError, match="has 12 questions: held=12 of them leave none to learn from; hold fewer"):
        conduct(STUDY, setting, tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists(), "found before anything is done"


def test_heads_are_drawn_as_the_encoders() -> None:
    torch.manual_seed(0)
    head = span_head(hotpotqa._roberta())
    assert head.weight.shape == (2, 768) and head.weight.detach().std() == pytest.approx(0.02, rel=0.1)
    assert not head.bias.any()


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
    questions = hotpotqa.questions_of(smoke(), "test")[:18]
    exact = [score(answers[question.id], question.answer)[1] for question in questions]
    assert outcomes[folder.name]["read"]["true"]["exact_match"] == pytest.approx(100 * sum(exact) / 18)
    assert (folder / MODEL / "spans.safetensors").is_file() and not list(folder.glob("model/checkpoint-*"))
    monkeypatch.setattr("onward.studies.study._do", None)
    again = run(f"study hotpotqa --scale smoke --seeds 1 --out {tmp_path}")
    assert again.startswith("# Question answering") and said.endswith(again), "nothing is left to do"


def made_up(scores: dict[str, float]) -> dict[str, Any]:
    """Two seeds, which differ by 1 in all; exact match is 5 below F1."""
    outcomes: dict[str, Any] = {}
    for seed, name in itertools.product((0, 1), (DISJOINT, CONSTANT, PAPERS, OURS)):
        read = {}
        for reading in ("true", "swapped") if hotpotqa.carries(name) else ("true",):
            f1 = scores.get(f"{name} {reading}", 40.0) + seed
            by_kind = {"span": {"f1": f1 + 2, "questions": 3}, "no": {"f1": 7.0, "questions": 1}}
            read[reading] = {"f1": f1, "exact_match": f1 - 5, "by_kind": by_kind, "span_loss": 9 - f1 / 10}
        outcomes[run_name(name, seed)] = {"read": read, "learning_rate": 1e-4, "validation_loss": 1.0}
    return outcomes


def test_what_scores_come_to() -> None:
    setting = STUDY.setting("laptop", seeds=2)
    scores = {f"{PAPERS} true": 42.0, f"{OURS} true": 39.0, f"{OURS} swapped": 38.5, f"{CONSTANT} true": 39.0}
    found = hotpotqa.report(setting, made_up(scores))
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
    one = hotpotqa.report(STUDY.setting("laptop", seeds=1), made_up(scores))
    assert {claim.verdict for claim in one.claims} == {UNSEEN}
    half = {name: outcome for name, outcome in made_up(scores).items() if "disjoint" in name}
    assert "Too little" in hotpotqa.report(setting, half).summary
    assert "| disjoint windows |" in hotpotqa.report(setting, half).markdown()


def test_the_papers_scale() -> None:
    setting = STUDY.setting("paper", seeds=1)
    plans = {run.name: run.plan() for run in hotpotqa.runs(setting) if run.plan is not None}
    assert list(plans) == [run_name(name, 0) for name in hotpotqa.variants(setting.sizes)], "one rate needs no trials"
    # RoBERTa-base without its pooler, the head of three labels, and the span head.
    plain = plans[run_name(DISJOINT, 0)]
    assert plain.parameters == 124_055_040 + (768 * 768 + 768) + (3 * 768 + 3) + (2 * 768 + 2)
    # Two hidden layers and an output, all as wide as the encoder.
    assert plans[run_name(PAPERS, 0)].parameters - plain.parameters == 3 * (768 * 768 + 768)
    assert plain.tokens == 4 * 30_000 * (10 * 125 + 25)
    of_layers = 12 * 2 * (4 * 768**2 + 2 * 768 * 3072 + 2 * 512 * 768)
    assert plain.flops_per_token == pytest.approx(of_layers * 512 / (512 - 25), rel=1e-2)
    assert hotpotqa._plan(STUDY.setting("paper", corpora={"train": "x.json"}), OURS).tokens is None
