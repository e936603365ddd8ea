"""Topics: what divergences and sign tests say of cases that can be worked out by hand."""

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.stats import binomtest

from onward_studies import STUDIES
from onward_studies.window_recurrent.topic_model import TopicModel, divergences, sign_test

SEA, LAND = "ship sail wave harbour anchor ", "field plough horse barn harvest "


def test_divergences_are_jensen_shannon_in_bits():
    draw = np.random.default_rng(0)
    first, second = (draw.dirichlet(np.ones(5), 20) for _ in range(2))
    expected = [jensenshannon(a, b, base=2) ** 2 for a, b in zip(first, second, strict=True)]
    assert divergences(first, second) == pytest.approx(expected)
    apart, same = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    assert divergences(apart, same) == pytest.approx(1) and divergences(apart, apart) == 0


def test_topics_tell_texts_apart():
    model = TopicModel([SEA * 300, LAND * 300], topics=2)
    sea, more_sea, land = model.mixtures([SEA, SEA * 3, LAND])
    assert divergences(sea[None], more_sea[None])[0] < 0.1 < divergences(sea[None], land[None])[0]
    assert model.mixtures(["unknown"])[0] == pytest.approx([0.5, 0.5])
    assert model.known_words(["unknown", "the", SEA, SEA + SEA]).tolist() == [0, 0, 5, 10]
    again = TopicModel([SEA * 300, LAND * 300], topics=2)
    assert (again.mixtures([SEA]) == model.mixtures([SEA])).all()


def test_sign_tests_leave_out_ties():
    test = sign_test([1, 1, 1, 1, 1, 2], [2, 2, 2, 2, 0, 2])
    assert (test.share, test.pairs) == (0.8, 5) and test.p == pytest.approx(2 * (5 + 1) / 32)
    assert sign_test([1.0], [1.0]).p == 1


@pytest.mark.parametrize(("lower", "pairs"), [(0, 1), (1, 2), (3, 7), (50, 100), (40, 100), (460, 1000), (9000, 20000)])
def test_a_sign_test_is_binomial(lower, pairs):
    first = np.array([0.0] * lower + [2.0] * (pairs - lower))
    assert sign_test(first, np.ones(pairs)).p == pytest.approx(binomtest(lower, pairs).pvalue, rel=1e-9)


def test_what_is_missing_is_said_at_once(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install scikit-learn"):
        STUDIES["topics"].check(None)


def test_texts_without_topics():
    with pytest.raises(ValueError, match="no text to find topics in"):
        TopicModel(["", "  "])
    with pytest.raises(ValueError, match="no words to find topics in"):
        TopicModel(["the and of"])
