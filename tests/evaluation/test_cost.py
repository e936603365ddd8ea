import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from onward import add_recurrence
from onward.evaluation.cost import cost, counted_flops_per_token, formula_flops_per_token
from onward.evaluation.perplexity import plain

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
    model = add_recurrence(tiny(), window=10, overlap=overlap, hidden=[16], residual=False)
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
    spent = cost(add_recurrence(backbone, window=10, hidden=[16], residual=False))
    assert spent.parameters_added == 2 + (32 * 16 + 16) + (16 * 32 + 32)
    assert spent.parameters == alone + spent.parameters_added
    assert cost(plain(backbone, 10)).parameters_added == 0


def test_counting_leaves_the_model_as_it_was():
    model = add_recurrence(tiny(), window=10).train()
    before = model.backbone.config._attn_implementation
    cost(model)
    assert model.training
    assert model.backbone.config._attn_implementation == before
