"""A block-recurrent model next to its controls."""

from functools import partial

import block_models
import pytest

from onward.data.tokens import tokenize
from onward.data.vocabularies import byte_tokenizer
from onward.evaluation import evaluate, measure, paired_difference

build = partial(block_models.build, vocab_size=257)


def test_the_model_stands_beside_its_controls(block_rows, block_documents):
    model, found, _ = block_rows
    assert [row.variant for row in found] == ["recurrent", "swapped", "ablated"]
    tokenized = tokenize(block_documents, byte_tokenizer())
    for row, memory in zip(found, ("true", "swapped", "ablated"), strict=True):
        assert row.measures.nll == pytest.approx(measure(model, tokenized, memory=memory).nll, abs=1e-8)
        assert row.measures.bytes == sum(document.bytes for document in block_documents)
    recurrent, swapped, ablated = found
    assert recurrent.gain == paired_difference(ablated.measures, recurrent.measures)
    assert swapped.gain.mean == pytest.approx(ablated.measures.loss - swapped.measures.loss)
    assert ablated.gain is None and "Slide:13L" in ablated.notes[0]
    assert recurrent.cost.counted > 0


def test_a_model_that_carries_nothing_stands_alone(block_documents):
    found = evaluate(build("Slide:12L"), block_documents, tokenizer=byte_tokenizer(), progress=True)
    assert [row.variant for row in found] == ["plain"]


def test_a_single_document_is_evaluated_without_swapping(block_documents):
    found = evaluate(build("little memory"), block_documents[:1], tokenizer=byte_tokenizer(), max_tokens=30)
    assert [row.variant for row in found] == ["recurrent", "swapped", "ablated"]
    assert found[1].measures is None and "give at least two" in found[1].notes[0]
    assert found[0].measures.tokens == 29


def test_options_for_windows_are_refused(block_documents):
    model = build("Slide:12L")
    for name, value in {"overlaps": [0], "constant": model, "plain_model": model, "full_context_cap": 9}.items():
        with pytest.raises(ValueError, match=f"{name}=.*: it is for window-recurrent models"):
            evaluate(model, block_documents, tokenizer=byte_tokenizer(), **{name: value})
    with pytest.raises(TypeError, match="recurrent causal language model, got a BlockRecurrentModel"):
        evaluate(model.model, block_documents, tokenizer=byte_tokenizer())
