"""Metrics against values worked out by hand, and what is scored without a model."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics
from tiny_tasks import tokenizer

from onward.finetuning import TASKS, FinetuningRecipe
from onward.finetuning.data import TaskData
from onward.finetuning.inputs import Sentences
from onward.finetuning.metrics import METRICS, measure
from onward.finetuning.squad import best, exact_match, f1, normalize
from onward.finetuning.tasks import task_of

# 3 true positives, 2 false negatives, 1 false positive, 4 true negatives
LABELS = np.array([1, 1, 1, 1, 1, 0, 0, 0, 0, 0])
GUESSES = np.array([1, 1, 1, 0, 0, 1, 0, 0, 0, 0])


def test_of_labels() -> None:
    found = measure(("accuracy", "f1", "matthews"), GUESSES, LABELS)
    assert found["accuracy"] == pytest.approx(0.7)
    assert found["f1"] == pytest.approx(2 * 3 / (2 * 3 + 1 + 2))
    assert found["matthews"] == pytest.approx((3 * 4 - 1 * 2) / math.sqrt(4 * 5 * 5 * 6))


def test_of_numbers() -> None:
    given, right = np.array([1.0, 2.0, 3.0, 10.0]), np.array([1.0, 3.0, 2.0, 4.0])
    found = measure(("pearson", "spearman"), given, right)
    # Deviations (-3, -2, -1, 6) and (-1.5, 0.5, -0.5, 1.5); ranks differ by (0, -1, 1, 0).
    assert found["pearson"] == pytest.approx((4.5 - 1 + 0.5 + 9) / math.sqrt(50 * 5))
    assert found["spearman"] == pytest.approx(1 - 6 * 2 / (4 * 15))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("metric", ["matthews", "pearson", "spearman", "f1"])
def test_the_same_answer_to_everything_earns_nothing(metric: str) -> None:
    assert METRICS[metric](np.zeros(10), LABELS) == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_they_are_those_of_scikit_learn_and_scipy(seed: int) -> None:
    draw = np.random.default_rng(seed)
    guesses, labels = draw.integers(0, 2, (2, 50))
    given, right = draw.integers(0, 12, (2, 50)) / 3  # some are equal
    found = measure(("accuracy", "f1", "matthews"), guesses, labels) | measure(("pearson", "spearman"), given, right)
    assert found == {
        "accuracy": pytest.approx(metrics.accuracy_score(labels, guesses), abs=1e-14),
        "f1": pytest.approx(metrics.f1_score(labels, guesses), abs=1e-14),
        "matthews": pytest.approx(metrics.matthews_corrcoef(labels, guesses), abs=1e-14),
        "pearson": pytest.approx(stats.pearsonr(given, right).statistic, abs=1e-14),
        "spearman": pytest.approx(stats.spearmanr(given, right).statistic, abs=1e-14),
    }


@pytest.mark.filterwarnings("error")
def test_answers_of_any_size_have_a_correlation() -> None:
    for size in (1e-300, 1e-30, 1e30):
        assert -1.0 <= measure(["pearson"], size * np.arange(4.0), np.array([1.0, 3.0, 2.0, 4.0]))["pearson"] <= 1.0
    assert measure(["pearson"], np.arange(4, dtype=np.float32), np.arange(4))["pearson"] == pytest.approx(1)


# --- a task's score, and what needs no model


def sentences(task: str, labels: list[float], **more: list[float]) -> Sentences:
    """Examples of a task that all read the same."""
    texts = dict.fromkeys(TASKS[task].texts, "the sea")
    rows = {split: [{**texts, "label": label} for label in given] for split, given in {"v": labels, **more}.items()}
    recipe = FinetuningRecipe().for_task(TASKS[task])
    return Sentences(TASKS[task], TaskData(rows["v"], rows), tokenizer(), recipe)


def test_without_a_model_the_most_frequent_label_is_the_best_answer() -> None:
    prepared = sentences("rte", [0] * 30 + [1] * 10)
    assert prepared.trivial == 0.75
    assert prepared.margin == pytest.approx(2 * math.sqrt(0.75 * 0.25 / 40))


def test_where_accuracy_and_f1_count_it_is_always_yes() -> None:
    assert sentences("mrpc", [1] * 27 + [0] * 13).trivial == pytest.approx((27 / 40 + 2 * 27 / (2 * 27 + 13)) / 2)


@pytest.mark.parametrize(("task", "labels"), [("cola", [1] * 300 + [0] * 100), ("stsb", [0.5, 4.0] * 200)])
def test_for_correlations_it_is_nothing(task: str, labels: list[float]) -> None:
    prepared = sentences(task, labels)
    assert prepared.trivial == 0.0
    assert prepared.margin == pytest.approx(2 / math.sqrt(400))


def test_the_margin_is_never_below_two_points() -> None:
    assert sentences("sst2", [0, 1] * 1300).margin == 0.02


def test_mnli_is_scored_on_two_splits() -> None:
    prepared = sentences("mnli", [0, 1, 2, 0])
    prepared.labels = {"validation_matched": np.array([0, 1]), "validation_mismatched": np.array([2, 2, 2, 0])}
    always_two = {split: (np.eye(3)[[2] * len(labels)],) for split, labels in prepared.labels.items()}
    found = prepared.metrics(always_two)
    assert found == {"accuracy_matched": 0.0, "accuracy_mismatched": 0.75}
    assert TASKS["mnli"].score(found) == 0.375


def test_stsb_scores_the_mean_of_both_correlations() -> None:
    assert TASKS["stsb"].score({"pearson": 0.5, "spearman": 0.7}) == pytest.approx(0.6)
    assert TASKS["squad_v2"].score({"exact_match": 0.1, "f1": 0.3, "answerable_f1": 0.9}) == 0.3


@pytest.mark.parametrize("name", ["STS-B", "stsb", "sts_b"])
def test_tasks_have_one_name_in_all_spellings(name: str) -> None:
    assert task_of(name) is TASKS["stsb"]


def test_a_misspelt_task() -> None:
    with pytest.raises(ValueError, match="no task 'colla': did you mean 'cola'"):
        task_of("colla")


# --- SQuAD's answers


@pytest.mark.parametrize(
    ("answer", "normal"),
    [("The  Sea!", "sea"), ("an apple, a day", "apple day"), ("U.S.", "us"), ("theatre", "theatre"), ("the", "")],
)
def test_normalisation(answer: str, normal: str) -> None:
    assert normalize(answer) == normal


def test_exact_match_and_f1() -> None:
    assert exact_match("the Eiffel Tower.", "Eiffel tower") == 1.0
    assert exact_match("Eiffel Tower in Paris", "Eiffel Tower") == 0.0
    assert f1("Eiffel Tower in Paris", "the Eiffel Tower") == pytest.approx(2 * (2 / 4) * (2 / 2) / (2 / 4 + 1))
    assert f1("no no yes", "no") == pytest.approx(2 * (1 / 3) / (1 / 3 + 1)), "a word counts as often as both have it"
    assert f1("Rome", "Paris") == 0.0


def test_no_answer_is_right_only_where_there_is_none() -> None:
    assert f1("", "") == exact_match("", "") == 1.0
    assert f1("", "Paris") == f1("Paris", "") == 0.0
    assert best(f1, "", []) == 1.0
    assert best(f1, "Rome", []) == 0.0


def test_of_several_right_answers_the_nearest_counts() -> None:
    assert best(f1, "in Rome", ["Paris", "Rome", "Rome, Italy"]) == pytest.approx(2 / 3)
