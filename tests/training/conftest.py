"""Window-recurrent runs that several files of tests start from."""

import pytest
from training_runs import validations
from window_runs import LONG, make_model, run, word_tokenizer


@pytest.fixture(scope="session")
def tokenizer():
    return word_tokenizer()


@pytest.fixture(scope="session")
def uninterrupted(tokenizer, tmp_path_factory):
    model = make_model()
    result = run(tmp_path_factory.mktemp("uninterrupted"), tokenizer, model, LONG)
    assert result.steps == 12 and len(validations(result)) == 6
    return model, result
