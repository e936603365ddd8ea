"""One evaluation of each kind of model, shared by the tests of rows, reports and plots: (model, rows, folder)."""

import random

import block_models
import pytest
from window_models import recurrent, shaken, word_documents, word_tokenizer

from onward import add_recurrence
from onward.data import Document
from onward.data.vocabularies import byte_tokenizer
from onward.evaluation import evaluate

BLOCK_WORDS = ["the", "sea", "and", "the", "ship", "and", "the", "long", "way", "home"]


@pytest.fixture(scope="package")
def tokenizer():
    return word_tokenizer()


@pytest.fixture(scope="package")
def documents():
    return word_documents()


@pytest.fixture(scope="package")
def window_rows(tokenizer, documents, tmp_path_factory):
    model = shaken(recurrent(carrier="spans", vectors=4, rank=4))
    constant = shaken(add_recurrence(model.backbone, model.config.with_carrier("constant")))
    folder = tmp_path_factory.mktemp("report")
    found = evaluate(
        model, documents, tokenizer=tokenizer, overlaps=[0, 3], constant=constant, out=folder, progress=False
    )
    return model, found, folder


@pytest.fixture(scope="package")
def block_documents():
    choose = random.Random(0)
    return [Document(f"d{n}", " ".join(choose.choices(BLOCK_WORDS, k=n))) for n in (12, 3, 9)]


@pytest.fixture(scope="package")
def block_rows(block_documents, tmp_path_factory):
    model, folder = block_models.build("Rec:fixed:skip", vocab_size=257), tmp_path_factory.mktemp("report")
    return model, evaluate(model, block_documents, tokenizer=byte_tokenizer(), out=folder, progress=False), folder
