"""The papers' recipes, checked by their first steps: only models, texts and how much is read are smaller.

What a study does is looked up in the Trainer that it runs, and compared with what the papers tell.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaTokenizer,
)

from onward.data import load_corpus
from onward.data.vocabularies import byte_tokenizer
from onward.models.block_recurrent.configuration_block_recurrent import BASE
from onward.training.folders import RUN
from onward.training.progress import RunsProgress
from onward_studies import STUDIES
from onward_studies.block_recurrent.rows import BlockSizes
from onward_studies.engine.conducting import conduct
from onward_studies.engine.folders import MODEL
from onward_studies.engine.study import Run, Study, StudySetting
from onward_studies.engine.texts import cut
from onward_studies.window_recurrent.backbone import Decoder


@dataclass
class Training:
    """What a Trainer has at hand, and its learning rates and losses, step by step."""

    arguments: Any
    model: Any
    groups: list[dict[str, Any]] = field(default_factory=list)  # of the optimiser
    optimizer: str = ""
    rates: list[list[float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return self.arguments.per_device_train_batch_size * self.arguments.gradient_accumulation_steps


class FirstSteps(RunsProgress):
    """Ends every training after its first steps, though all of it was planned, warm-up and schedule."""

    steps: ClassVar[int] = 2
    seen: ClassVar[dict[str, list[Training]]] = {}

    def start_run(self, label: str, size: int, parts: int = 1) -> None:
        super().start_run(label, size, parts)
        self.trainings = self.seen.setdefault(label.partition(", ")[2], [])

    def on_train_begin(self, args, state, control, model=None, **kwargs):  # type: ignore[no-untyped-def]
        super().on_train_begin(args, state, control, **kwargs)
        self.trainings.append(Training(args, model))

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):  # type: ignore[no-untyped-def]
        training = self.trainings[-1]
        training.groups, training.optimizer = optimizer.param_groups, type(optimizer.optimizer).__name__
        training.rates.append(sorted({group["lr"] for group in optimizer.param_groups}))

    def on_step_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        super().on_step_end(args, state, control, **kwargs)
        if state.global_step == self.steps:
            control.should_training_stop = control.should_log = True
            control.should_evaluate = control.should_save = args.eval_strategy != "no"

    def on_log(self, args, state, control, logs=None, **kwargs):  # type: ignore[no-untyped-def]
        super().on_log(args, state, control, logs, **kwargs)
        if "loss" in logs:
            self.trainings[-1].losses.append(logs["loss"])


@pytest.fixture(autouse=True)
def only_first_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward_studies.engine.conducting.RunsProgress", FirstSteps)
    monkeypatch.setattr(FirstSteps, "seen", {})


def some_runs(study: Study, *names: str) -> Study:
    """The study with these runs, and what they need."""

    def runs(setting: StudySetting) -> list[Run]:
        found = {run.name: run for run in study.runs(setting)}
        wanted = list(names)
        for name in wanted:
            wanted += [need for need in found[name].needs if need not in wanted]
        return [run for run in found.values() if run.name in wanted]

    return replace(study, runs=runs)


def first_steps(study: Study, folder: Path, corpora: Mapping[str, str], **smaller: Any) -> dict[str, Any]:
    """The outcomes of all runs, whose losses are numbers."""
    setting = study.setting("paper", seeds=1, corpora=corpora, changes=smaller)
    conduct(study, setting, folder)
    outcomes = json.loads((folder / "paper" / study.name / "results.json").read_text())["outcomes"]
    assert set(outcomes) == {run.name for run in study.runs(setting)}
    for name, outcome in outcomes.items():
        assert math.isfinite(outcome.get("validation_loss", 0)), name
        for training in FirstSteps.seen.get(name, []):
            assert training.losses and all(map(math.isfinite, training.losses)), name
            assert len(training.rates) == FirstSteps.steps
    return outcomes


def training_of(name: str) -> Training:
    (training,) = FirstSteps.seen[name]
    return training


def recipe_of(folder: Path, run: str) -> dict[str, Any]:
    described = json.loads((folder / "paper" / "runs" / run / MODEL / RUN).read_text())
    return {name.removeprefix("recipe."): value for name, value in described.items() if name.startswith("recipe.")}


def saved(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> str:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


SHAKESPEARE = {"books": "shakespeare", "wikipedia": "shakespeare"}


# --- Adding Recurrence to Pretrained Transformers --------------------------------------------------


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    """GPT-2, dropout and all, but for its sizes."""
    tokenizer = byte_tokenizer()
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=8, n_layer=2, n_head=1)
    return Decoder(name=saved(GPT2LMHeadModel(config), tokenizer, tmp_path_factory.mktemp("gpt2")))


# Two epochs of a text as long as the paper's are many of this one.
MANY_TOKENS = {"tokens": 2 * 115_000_000, "epochs": 1000}
SHORT_WINDOWS = {"window": 24, "overlaps": (0, 4), "more_overlaps": (16,), "held_tokens": 60, "test_tokens": 60}


def smaller_windows(decoder: Decoder, **more: Any) -> dict[str, Any]:
    return {"decoder": decoder, **MANY_TOKENS, "train_bytes": 100_000, "held": 2, **SHORT_WINDOWS, **more}


def is_the_windows_recipe(training: Training, rate: float) -> bool:
    """Adam, everything trained, the rate rising from 0 to its value in 100 steps; rows are ours."""
    assert training.rates == [[0], pytest.approx([rate / 100])]
    assert training.optimizer == "AdamW" and {group["weight_decay"] for group in training.groups} == {0}
    assert {group["betas"] for group in training.groups} == {(0.9, 0.999)}
    assert sum(len(group["params"]) for group in training.groups) == len(list(training.model.parameters()))
    assert all(parameter.requires_grad for parameter in training.model.parameters())
    arguments = training.arguments
    assert (arguments.lr_scheduler_type, arguments.warmup_steps) == ("constant_with_warmup", 100)
    assert training.model.config.backbone.resid_pdrop == training.model.config.backbone.attn_pdrop == 0.1
    return arguments.gradient_checkpointing and training.rows == 8


@pytest.mark.parametrize("name", ["overlap-wikipedia", "overlap-books", "window-size", "pareto", "carriers"])
def test_what_the_paper_tells_of_windows(name: str) -> None:
    study = STUDIES[name]
    paper = study.sizes["paper"]
    assert paper.decoder.name == "gpt2"
    assert (paper.window, paper.windows_per_segment, paper.overlaps) == (300, 20, (0, 5, 10, 30, 50))
    assert (paper.tokens, paper.epochs, paper.evaluate_every) == (None, 2, 2_000_000)
    assert (paper.train_bytes, paper.held, paper.held_tokens, paper.test_tokens) == (None, None, None, None)
    assert study.corpora["paper"] == {"books": "pg19", "wikipedia": "wikitext-103"}


def test_windows_of_300_tokens(gpt2: Decoder, tmp_path: Path) -> None:
    name = "wikipedia-recurrent-window300-seed0"
    study = some_runs(STUDIES["overlap-wikipedia"], name)
    few = {"train_bytes": 150_000, "held": 2, "held_tokens": 650, "test_tokens": 650}
    outcomes = first_steps(study, tmp_path, SHAKESPEARE, decoder=gpt2, rates=(5e-5,), **few, **MANY_TOKENS)
    training = training_of(name)
    assert is_the_windows_recipe(training, 5e-5)
    assert outcomes[name]["tokens"] == pytest.approx(2 * 8 * 20 * 300, rel=0.1)  # at their ends texts leave less
    assert recipe_of(tmp_path, name)["evaluate_every_tokens"] == 2_000_000
    config = training.model.config
    assert (config.hidden, config.insertion_layers, config.vector_count) == ([200, 200, 200], (2,), 1)
    assert (config.pooling, config.pooled_layers, config.residual) == ("mean", "weighted", False)
    assert config.truncate_after is None


def test_overlaps_and_rates(gpt2: Decoder, tmp_path: Path) -> None:
    rates = STUDIES["overlap-books"].sizes["paper"].rates
    name = "books-recurrent-window24-overlap4-seed0"
    study = some_runs(STUDIES["overlap-books"], name)
    outcomes = first_steps(study, tmp_path, SHAKESPEARE, **smaller_windows(gpt2))
    trials = {rate: f"wikipedia-rate-recurrent-{rate:g}" for rate in rates}  # on Wikipedia for books, too
    for rate, trial in trials.items():
        assert is_the_windows_recipe(training_of(trial), rate)
    best = min(rates, key=lambda rate: outcomes[trials[rate]]["validation_loss"])
    assert is_the_windows_recipe(training_of(name), best) and outcomes[name]["learning_rate"] == best
    assert training_of(name).model.config.overlap == 4


PAPERS_CARRIERS = STUDIES["carriers"].sizes["paper"].carriers
FEWER = {"every token": [23], "every token of two windows": [23, 23], "fading history": [23, 8]}
FITTING = {name: {"carrier": "spans", "history": spans} for name, spans in FEWER.items()}
SHORTER_MEMORIES = {"longest": 82, "carriers": {**PAPERS_CARRIERS, **FITTING}}


@pytest.mark.parametrize(
    ("name", "runs", "changes"),
    [
        ("window-size", ["plain-window16", "recurrent-window16"], {"sizes": (16, 24), "read_overlaps": (4,)}),
        ("carriers", ["full-window82", "history-window24", "constant-fading-history-window24"], SHORTER_MEMORIES),
    ],
)
def test_other_windows_and_carriers(
    gpt2: Decoder, tmp_path: Path, name: str, runs: list[str], changes: dict[str, Any]
) -> None:
    study = some_runs(STUDIES[name], *(f"books-{run}-seed0" for run in runs))
    first_steps(study, tmp_path, SHAKESPEARE, **smaller_windows(gpt2, rates=(5e-5,), **changes))
    for run in runs:
        assert is_the_windows_recipe(training_of(f"books-{run}-seed0"), 5e-5)


# --- Question answering ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> str:
    """RoBERTa but for its sizes: every letter is a token."""
    letters = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(ByteLevel.alphabet())]
    tokenizer = RobertaTokenizer(vocab={letter: number for number, letter in enumerate(letters)}, merges=[])
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 16}
    config = RobertaConfig(vocab_size=len(letters), **sizes, max_position_embeddings=514, type_vocab_size=1)
    return saved(RobertaForMaskedLM(config), tokenizer, tmp_path_factory.mktemp("roberta"))


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> str:
    """HotpotQA's own form, ten paragraphs of about 125 tokens to a question: three windows."""
    text = load_corpus("shakespeare").train[0].text
    pieces = [" ".join(text[start : start + 125].split()) for start in range(0, 10 * 125 * 40, 125)]
    asked = []
    for number in range(40):
        paragraphs = [[f"{number} {place}", [pieces[10 * number + place]]] for place in range(10)]
        answer = ("yes", "no")[number % 2] if number % 5 == 0 else paragraphs[number % 10][1][0].split()[1]
        facts = [[paragraphs[number % 10][0], 0]]
        asked.append({"_id": str(number), "question": f"What of {number}?", "answer": answer, "context": paragraphs})
        asked[-1]["supporting_facts"] = facts
    file = tmp_path_factory.mktemp("questions") / "hotpotqa.json"
    file.write_text(json.dumps(asked))
    return str(file)


def test_question_answering(roberta: str, questions: str, tmp_path: Path) -> None:
    study = STUDIES["hotpotqa"]
    paper = study.sizes["paper"]
    assert (paper.encoder, paper.window, paper.questions, paper.epochs) == ("roberta-base", 512, 30_000, 4)
    assert (paper.rates, paper.carrier_rate, paper.distractors, paper.tested) == ((2e-5,), None, 0, None)
    names = [run.name for run in study.runs(study.setting("paper", seeds=1)) if re.search("disjoint|paper", run.name)]
    few = {"encoder": roberta, "questions": 32, "held": 4, "tested": 4}
    corpora = dict.fromkeys(("train", "test"), questions)
    outcomes = first_steps(some_runs(study, *names), tmp_path, corpora, **few)
    assert len(outcomes) == 2 and all("f1" in outcome["read"]["true"] for outcome in outcomes.values())
    for name in outcomes:
        training = training_of(name)
        assert training.optimizer == "AdamW" and training.rows == paper.rows
        assert training.arguments.lr_scheduler_type == "linear"
        rising = math.ceil(paper.warmup * 4 * 32 / paper.rows)
        assert training.rates == [[0], [pytest.approx(2e-5 / rising)]]
    (papers,) = (training_of(name) for name in outcomes if "paper" in name)
    config = papers.model.reader.config
    assert (config.window, config.pooled_layers, config.pooling, config.residual) == (512, "last", "mean", False)
    assert (config.hidden, config.insertion_layers) == (["width", "width"], (2,))


# --- Block-Recurrent Transformers ------------------------------------------------------------------

SMALL_BLOCKS = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "window": 8}
WARMUP = 1000


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> str:
    """More than the largest batch has rows."""
    pieces = [piece for document in load_corpus("shakespeare").train[:2] for piece in cut(document, 600)]
    file = tmp_path_factory.mktemp("documents") / "pieces.jsonl"
    file.write_text("\n".join(json.dumps({"text": piece.text}) for piece in pieces))
    return str(file)


def smaller_steps(tokens_per_step: int) -> dict[str, Any]:
    """Shorter segments, as many in a step; and steps enough for the warm-up."""
    shorter = tokens_per_step * SMALL_BLOCKS["window"] // BASE["window"]
    return {"tokens_per_step": shorter, "tokens": 2 * WARMUP * shorter}


def smaller_blocks(sizes: BlockSizes) -> dict[str, Any]:
    few = {"vocabulary": 300, "changes": SMALL_BLOCKS, "held": 2, "held_tokens": 100}
    return {**few, **smaller_steps(sizes.tokens_per_step)}


def is_the_blocks_recipe(training: Training, rate: float, rows: int) -> bool:
    """Adafactor, 1000 steps of warm-up, then the inverse square root of the step; dropout of 0.05."""
    expected = [rate * step / WARMUP / math.sqrt(WARMUP) for step in (1, 2)]
    assert [rate for rates in training.rates for rate in rates] == pytest.approx(expected)
    assert training.arguments.warmup_steps == WARMUP
    assert training.optimizer == "Adafactor"
    for group in training.groups:
        assert (group["beta1"], group["decay_rate"]) == (0.9, -0.8)
        assert group["scale_parameter"] and not group["relative_step"]
    assert training.arguments.max_grad_norm == 0 and not training.arguments.gradient_checkpointing
    assert (training.model.config.dropout, training.model.config.hidden_act) == (0.05, "relu")
    return training.rows == rows


def test_what_the_paper_tells_of_blocks() -> None:
    gates, scale = STUDIES["gates"].sizes["paper"], STUDIES["scale"].sizes["paper"]
    batch = 32 * 4096
    for sizes, steps, rows in (
        (gates.of("books"), 500_000, 1),
        (gates.of("books, bytes"), 500_000, 1),
        (gates.of("latex"), 500_000, 1),
        (gates.of("code"), 250_000, 8),
        (scale, 200_000, 4),
        (STUDIES["ablations"].sizes["paper"], 500_000, 1),
    ):
        assert sizes.changes == {} and sizes.warmup_steps == WARMUP
        assert sizes.tokens_per_step == rows * batch and sizes.tokens == steps * rows * batch
    assert {text: gates.of(text).rates for text in gates.texts} == {
        "books": (1.0,),
        "books, bytes": (1.0,),
        "latex": (0.5,),
        "code": (0.25,),
    }
    assert [gates.of(text).vocabulary for text in gates.texts] == [32_000, None, 32_000, 32_000]
    assert scale.rates == (1.0,) and scale.vocabulary == 32_000


ROWS_OF_A_STEP = {
    "books-xl-512": 256,
    "books-slide-13l": 32,
    "books-rec-lstm-dual": 32,
    "books-rec-fixed-skip": 32,
    "books-feedback-lstm-single": 32,
    "books-bytes-rec-fixed-skip": 32,
    "latex-rec-fixed-skip": 32,
    "code-rec-fixed-skip": 256,
}


def test_gates(documents: str, tmp_path: Path) -> None:
    paper = STUDIES["gates"].sizes["paper"]
    study = some_runs(STUDIES["gates"], *(f"blocks4-{run}-seed0" for run in ROWS_OF_A_STEP))
    code = paper.of_texts["code"]
    of_texts = {**paper.of_texts, "code": {**code, **smaller_steps(code["tokens_per_step"]), "rows_at_once": 64}}
    corpora = dict.fromkeys(study.corpora["paper"], documents)
    first_steps(study, tmp_path, corpora, **smaller_blocks(paper), of_texts=of_texts)
    for run, rows in ROWS_OF_A_STEP.items():
        rate = {"latex": 0.5, "code": 0.25}.get(run.partition("-")[0], 1.0)
        assert is_the_blocks_recipe(training_of(f"blocks4-{run}-seed0"), rate, rows)
    assert training_of("blocks4-books-bytes-rec-fixed-skip-seed0").model.config.vocab_size == 257
    assert training_of("blocks4-code-rec-fixed-skip-seed0").arguments.gradient_accumulation_steps == 4


@pytest.mark.parametrize(
    ("name", "runs", "rows"),
    [
        ("scale", ["rec-lstm-single-large", "slide-13l-large"], 128),
        ("ablations", ["rec-fixed-skip-window-2", "rec-fixed-skip-16-states", "rec-fixed-skip-two-far-apart"], 32),
    ],
)
def test_larger_sizes_and_ablations(documents: str, tmp_path: Path, name: str, runs: list[str], rows: int) -> None:
    study = some_runs(STUDIES[name], *(f"blocks4-books-{run}-seed0" for run in runs))
    first_steps(study, tmp_path, {"books": documents}, **smaller_blocks(study.sizes["paper"]))
    for run in runs:
        training = training_of(f"blocks4-books-{run}-seed0")
        assert is_the_blocks_recipe(training, 1.0, rows)
        config, more = training.model.config, 2 if name == "scale" else 1
        assert (config.num_attention_heads, config.head_dim, config.intermediate_size) == (2 * more, 8, 64 * more)


# --- Simple Recurrence Improves Masked Language Models ---------------------------------------------


def test_masked_models(tmp_path: Path) -> None:
    study = STUDIES["mlm"]
    paper = study.sizes["paper"]
    assert (paper.size, paper.changes, paper.rows, paper.tokens) == ("base", {}, 256, 1_000_000 * 256 * 512)
    assert (paper.rates, paper.warmup_steps, len(paper.tasks)) == ((1e-4,), 10_000, 10)
    positions = 32
    model = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    few = {"changes": {**model, "max_position_embeddings": positions}, "vocabulary": 300, "tasks": ("sst2",)}
    few |= {"train_bytes": 600_000, "held": 2, "held_tokens": 100, "tokens": 2 * 10_000 * 256 * positions}
    some = some_runs(study, "mlm-recurrent-stride2-seed0", "mlm-bert-seed0", "sst2-recurrent-stride1-seed0")
    outcomes = first_steps(some, tmp_path, {"text": "shakespeare", "glue": "made-up"}, **few)
    for name in ("bert", "recurrent-stride1", "recurrent-stride2"):
        training = training_of(f"mlm-{name}-seed0")
        assert training.rates == [[0], [pytest.approx(1e-4 / 10_000)]] and training.rows == 256
        assert training.optimizer == "AdamW" and {group["weight_decay"] for group in training.groups} == {0.01, 0}
        assert (training.arguments.lr_scheduler_type, training.arguments.warmup_steps) == ("linear", 10_000)
        config = training.model.config
        assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0.1
        assert recipe_of(tmp_path, f"mlm-{name}-seed0")["masked_share"] == 0.15
    tuned = FirstSteps.seen["sst2-recurrent-stride1-seed0"]
    assert [training.arguments.learning_rate for training in tuned] == list(paper.finetuning_rates)
    assert {(training.rows, training.arguments.num_train_epochs) for training in tuned} == {(32, 3)}
    assert len(outcomes["sst2-recurrent-stride1-seed0"]["results"]) == len(tuned) == 5


# --- at their full size ----------------------------------------------------------------------------


@pytest.fixture
def only_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FirstSteps, "steps", 1)


@pytest.mark.slow
def test_a_step_of_gpt2(only_one_step: None, tmp_path: Path) -> None:
    """Of one row, 20 windows of 300 tokens."""
    decoder = Decoder(name=saved(GPT2LMHeadModel(GPT2Config()), byte_tokenizer(), tmp_path / "gpt2"))
    name = "books-recurrent-window300-seed0"
    few = {"rows": 1, "rates": (5e-5,), "train_bytes": 100_000, "held": 2, "held_tokens": 310, "test_tokens": 310}
    study = some_runs(STUDIES["overlap-books"], name)
    outcomes = first_steps(study, tmp_path, SHAKESPEARE, decoder=decoder, **few, **MANY_TOKENS)
    assert outcomes[name]["tokens"] == 20 * 300 and outcomes[name]["parameters"] > 124_000_000


@pytest.mark.slow
def test_a_step_of_a_block_recurrent_model(only_one_step: None, tmp_path: Path) -> None:
    """Of one row, a segment of 4096 tokens."""
    name = "blocks12-books-bytes-rec-fixed-skip-seed0"
    few = {"tokens_per_step": 4096, "tokens": 2 * WARMUP * 4096, "train_bytes": 100_000, "held": 2, "held_tokens": 100}
    study = some_runs(STUDIES["gates"], name)
    outcomes = first_steps(study, tmp_path, dict.fromkeys(study.corpora["paper"], "shakespeare"), **few)
    assert outcomes[name]["tokens"] == 4096 and outcomes[name]["parameters"] > 150_000_000
