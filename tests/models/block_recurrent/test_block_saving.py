"""A block-recurrent model is an ordinary transformers model: saved, loaded, copied, cast, trained, in pipelines."""

from __future__ import annotations

import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import block_models
import numpy as np
import pytest
import torch
from block_models import PRESETS, tiny
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_models import moved, tokens
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    pipeline,
)

from onward import BlockRecurrentConfig, BlockRecurrentForCausalLM, BlockRecurrentModel

OPTIONS = [
    "not itself, with feedback",
    "tanh in lstm:single",
    "memory and states",
]
SOME = ["Slide:12L", "Rec:fixed:skip", "Rec:lstm:dual", "Feedback:fixed:skip", "memory and states"]


build = partial(block_models.build, dtype=torch.float32)


def is_tied(model: Any) -> bool:
    return model.lm_head.weight is model.model.embed_tokens.weight


# -- saved and loaded


@pytest.mark.parametrize("case", [*PRESETS, *OPTIONS])
@torch.no_grad()
def test_a_saved_model_comes_back_bit_for_bit(case: str, tmp_path: Path) -> None:
    model = build(case)
    model.save_pretrained(tmp_path)
    ids = tokens(2, 19)
    expected = model(ids)

    config = AutoConfig.from_pretrained(tmp_path)
    assert type(config) is BlockRecurrentConfig
    assert all(getattr(config, name) == getattr(model.config, name) for name in config.own_fields())

    loaded = moved(AutoModelForCausalLM.from_pretrained(tmp_path))
    assert type(loaded) is BlockRecurrentForCausalLM and not loaded.training and is_tied(loaded)
    assert torch.equal(loaded(ids).logits, expected.logits)
    assert torch.equal(loaded(ids, state=expected.state).logits, model(ids, state=expected.state).logits)

    bare = moved(AutoModel.from_pretrained(tmp_path))
    assert type(bare) is BlockRecurrentModel
    assert torch.equal(bare(ids).last_hidden_state, model.model(ids).last_hidden_state)


@torch.no_grad()
def test_a_bare_model_becomes_a_language_model(tmp_path: Path) -> None:
    model = build("Rec:fixed:skip")
    model.model.save_pretrained(tmp_path)
    loaded = moved(AutoModelForCausalLM.from_pretrained(tmp_path))
    assert torch.equal(loaded(tokens(1, 9)).logits, model(tokens(1, 9)).logits)


def names_in(folder: Path) -> set[str]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return set(file.keys())


@torch.no_grad()
def test_tied_weights_are_saved_once_and_untied_ones_twice(tmp_path: Path) -> None:
    model = build("Rec:fixed:skip")
    model.save_pretrained(tmp_path / "tied")
    assert names_in(tmp_path / "tied") == {f"model.{name}" for name, _ in model.model.named_parameters()}

    own = BlockRecurrentForCausalLM(tiny("Rec:fixed:skip", tie_word_embeddings=False)).eval()
    assert not is_tied(own)
    own.save_pretrained(tmp_path / "untied")
    assert names_in(tmp_path / "untied") == names_in(tmp_path / "tied") | {"lm_head.weight"}
    loaded = moved(AutoModelForCausalLM.from_pretrained(tmp_path / "untied"))
    assert not is_tied(loaded) and torch.equal(loaded(tokens(1, 9)).logits, own(tokens(1, 9)).logits)


@pytest.mark.parametrize("fields", [{}, {"tie_word_embeddings": False}])
@torch.no_grad()
def test_logits_begin_about_as_large_as_one(fields: dict[str, Any]) -> None:
    torch.manual_seed(0)
    logits = BlockRecurrentForCausalLM(tiny("Slide:12L", hidden_size=128, **fields))(tokens(2, 40)).logits
    assert 0.5 < logits.std() < 2


@pytest.mark.parametrize("case", PRESETS)
def test_loaded_in_bfloat16_it_reads_and_learns(case: str, tmp_path: Path) -> None:
    model = build(case)
    model.save_pretrained(tmp_path)
    half = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    ids = tokens(2, 2 * model.config.window + 3)
    output = half(ids, labels=ids)
    assert output.logits.dtype == torch.bfloat16 and output.loss.dtype == torch.float32
    assert abs(output.loss - model(ids, labels=ids).loss) < 0.1
    first = half.train()(ids, labels=ids)
    (first.loss + half(ids, labels=ids, state=first.state).loss).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in half.parameters())
    assert half.eval()(ids[:, :1], state=first.state.detach()).logits.isfinite().all()


def test_weights_that_do_not_fit_are_told(tmp_path: Path) -> None:
    build("Rec:fixed:skip").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    weights["model.layers.1.cell.ids"] = torch.zeros(3, 32)
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(RuntimeError, match="mismatched"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_a_misspelt_field_in_a_file_is_refused(tmp_path: Path) -> None:
    build("Rec:fixed:skip").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"gate_tanh"', '"gate_tan"'))
    with pytest.raises(ValueError, match="no field 'gate_tan'.*did you mean 'gate_tanh'"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_fields_can_be_changed_when_loading(tmp_path: Path) -> None:
    build("Rec:fixed:skip").save_pretrained(tmp_path)
    assert AutoModelForCausalLM.from_pretrained(tmp_path, dropout=0.3).config.dropout == 0.3
    assert json.loads((tmp_path / "config.json").read_text())["recurrent_layers"] == [2]


# -- made and copied


@pytest.mark.parametrize("case", PRESETS)
def test_built_without_memory_it_has_all_its_parameters(case: str) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(tiny(case))
    assert {p.device.type for p in model.parameters()} == {"meta"} and is_tied(model)
    shapes = {name: p.shape for name, p in model.named_parameters()}
    assert shapes == {name: p.shape for name, p in build(case).named_parameters()}


@pytest.mark.parametrize("case", PRESETS)
def test_every_parameter_is_initialized_as_the_paper_has_it(case: str) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 400, "num_states": 64}
    model = BlockRecurrentModel(tiny(case, **sizes))
    for name, p in model.named_parameters():
        assert p.isfinite().all(), name
        if name.endswith(("norm.weight", "scale")):
            assert (p == 1).all(), name
        elif name.endswith("memory_gate"):
            assert (p == 0).all(), name
        else:
            expected = {"ids": 1.0, "initial": 0.1, "forget": 0.1, "bias": 0.1, "embed_tokens.weight": 1.0}
            deviation = next((value for end, value in expected.items() if name.endswith(end)), None)
            if name.endswith("position_bias.weight"):
                deviation = 128**-0.5
            elif deviation is None:
                deviation = p.shape[1] ** -0.5
                assert p.abs().max() <= 2 * deviation / 0.8796, name  # two deviations of what was wider before the cut
                if "gate.kernel" in name and "lstm" in case:
                    p = p[: len(p) // 3]  # new states; the gates after them start smaller: test_block_start.py
            assert p.std().item() == pytest.approx(deviation, rel=0.25), name


@pytest.mark.parametrize("case", SOME)
@torch.no_grad()
def test_a_copy_is_the_same_model_and_another(case: str) -> None:
    model, ids = build(case), tokens(2, 19)
    twin = copy.deepcopy(model)
    expected = model(ids).logits
    assert torch.equal(twin(ids).logits, expected) and is_tied(twin)
    twin.model.embed_tokens.weight.zero_()
    assert torch.equal(model(ids).logits, expected)


@torch.no_grad()
def test_new_words_can_be_added(tmp_path: Path) -> None:
    model = build("Rec:fixed:skip")
    ids = tokens(2, 19)
    before = model(ids).logits
    model.resize_token_embeddings(105)
    assert is_tied(model) and model.config.vocab_size == 105
    torch.testing.assert_close(model(ids).logits[..., :99], before)
    new = torch.full((1, 12), 104)
    assert model(new, labels=new).loss.isfinite()
    model.save_pretrained(tmp_path)
    loaded = moved(AutoModelForCausalLM.from_pretrained(tmp_path))
    assert torch.equal(loaded(new).logits, model(new).logits)
    with pytest.raises(ValueError, match="the id 105, and the vocabulary 105 ids"):
        model(new + 1)


# -- trained


class Rows(Dataset):
    def __init__(self, rows: Tensor):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


@pytest.mark.parametrize(
    ("case", "more"),
    [
        ("Rec:fixed:skip", {}),
        ("Rec:fixed:skip", {"gradient_checkpointing": True}),
        ("Rec:fixed:skip", {"bf16": True}),
        ("Feedback:lstm:single", {"gradient_accumulation_steps": 2}),
        ("little memory", {}),
    ],
)
def test_the_stock_trainer_trains_and_evaluates(case: str, more: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = BlockRecurrentForCausalLM(tiny(case, dropout=0.1))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    rows = Rows(tokens(8, 21))
    seen = {}

    def metrics(prediction: Any) -> dict[str, float]:
        assert isinstance(prediction.predictions, np.ndarray), "logits, and no state"
        seen["shapes"] = prediction.predictions.shape, prediction.label_ids.shape
        logits, labels = prediction.predictions[:, :-1], torch.as_tensor(prediction.label_ids[:, 1:])
        loss = torch.nn.functional.cross_entropy(torch.as_tensor(logits).float().flatten(0, 1), labels.flatten())
        return {"own_loss": loss.item()}

    arguments = TrainingArguments(
        str(tmp_path), max_steps=4, per_device_train_batch_size=4, per_device_eval_batch_size=3, learning_rate=1e-2,
        use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no", logging_strategy="no", **more,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows, compute_metrics=metrics)
    first = trainer.evaluate()
    trainer.train()
    last = trainer.evaluate()
    assert seen["shapes"] == ((8, 21, 99), (8, 21))
    assert last["eval_loss"] == pytest.approx(last["eval_own_loss"], abs=1e-2)
    assert last["eval_loss"] < first["eval_loss"]
    # the first words know nothing of a document: what its states are like at the start, they learn too
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("case", PRESETS)
def test_a_training_step_under_autocast_is_near_the_exact_one(case: str) -> None:
    torch.manual_seed(0)
    model = BlockRecurrentForCausalLM(tiny(case)).train()
    ids = tokens(4, 2 * model.config.window + 5)
    parameters = list(model.parameters())

    def step() -> tuple[Tensor, list[Tensor]]:
        first = model(ids, labels=ids)
        second = model(ids, labels=ids, state=first.state)  # autocast's state goes on, too
        loss = first.loss + second.loss
        return loss, list(torch.autograd.grad(loss, parameters))

    exact = step()
    with torch.autocast("cpu", torch.bfloat16):
        loss, gradients = step()
    assert loss.item() == pytest.approx(exact[0].item(), rel=0.01)
    assert all(g.isfinite().all() and g.dtype == torch.float32 for g in gradients)
    ours, theirs = (torch.cat([g.flatten() for g in each]) for each in (gradients, exact[1]))
    assert torch.nn.functional.cosine_similarity(ours, theirs, dim=0) > 0.99
    assert ours.norm().item() == pytest.approx(theirs.norm().item(), rel=0.05)


def test_label_smoothing_predicts_the_next_token(tmp_path: Path) -> None:
    """Trainer then makes the loss itself, and must know that labels are shifted."""
    torch.manual_seed(0)
    model = BlockRecurrentForCausalLM(tiny("Rec:fixed:skip"))
    arguments = TrainingArguments(
        str(tmp_path), max_steps=30, per_device_train_batch_size=4, learning_rate=3e-2, label_smoothing_factor=0.1,
        use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no", logging_strategy="no",
    )  # fmt: skip
    ids = tokens(1, 13).repeat(8, 1)
    Trainer(model, arguments, train_dataset=Rows(ids)).train()
    with torch.no_grad():
        said = model.eval()(ids[:1]).logits[0, :-1].argmax(-1)
    assert (said == ids[0, 1:]).float().mean() > 0.9


def test_autocast_as_gpus_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs gives norms and exponentials in float32, where that of CPUs leaves them as they are."""

    def in_float32(function: Any) -> Any:
        return lambda x, *a, **k: function(x.float() if torch.is_autocast_enabled("cpu") else x, *a, **k)

    for owner, name in ((torch.linalg, "vector_norm"), (Tensor, "logsumexp"), (Tensor, "exp")):
        monkeypatch.setattr(owner, name, in_float32(getattr(owner, name)))
    for case in SOME:
        model, ids = build(case).train(), tokens(2, 21)
        with torch.autocast("cpu", torch.bfloat16):
            state = model(ids[:, :5]).state
            loss = model(ids, labels=ids, state=state).loss
        loss.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters()), case


@pytest.mark.parametrize("case", SOME)
@torch.no_grad()
def test_reading_and_generating_under_autocast(case: str) -> None:
    model, ids = build(case), tokens(2, 21)
    with torch.autocast("cpu", torch.bfloat16):
        whole = model(ids).logits
        first = model(ids[:, :11])
        pieces = torch.cat([first.logits, model(ids[:, 11:], state=first.state).logits], 1)
        assert model.generate(ids[:, :5], max_new_tokens=12, do_sample=False, pad_token_id=0).shape == (2, 17)
    exact = model(ids).logits
    torch.testing.assert_close(whole.float(), exact, rtol=0, atol=0.2)
    torch.testing.assert_close(pieces.float(), exact, rtol=0, atol=0.2)
    torch.testing.assert_close(model(ids[:, 11:], state=first.state).logits, exact[:, 11:], rtol=0, atol=0.2)


# -- in a pipeline


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    words = {word: number for number, word in enumerate(["<pad>", "<end>", "<odd>", *(f"w{n}" for n in range(96))])}
    model = Tokenizer(WordLevel(words, unk_token="<odd>"))
    model.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", eos_token="<end>", unk_token="<odd>", padding_side="left"
    )


@torch.no_grad()
def test_a_pipeline_generates_also_in_batches(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    build("Rec:fixed:skip").save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    generator = pipeline("text-generation", model=str(tmp_path), device="cpu")
    options = {"max_new_tokens": 19, "do_sample": False, "return_full_text": False}
    texts = ["w1 w2 w3 w4 w5 w6 w7 w8 w9", "w5"]
    together = [found[0]["generated_text"] for found in generator(texts, batch_size=2, **options)]
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    for text, generated in zip(texts, together, strict=True):
        ids = tokenizer(text, return_tensors="pt").input_ids
        expected = model.generate(ids, max_new_tokens=19, do_sample=False, pad_token_id=0)[0, ids.shape[1] :]
        assert generated.split() == tokenizer.decode(expected, skip_special_tokens=True).split()
        assert len(generated.split()) > 15
