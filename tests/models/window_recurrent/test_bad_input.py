"""What cannot work is refused, in words that say what to do instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from anatomy import anatomy
from safetensors.torch import load_file, save_file
from tiny_models import VOCABULARY, WIDTH, backbone, recurrent, tiny_config, tiny_model, tokens
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BloomConfig,
    DebertaV2Config,
    GPT2DoubleHeadsModel,
    GPTJConfig,
    T5Config,
)

from onward import (
    UnsupportedBackboneError,
    WindowRecurrenceConfig,
    WindowRecurrentForCausalLM,
    WindowRecurrentModel,
    add_recurrence,
)


@pytest.fixture(scope="module")
def decoder() -> Any:
    return recurrent("gpt2", window=8, overlap=2)


@pytest.fixture(scope="module")
def encoder() -> Any:
    return recurrent("bert", "masked-lm", window=8, overlap=2)


IDS = tokens(2, 5)
BAD_IDS: list[tuple[Any, type[Exception], str]] = [
    (IDS[:, :0], ValueError, "input_ids is empty"),
    (IDS[:0], ValueError, "input_ids is empty"),
    (IDS.float(), TypeError, "whole numbers .torch.long., got torch.float32"),
    (IDS.bool(), TypeError, "whole numbers"),
    (IDS[0], ValueError, r"shape \[batch, length\], got \(5,\)"),
    (IDS[None], ValueError, r"shape \[batch, length\]"),
    (None, ValueError, "input_ids is missing"),
    ("some text", TypeError, "tensor of token ids, got str"),
    ([[1, 2]], TypeError, "tensor of token ids, got list"),
]


@pytest.mark.parametrize(("ids", "kind", "message"), BAD_IDS)
def test_input_ids_that_are_none(decoder: Any, encoder: Any, ids: Any, kind: type[Exception], message: str) -> None:
    for model in (decoder, encoder):
        with pytest.raises(kind, match=message):
            model(ids)
    with pytest.raises(kind, match=message):
        decoder.embed(ids)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (
            {"inputs_embeds": torch.zeros(2, 5, WIDTH)},
            ValueError,
            "inputs_embeds is not supported: windows are cut from token ids; pass input_ids",
        ),
        ({"output_attentions": True}, ValueError, "output_attentions"),
        ({"atention_mask": torch.ones(2, 5)}, TypeError, "takes no argument 'atention_mask'"),
        (
            {"attention_mask": torch.ones(2, 4)},
            ValueError,
            r"attention_mask has the shape \(2, 4\), the input",
        ),
        ({"attention_mask": torch.ones(1, 5)}, ValueError, "attention_mask has the shape"),
        ({"attention_mask": torch.zeros(2, 5)}, ValueError, "there are no tokens: attention_mask is 0 everywhere"),
        ({"labels": IDS[:, :4]}, ValueError, r"labels have the shape \(2, 4\), the input \(2, 5\)"),
        ({"labels": IDS[:1]}, ValueError, "labels have the shape"),
        ({"labels": IDS[:, :4], "attention_mask": torch.ones(2, 5)}, ValueError, "labels have the shape"),
        ({"labels": IDS, "attention_mask": torch.ones(2, 4)}, ValueError, "attention_mask has the shape"),
        ({"starts_document": [True]}, ValueError, "starts_document, .*has 1 values for 2 rows"),
        ({"prefix_length": [1]}, ValueError, "1 entries for 2 rows"),
        ({"state": "state.safetensors"}, TypeError, "must be a WindowState"),
    ],
)
def test_arguments_that_do_not_fit(
    decoder: Any, encoder: Any, given: dict[str, Any], kind: type[Exception], message: str
) -> None:
    for model in (decoder, encoder):
        with pytest.raises(kind, match=message):
            model(IDS, **given)


def test_prefixes_that_leave_no_room_or_are_not_there(decoder: Any) -> None:
    for length in (6, -1):
        with pytest.raises(ValueError, match="leaves no room for new tokens"):
            decoder(tokens(2, 9), prefix_length=length)
    with pytest.raises(ValueError, match="prefix of 4 tokens.* only 2"):
        decoder(IDS[:, :2], prefix_length=4)


def test_token_types_of_another_length(encoder: Any) -> None:
    with pytest.raises(ValueError, match=r"token_type_ids have the shape \(2, 4\)"):
        encoder(IDS, token_type_ids=torch.zeros(2, 4, dtype=torch.long))


def test_states_of_other_models(decoder: Any) -> None:
    for other in (
        recurrent("gpt2", window=9, overlap=2),
        recurrent("gpt2", window=8, overlap=1),
        recurrent("gpt2", window=8, overlap=2, carrier="constant"),
        recurrent("gpt2", window=8, overlap=2, insert_at=1),
        recurrent("gpt2", window=8, overlap=2, pooling="max"),
        recurrent("gpt2", window=8, overlap=2, vectors=2, insert_at="all", residual=False),
        recurrent("gpt2", window=8, overlap=2, backbone={"n_layer": 4}),
    ):
        with pytest.raises(ValueError, match="comes from another model"):
            decoder(IDS, state=other(IDS).state)
    one, *others = (
        recurrent("gpt2", window=8, carrier="spans", vectors=7, history=history) for history in (1, 3, [3, 2, 1])
    )
    for other in others:
        with pytest.raises(ValueError, match="comes from another model"):
            one(IDS, state=other(IDS).state)


@pytest.mark.parametrize("length", [1, 3, 8])
@torch.no_grad()
def test_a_text_no_longer_than_a_window_is_read_as_the_backbone_reads_it(
    decoder: Any, encoder: Any, length: int
) -> None:
    for model in (decoder, encoder):
        ids = tokens(2, length)
        torch.testing.assert_close(model(ids).logits, model.backbone(ids).logits, rtol=0, atol=1e-5)


def test_bad_input_leaves_the_backbone_as_it_was(decoder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder.config.backbone, "vocab_size", VOCABULARY + 1)  # so that the backbone itself fails
    before, expected = anatomy(decoder), decoder(IDS).logits
    with pytest.raises(IndexError), torch.no_grad():
        decoder(torch.full((1, 9), VOCABULARY))
    assert anatomy(decoder) == before
    assert torch.equal(decoder(IDS).logits, expected)


def test_recurrence_is_added_once_and_only_to_live_models(decoder: Any) -> None:
    with pytest.raises(TypeError, match="has recurrence already"):
        add_recurrence(decoder)
    with pytest.raises(TypeError, match="takes a live transformers model, got str"):
        add_recurrence("gpt2")
    with pytest.raises(TypeError, match="got Linear"):
        add_recurrence(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match="must be a WindowRecurrenceConfig, got dict"):
        add_recurrence(tiny_model("gpt2"), {"window": 8})
    with pytest.raises(TypeError, match="either a configuration or its fields"):
        add_recurrence(tiny_model("gpt2"), WindowRecurrenceConfig(window=8), overlap=2)
    with pytest.raises(ValueError, match="GPT2DoubleHeadsModel has a head that recurrence does not support"):
        add_recurrence(GPT2DoubleHeadsModel(tiny_config("gpt2")), window=8)
    with pytest.raises(ValueError, match="not a causal LM: tokens see those after them"):
        add_recurrence(tiny_model("bert", "causal-lm"), window=8)


UNSUPPORTED: dict[str, Any] = {
    "bloom": BloomConfig(vocab_size=99, hidden_size=32, n_layer=3, n_head=4),
    "gptj": GPTJConfig(vocab_size=99, n_embd=32, n_layer=3, n_head=4, n_positions=64, rotary_dim=4),
    "deberta-v2": DebertaV2Config(
        vocab_size=99, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64
    ),
    "t5": T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=3, num_heads=4),
}


@pytest.mark.parametrize("carrier", ["pooled", "selected", "none"])
@pytest.mark.parametrize("family", UNSUPPORTED)
def test_families_without_the_seam_are_named(family: str, carrier: str) -> None:
    model = AutoModel.from_config(UNSUPPORTED[family])
    before = anatomy(model)
    with pytest.raises(UnsupportedBackboneError, match=f"of the family '{family}'.*known to work: gpt2"):
        add_recurrence(model, window=8, carrier=carrier)
    assert anatomy(model) == before, "the model is left as it was"


@pytest.mark.parametrize("implementation", ["flash_attention_2", "flex_attention"])
def test_other_attention_implementations_are_refused(decoder: Any, implementation: str) -> None:
    backbone = tiny_model("gpt2")
    backbone.config._attn_implementation = implementation
    with pytest.raises(UnsupportedBackboneError, match=f"{implementation}.*load it with 'sdpa' or 'eager'"):
        add_recurrence(backbone, window=8)
    before = decoder.backbone.config._attn_implementation
    decoder.backbone.config._attn_implementation = implementation
    try:
        with pytest.raises(
            ValueError,
            match=f"{implementation}.*recurrence works with .sdpa. or .eager.: choose one with model.backbone.set_attn",
        ):
            decoder(IDS)
    finally:
        decoder.backbone.config._attn_implementation = before


@pytest.fixture
def folder(decoder: Any, tmp_path: Path) -> Path:
    decoder.save_pretrained(tmp_path)
    return tmp_path


def test_truncated_weights(folder: Path) -> None:
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    for kept in (0, 10, len(whole) // 2, len(whole) - 1):
        weights.write_bytes(whole[:kept])
        with pytest.raises(ValueError, match=f"{weights} is damaged"):
            AutoModelForCausalLM.from_pretrained(folder)


def test_missing_files(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(OSError, match="no file named model.safetensors"):
        AutoModelForCausalLM.from_pretrained(folder)
    with pytest.raises(ValueError, match="holds no configuration"):
        WindowRecurrentForCausalLM.from_pretrained(tmp_path_factory.mktemp("empty"))


def test_truncated_configuration(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text()[:100])
    with pytest.raises(OSError, match="not a valid JSON file"):
        AutoModelForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"carrier.output.bias": None}, "lacks the weights carrier.output.bias"),
        ({"backbone.transformer.h.1.ln_2.weight": None}, "lacks the weights backbone.transformer.h.1.ln_2"),
        ({"carrier.other": torch.ones(2)}, "holds weights unknown to this model: carrier.other"),
        ({"carrier.output.bias": torch.ones(2)}, "holds weights of other shapes: carrier.output.bias"),
    ],
)
def test_weights_that_are_missing_unknown_or_of_another_shape(folder: Path, change: dict, message: str) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path) | change
    kept = {name: tensor for name, tensor in weights.items() if tensor is not None}
    save_file(kept, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=f"does not fit its configuration: it {message}"):
        AutoModelForCausalLM.from_pretrained(folder)


def test_weights_of_a_foreign_model(folder: Path) -> None:
    save_file({"some.weight": torch.ones(2)}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="lacks the weights .* and [0-9]+ more"):
        AutoModelForCausalLM.from_pretrained(folder)


def test_a_folder_of_a_plain_backbone(tmp_path: Path) -> None:
    tiny_model("gpt2").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="a model of the kind 'gpt2'.*use add_recurrence"):
        WindowRecurrentForCausalLM.from_pretrained(tmp_path)


def test_a_folder_of_another_head(folder: Path) -> None:
    for load in (AutoModelForMaskedLM.from_pretrained, WindowRecurrentModel.from_pretrained):
        with pytest.raises(ValueError, match="with the head 'causal-lm'.*the Auto class of its own head"):
            load(folder)


def test_a_configuration_without_a_backbone() -> None:
    with pytest.raises(ValueError, match="names no backbone: use onward.add_recurrence"):
        AutoModelForCausalLM.from_config(WindowRecurrenceConfig())


def test_recurrence_needs_weights_to_look_at() -> None:
    with pytest.raises(ValueError, match="on the meta device, which has no values to look at: load its weights first"):
        add_recurrence(backbone("llama").to("meta"), carrier="selected", window=5)
