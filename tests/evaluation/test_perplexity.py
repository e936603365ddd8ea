"""Whole documents scored by window-recurrent models, against plain loops: alone, in batches, with swapped memories."""

import math

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from onward import add_recurrence
from onward.data import Document
from onward.data.tokens import TokenizedDocument, tokenize
from onward.evaluation import DocumentScore, NothingToSwap, full_context, measure, measure_memories, plain
from onward.ops.windows import windows

WINDOW = 10


def backbone(family="gpt2"):
    torch.manual_seed(0)
    if family == "gpt2":
        config = GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.3)
        return GPT2LMHeadModel(config).double().eval()
    config = LlamaConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).double().eval()


def recurrent(carrier, family="gpt2", **fields):
    fields = {"window": WINDOW, "overlap": 3, "hidden": [16], "rank": 4} | fields
    if carrier == "spans":
        fields["vectors"] = 4
    model = add_recurrence(backbone(family), carrier=carrier, **fields)
    for parameter in model.carrier.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def documents(*lengths):
    generator = torch.Generator().manual_seed(1)
    return [
        TokenizedDocument(
            f"d{i}", torch.randint(3, 99, (n,), generator=generator, dtype=torch.int32), n // 2 + 1, 4 * n
        )
        for i, n in enumerate(lengths)
    ]


DOCUMENTS = documents(47, 7, 33, 1, 61, 10, 11, 12, 2)


def score_by_hand(model, document, window, overlap):
    """Loss of every token but the first, each from the first window that has the token before it."""
    ids = document.ids.long()
    losses = []
    for span in windows(len(ids) - 1, window, overlap):
        with torch.no_grad():
            logits = model(ids[None, span.start : span.stop]).logits[0, span.scored - span.start :]
        targets = ids[span.scored + 1 : span.stop + 1]
        losses.append(-logits.log_softmax(-1)[torch.arange(len(targets)), targets])
    return torch.cat(losses)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("overlap", [0, 3])
def test_equals_windows_scored_by_hand(family, overlap):
    model = backbone(family)
    measures = measure(plain(model, WINDOW, overlap), DOCUMENTS, batch_size=3)
    for document, score in zip(DOCUMENTS, measures.documents, strict=True):
        assert score.name == document.name
        assert score.tokens == len(document) - 1
        if score.tokens:
            by_hand = score_by_hand(model, document, WINDOW, overlap).sum().item()
            assert score.nll == pytest.approx(by_hand, abs=1e-6)
        else:
            assert score.nll == 0


@pytest.mark.parametrize("carrier", ["none", "pooled", "spans", "constant"])
def test_scoring_by_windows_equals_scoring_whole_documents(carrier):
    model = recurrent(carrier)
    measures = measure(model, DOCUMENTS, batch_size=4)
    for document, score in zip(DOCUMENTS, measures.documents, strict=True):
        if score.tokens:
            ids = document.ids.long()[None]
            with torch.no_grad():
                whole = model(ids, labels=ids).loss.item() * score.tokens
            assert score.nll == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize("overlap", [0, 3, 9])
def test_every_token_is_scored_once(overlap):
    measures = measure(plain(backbone(), WINDOW, overlap), DOCUMENTS, batch_size=4)
    expected = sum(len(document) - 1 for document in DOCUMENTS)
    assert measures.tokens == sum(measures.by_position.counts) == sum(measures.by_window.counts) == expected
    assert len(measures.by_position.counts) == WINDOW
    assert sum(measures.by_position.sums) == pytest.approx(measures.nll)
    assert sum(measures.by_window.sums) == pytest.approx(measures.nll)
    # Inside the overlap, only first windows score.
    first_windows = sum(len(document) > 1 for document in DOCUMENTS)
    assert measures.by_position.counts[0] == (first_windows if overlap else measures.by_position.counts[0])
    if overlap:
        assert max(measures.by_position.counts[:overlap]) <= first_windows


def test_curves_hold_each_token_where_it_belongs():
    document = documents(24)[0]
    measures = measure(plain(backbone(), WINDOW, 3), [document])
    losses = score_by_hand(backbone(), document, WINDOW, 3).tolist()
    assert measures.by_window.counts == (10, 7, 6)
    assert measures.by_window.sums == pytest.approx([sum(losses[:10]), sum(losses[10:17]), sum(losses[17:])])
    assert measures.by_position.sums[9] == pytest.approx(losses[9] + losses[16])
    assert measures.by_position.sums[3] == pytest.approx(losses[3] + losses[10] + losses[17])


@pytest.mark.parametrize("carrier", ["pooled", "spans"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_batch_size_order_and_padding_do_not_matter(carrier, family):
    model = recurrent(carrier, family)
    alone = measure(model, DOCUMENTS, batch_size=1)
    for size in (2, 3, 100):
        together = measure(model, DOCUMENTS[::-1], batch_size=size)
        for one, other in zip(alone.documents, together.documents[::-1], strict=True):
            assert one.name == other.name
            assert other.nll == pytest.approx(one.nll, abs=1e-8)
        assert together.by_position.sums == pytest.approx(alone.by_position.sums, abs=1e-8)
        assert together.by_window.counts == alone.by_window.counts


def test_swapped_memories_matter_where_memories_have_content():
    for carrier in ("spans", "pooled"):
        both = measure_memories(recurrent(carrier), DOCUMENTS, batch_size=3)
        assert abs(both["true"].nll - both["swapped"].nll) > 1e-6
        assert both["true"].by_window.sums[0] == both["swapped"].by_window.sums[0]
    for carrier in ("constant", "none"):
        both = measure_memories(recurrent(carrier), DOCUMENTS, batch_size=3)
        assert both["true"].nll == both["swapped"].nll


def test_swapped_memories_are_those_of_the_next_document():
    model, (first, second) = recurrent("spans", overlap=0), documents(31, 31)
    ids = torch.stack([first.ids, second.ids]).long()
    expected = torch.zeros(2, dtype=torch.float64)
    state = None
    for start in range(0, 30, WINDOW):
        piece, targets = ids[:, start : start + WINDOW], ids[:, start + 1 : start + WINDOW + 1]
        given = state.swap_memories([1, 0]) if state is not None else None
        with torch.no_grad():
            logits = model(piece, state=given, use_cache=False).logits
            state = model(piece, state=state, use_cache=False).state
        expected -= logits.log_softmax(-1).gather(-1, targets[..., None]).sum((1, 2))
    measured = measure(model, [first, second], memory="swapped")
    assert [d.nll for d in measured.documents] == pytest.approx(expected.tolist(), abs=1e-8)


def test_swapped_alone_equals_swapped_beside_true():
    model = recurrent("spans")
    both = measure_memories(model, DOCUMENTS, batch_size=2)
    assert measure(model, DOCUMENTS, batch_size=2, memory="swapped").documents == both["swapped"].documents
    assert measure(model, DOCUMENTS, batch_size=2).nll == pytest.approx(both["true"].nll, abs=1e-8)


def test_a_long_document_keeps_a_donor_after_the_others_have_ended():
    model = recurrent("spans", overlap=0)
    short, long = documents(WINDOW + 2, 6 * WINDOW)
    swapped = measure(model, [short, long], memory="swapped").documents[1].nll
    assert swapped != pytest.approx(measure(model, [long]).documents[0].nll, abs=1e-6)
    # The short document ended after its first window: all later windows are scored with that memory.
    with torch.no_grad():
        memory = model(short.ids[None, :WINDOW].long(), use_cache=False).state
        expected = score_by_hand(model.backbone, long, WINDOW, 0)[:WINDOW].sum()
        for start in range(WINDOW, 6 * WINDOW - 1, WINDOW):
            piece = long.ids[start : start + WINDOW + 1].long()
            logits = model(piece[None, :-1], state=memory, use_cache=False).logits[0]
            expected += torch.nn.functional.cross_entropy(logits, piece[1:], reduction="sum")
    assert swapped == pytest.approx(float(expected), abs=1e-8)


def test_documents_without_a_scored_token_count_no_words():
    measures = measure(plain(backbone(), WINDOW), documents(1, 20))
    assert measures.documents[0] == DocumentScore("d0", 0.0, 0, 0, 0)
    assert measures.words == 11


def test_what_cannot_be_swapped_is_refused():
    model = recurrent("pooled")
    with pytest.raises(NothingToSwap, match="batch_size of at least 2"):
        measure(model, DOCUMENTS, memory="swapped", batch_size=1)
    with pytest.raises(NothingToSwap, match="there are 1: give at least two"):
        measure(model, documents(30, 5, 11), memory="swapped")


def test_wrong_arguments_are_refused():
    model = recurrent("pooled")
    with pytest.raises(ValueError, match="memory='other': it is not known"):
        measure(model, DOCUMENTS, memory="other")
    with pytest.raises(ValueError, match="nothing to score"):
        measure(model, documents(1, 1))
    with pytest.raises(TypeError, match="plain"):
        measure(model.backbone, DOCUMENTS)
    with pytest.raises(ValueError, match="pass the tokenizer"):
        measure(model, DOCUMENTS, max_tokens=20)
    with pytest.raises(ValueError, match="at least 2"):
        measure(model, DOCUMENTS, max_tokens=1)


def test_model_is_left_as_it_was():
    model = recurrent("pooled").train()
    first = measure(model, DOCUMENTS)
    assert model.training
    assert measure(model, DOCUMENTS).nll == first.nll
    assert all(parameter.grad is None for parameter in model.parameters())


def test_progress_is_told_every_token():
    told = []
    measure(recurrent("pooled"), DOCUMENTS, batch_size=3, progress=told.append)
    assert sum(told) == sum(len(document) - 1 for document in DOCUMENTS)
    told.clear()
    measure(recurrent("pooled"), DOCUMENTS, batch_size=3, memory="swapped", progress=told.append)
    assert sum(told) == sum(len(document) - 1 for document in DOCUMENTS)


# --- words and bytes -------------------------------------------------------------------------------


@pytest.fixture
def characters():
    """A tokenizer of bytes: every word is several tokens."""
    vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def byte_model():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=256, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    return plain(GPT2LMHeadModel(config).double().eval(), 16)


def test_perplexities_are_per_word_token_and_byte(characters):
    document = Document("d", "one two  three\nfour fünf")
    measures = measure(byte_model(), tokenize([document], characters))
    assert (measures.tokens, measures.words, measures.bytes) == (24, 5, 25)
    assert measures.word_perplexity == pytest.approx(math.exp(measures.nll / 5))
    assert measures.token_perplexity == pytest.approx(math.exp(measures.nll / 24))
    assert measures.bits_per_byte == pytest.approx(measures.nll / 25 / math.log(2))


@pytest.mark.parametrize("count", [2, 5, 7, 8, 15, 21, 22, 24, 99])
def test_cut_documents_count_the_words_of_what_is_left(characters, count):
    text = Document("d", "one two  three\nfour fünf")
    cut = measure(byte_model(), tokenize([text], characters), max_tokens=count, tokenizer=characters)
    exact = text.text.encode()[:count].decode(errors="ignore")
    assert (cut.words, cut.bytes) == (len(exact.split()), len(exact.encode()))
    assert cut.tokens == min(count, 25) - 1
    assert cut.words == tokenize([text], characters, count)[0].words


def test_counts_keep_their_proportion_where_tokens_do_not_give_the_text_back():
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "'": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")
    document = tokenize([Document("d", "a'a " * 10)], tokenizer)[0]
    assert (len(document), document.words) == (30, 10)
    torch.manual_seed(0)
    cut = measure(plain(backbone(), WINDOW), [document], max_tokens=15, tokenizer=tokenizer)
    assert cut.words == 5
    assert cut.bytes == pytest.approx(20, abs=1)


# --- longer contexts ---------------------------------------------------------------------------------


def test_full_context_is_the_backbones_or_the_cap():
    model = recurrent("pooled")
    longest = full_context(model, WINDOW)
    assert (longest.config.window, longest.config.overlap) == (64, 32)
    assert full_context(model, WINDOW, cap=20).config.window == 20
    assert full_context(model, 64) is None
    assert longest.backbone is model.backbone
    assert measure(longest, documents(60)).nll == pytest.approx(
        score_by_hand(model.backbone, documents(60)[0], 64, 0).sum().item()
    )
