"""FLOPs and parameters against counts by hand, and against the papers."""

import block_models
import pytest
import torch
from block_models import build
from transformers import GPT2Config, GPT2LMHeadModel

from onward import BlockRecurrentConfig, add_recurrence
from onward.evaluation import (
    block_cost,
    block_flops_per_token,
    cost,
    counted_flops_per_token,
    formula_flops_per_token,
    plain,
)

# FLOPs/token of GPT-2 small with windows of 300 tokens, by overlap: Tables 1 and 2 of the paper.
PAPER = {
    0: "1.75",
    5: "1.78",
    10: "1.81",
    30: "1.94",
    50: "2.10",
    75: "2.33",
    100: "2.62",
    150: "3.50",
    200: "5.25",
}


@pytest.fixture(scope="module")
def gpt2_small():
    with torch.device("meta"):
        return GPT2LMHeadModel(GPT2Config())


@pytest.mark.parametrize("overlap", PAPER)
def test_formula_gives_the_papers_column(gpt2_small, overlap):
    flops = formula_flops_per_token(gpt2_small, 300, overlap)
    assert flops == pytest.approx(float(PAPER[overlap]) * 1e8, rel=5e-3)
    # The paper multiplied the rounded 1.75e8.
    assert f"{formula_flops_per_token(gpt2_small, 300) / 1e8:.2f}" == PAPER[0]
    assert f"{1.75 * 300 / (300 - overlap):.2f}" == PAPER[overlap]


def tiny(layers=2, width=32):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=99, n_embd=width, n_layer=layers, n_head=4, n_positions=64)
    return GPT2LMHeadModel(config).eval()


def by_hand(window, overlap, memories=0, layers=2, width=32, vocabulary=99):
    """Matrix products: 12 k^2 per layer and token, T x T attention twice, the head of new tokens."""
    new = window - overlap
    products = layers * 12 * width * width * window
    attention = 2 * window * window * width * layers + 2 * window * memories * width
    return 2 * (products + attention + new * width * vocabulary) / new


@pytest.mark.parametrize("overlap", [0, 3])
def test_counted_flops_of_plain_windows(overlap):
    assert counted_flops_per_token(plain(tiny(), 10, overlap)) == by_hand(10, overlap)


@pytest.mark.parametrize("overlap", [0, 3])
def test_counted_flops_of_the_memory(overlap):
    model = add_recurrence(tiny(), carrier="pooled", window=10, overlap=overlap, hidden=[16], residual=False)
    spent = cost(model)
    # Beside attention: k -> 16 -> k for h_prev, its query, key and value, and the mean over the window.
    added = 2 * (32 * 16 + 16 * 32 + 3 * 32 * 32 + 10 * 32)
    assert spent.counted == pytest.approx(by_hand(10, overlap, memories=1) + added / (10 - overlap))
    assert spent.counted_plain == by_hand(10, overlap)
    assert spent.counted_added == spent.counted - spent.counted_plain
    assert spent.formula == formula_flops_per_token(model.backbone, 10, overlap)


def test_parameters():
    backbone = tiny()
    alone = sum(p.numel() for p in backbone.parameters())
    spent = cost(add_recurrence(backbone, carrier="pooled", window=10, hidden=[16], residual=False))
    assert spent.parameters_added == 2 + (32 * 16 + 16) + (16 * 32 + 32)
    assert spent.parameters == alone + spent.parameters_added
    assert cost(plain(backbone, 10)).parameters_added == 0


def test_counting_leaves_the_model_as_it_was():
    model = add_recurrence(tiny(), carrier="pooled", window=10).train()
    before = model.backbone.config._attn_implementation
    cost(model)
    assert model.training
    assert model.backbone.config._attn_implementation == before


# --- blocks -----------------------------------------------------------------------------------------


def block_by_hand(config):
    """FLOPs of a block's matrix products, over its tokens."""
    d, ff, inner, w, s = (
        config.hidden_size,
        config.intermediate_size,
        config.attention_width,
        config.window,
        config.num_states,
    )
    total = w * d * config.vocab_size
    for number in range(1, config.num_hidden_layers + 1):
        reads, recurrent = config.reads_states[number - 1], number in config.recurrent_layers
        total += w * (d * (4 if reads else 3) * inner + (2 if reads else 1) * inner * d + 2 * d * ff)
        total += 2 * w * 2 * w * inner  # each token against two blocks
        if reads:
            total += 2 * w * s * inner
        if number == config.memory_layer:
            total += w * config.memory_size * inner + 2 * w * config.memory_top_k * inner
        if recurrent:
            total += s * d * 4 * inner + 2 * s * s * inner + 2 * s * 2 * w * inner
            total += s * 2 * inner * d  # fixed:skip
    return 2 * total / w


@pytest.mark.parametrize("case", ["Slide:12L", "Rec:fixed:skip", "Feedback:fixed:skip", "little memory"])
def test_counted_flops_of_blocks(case):
    config = block_models.tiny(case)
    assert block_flops_per_token(config) == pytest.approx(block_by_hand(config))


def test_parameters_with_and_without_embeddings():
    model = build("Slide:12L")
    d, inner, ff = model.config.hidden_size, model.config.attention_width, model.config.intermediate_size
    layer = 4 * d * inner + 2 * d * ff + 2 * d + 4 + 32 * 4  # matrices, norms, scales, position bias
    cost = block_cost(model)
    assert cost.parameters_without_embeddings == 3 * layer + d
    assert cost.parameters == 3 * layer + d + 99 * d


def test_recurrence_costs_what_the_paper_says():
    """Relative to Slide:13L, as its step time in Table 1."""
    rec, slide = (block_flops_per_token(BlockRecurrentConfig.preset(name)) for name in ("Rec:fixed:skip", "Slide:13L"))
    assert round(rec / slide, 2) == 0.99
