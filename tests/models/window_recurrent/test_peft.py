"""LoRA adapters and the carrier learn together."""

from __future__ import annotations

import peft
import pytest
import torch
from tiny_models import VARIANTS, assert_same, backbone, recurrent_variant, tokens
from transformers import AutoModelForCausalLM

from onward import WindowRecurrenceConfig, add_recurrence
from onward.training import merge_lora

TARGETS = {"gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"], "bert": ["query", "value"]}


def lora(family, **options):
    return peft.LoraConfig(r=2, lora_alpha=8, target_modules=TARGETS[family], **options)


def learn(model, steps=8):
    """A few steps on one text; gives the losses and the gradients of the first step that has them all."""
    ids = tokens(2, 14)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return losses


def assert_only_these_learn(model, before):
    """Adapters and carrier have gradients and have moved; nothing else has."""
    for name, parameter in model.named_parameters():
        learns = "lora_" in name or ("carrier" in name and "original_module" not in name)
        assert parameter.requires_grad == learns, name
        if learns:
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
            assert not torch.equal(parameter, before[name]), name
        else:
            assert parameter.grad is None and torch.equal(parameter, before[name]), name


def snapshot(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("family", TARGETS)
def test_adapters_of_the_backbone_learn_with_the_carrier(family):
    inner = backbone(family, dtype=torch.float32)
    inner.add_adapter(lora(family))
    fields = {"window": 5, **VARIANTS["spans"]}
    model = add_recurrence(inner, WindowRecurrenceConfig(**fields))
    torch.nn.init.normal_(model.carrier.up, std=0.1)
    before = snapshot(model)
    losses = learn(model)
    assert losses[-1] < losses[0] - 0.05
    assert_only_these_learn(model, before)


@pytest.mark.parametrize("family", TARGETS)
@pytest.mark.parametrize("variant", ["pooled", "spans", "matched"])
def test_a_recurrent_model_can_be_wrapped_by_peft(family, variant, tmp_path):
    model = recurrent_variant(family, variant, dtype=torch.float32)
    ids = tokens(2, 14)
    with torch.no_grad():
        untouched = model(ids).logits
    wrapped = peft.get_peft_model(model, lora(family, modules_to_save=["carrier"]))
    with torch.no_grad():
        torch.testing.assert_close(wrapped(input_ids=ids).logits, untouched)
    before = snapshot(wrapped)
    losses = learn(wrapped)
    assert losses[-1] < losses[0] - 0.05
    assert_only_these_learn(wrapped, before)
    wrapped.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(recurrent_variant(family, variant, dtype=torch.float32), tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(loaded.eval()(input_ids=ids).logits, wrapped.eval()(input_ids=ids).logits)


def test_adapters_and_checkpointing_of_windows_go_together():
    inner = backbone("llama")
    inner.add_adapter(lora("llama", init_lora_weights=False))
    model = add_recurrence(inner, window=5).train()
    ids = tokens(2, 14)
    learned = [p for p in model.parameters() if p.requires_grad]
    plain = torch.autograd.grad(model(ids, labels=ids).loss, learned, allow_unused=True)
    model.gradient_checkpointing_enable()
    kept = torch.autograd.grad(model(ids, labels=ids).loss, learned, allow_unused=True)
    for a, b in zip(kept, plain, strict=True):
        if b is None:
            assert a is None
        else:
            assert_same(a, b, model)


def test_a_wrapped_model_generates():
    model = recurrent_variant("gpt2")
    expected = model.generate(tokens(1, 4), max_new_tokens=9, do_sample=False, eos_token_id=-1)
    wrapped = peft.get_peft_model(model, lora("gpt2", modules_to_save=["carrier"], task_type="CAUSAL_LM"))
    generated = wrapped.generate(input_ids=tokens(1, 4), max_new_tokens=9, do_sample=False, eos_token_id=-1)
    assert torch.equal(generated, expected)


def test_adapters_of_the_backbone_are_merged_before_saving(tmp_path):
    model = recurrent_variant("gpt2")
    model.backbone.add_adapter(lora("gpt2", init_lora_weights=False))
    with pytest.raises(ValueError, match="merge_lora"):
        model.save_pretrained(tmp_path)
    ids = tokens(1, 12)
    adapted = model(ids).logits
    merge_lora(model)
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(AutoModelForCausalLM.from_pretrained(tmp_path)(ids).logits, adapted)
