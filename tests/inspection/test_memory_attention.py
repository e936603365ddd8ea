"""The share of attention that goes to a window's memory."""

import pytest
import torch
from window_models import recurrent

from onward.inspection import memory_attention

WINDOW, VECTORS = 10, 4


def test_even_attention_gives_every_vector_the_same_share():
    model = recurrent(carrier="spans", vectors=VECTORS, rank=4)
    width = model.config.hidden_size
    for block in model.backbone.transformer.h:
        torch.nn.init.zeros_(block.attn.c_attn.weight[:, :width])
        torch.nn.init.zeros_(block.attn.c_attn.bias[:width])
    shares = memory_attention(model, torch.randint(1, 61, (2, 25)))
    counted = VECTORS - 1  # all but the document's first token
    even = [counted / (VECTORS + own) for own in range(1, WINDOW + 1)]
    assert shares == pytest.approx(dict.fromkeys(model.config.insertion_layers, sum(even) / WINDOW))


def test_one_window_has_no_memory():
    with pytest.raises(ValueError, match="10 tokens are one window of 10: give more"):
        memory_attention(recurrent(), torch.ones(1, WINDOW, dtype=torch.long))
