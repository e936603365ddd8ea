"""The runs of `mlm` and `stability`: BERT beside its recurrent twin at equal parameters. One set answers both.

Each seed pretrains every model anew, and fine-tunes it on every task with every learning rate: so an interval over
seeds has in it what pretraining and fine-tuning leave to chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoModelForMaskedLM, BertConfig, set_seed

from onward.data import Document
from onward.data.masked_rows import Hiding, PackedTexts
from onward.data.tokens import tokenize
from onward.finetuning import FinetuningRecipe, RunResult, sweep
from onward.finetuning.data import read
from onward.finetuning.results import scores_of
from onward.finetuning.tasks import task_of
from onward.models.pretrained import load_whole
from onward.models.recurrent_bert import preset
from onward.training import TrainingRecipe

from ..engine.made_up import made_up_glue
from ..engine.planning import Plan, plan_of
from ..engine.study import SWEEP, Outcome, Run, Setting, Work
from ..engine.training_runs import check_texts, some_of, tokenizer_of, train_once, vocabulary_run
from .word_order import losses

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "BERT": ("bert", {}),
    "recurrent, stride 1": ("recurrent-bert", {"stride": 1}),
    "recurrent, stride 2": ("recurrent-bert", {"stride": 2}),
}
BASE, OURS = "BERT", "recurrent, stride 1"


@dataclass(frozen=True)
class Sizes:
    """`rates` are tried on `probe_tokens` tokens, for both kinds of model, and the best on validation is taken.
    `scored_on`: of a task whose files are split otherwise, the split that has GLUE's validation."""

    size: str = "base"
    changes: Mapping[str, int] = field(default_factory=dict)
    vocabulary: int = 30_000
    tokens: int = 131_072_000_000
    rows: int = 256
    rates: tuple[float, ...] = (1e-4,)
    probe_tokens: int = 0
    warmup_steps: int = 10_000
    evaluate_every: int = 1_000_000_000
    train_bytes: int | None = None
    held: int = 1000
    held_tokens: int = 2000
    tasks: tuple[str, ...] = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "squad", "squad_v2")
    finetuning_rates: tuple[float, ...] = (1e-5, 2e-5, 3e-5, 4e-5, 5e-5)
    epochs: float = 3
    examples: Mapping[str, int] = field(default_factory=dict)
    finetuning_rows: int = 32
    group_by_length: bool = False
    scored_on: Mapping[str, str] = field(default_factory=dict)


SCALES = {
    "smoke": Sizes(
        changes={
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 48,
            "max_position_embeddings": 32,
        },
        vocabulary=300,
        tokens=3_000,
        rows=8,
        rates=(1e-3, 1e-2),
        probe_tokens=1_000,
        warmup_steps=2,
        evaluate_every=1_500,
        train_bytes=40_000,
        held=2,
        held_tokens=200,
        tasks=("sst2", "rte"),
        finetuning_rates=(1e-3, 1e-2),
        epochs=1,
    ),
    "laptop": Sizes(
        changes={
            # Narrow, so that it reads enough to learn more than how often words are: at a width of 256 that takes more
            # hours than a laptop has.
            "hidden_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "intermediate_size": 512,
            "max_position_embeddings": 128,
            "hidden_dropout_prob": 0,  # no text is read twice
            "attention_probs_dropout_prob": 0,
        },
        vocabulary=8_000,
        tokens=12_000_000,
        rows=16,
        rates=(5e-4, 1.5e-3, 4.5e-3),
        probe_tokens=1_200_000,
        warmup_steps=150,
        evaluate_every=1_000_000,
        train_bytes=60_000_000,
        held=60,
        tasks=("sst2", "cola", "rte", "stsb"),
        finetuning_rates=(3e-5, 6e-5, 1.2e-4, 2.5e-4, 5e-4),
        examples={"sst2": 5000},
        group_by_length=True,
    ),
    "paper": Sizes(),
}
CORPORA = {
    "smoke": {"text": "shakespeare", "glue": "made-up"},
    "laptop": {"text": "wikitext-103", "glue": "hub"},
    "paper": {"text": "hub:wikimedia/wikipedia:20231101.en", "glue": "hub"},
}


# --- runs ------------------------------------------------------------------------------------------


def runs(setting: Setting) -> list[Run]:
    sizes: Sizes = setting.sizes
    read = {"text": setting.corpora["text"], "train_bytes": sizes.train_bytes}
    vocabulary = vocabulary_run("wordpiece", sizes.vocabulary, partial(_training_texts, sizes), read, "text")
    probes = {
        kind: [_pretraining(setting, vocabulary, model, 0, rate, sizes.probe_tokens) for rate in sizes.rates]
        for kind, model in (("bert", BASE), ("recurrent-bert", OURS))
    }
    found = [vocabulary]
    if len(sizes.rates) > 1:
        found += [probe for group in probes.values() for probe in group]
    for seed in range(setting.seeds):
        pretrained = {name: _main(setting, vocabulary, name, seed, probes) for name in MODELS}
        found += pretrained.values()
        found += [_word_order(setting, name, seed, run.name) for name, run in pretrained.items()]
        found += [
            _finetuning(setting, task, name, seed, run.name) for name, run in pretrained.items() for task in sizes.tasks
        ]
    return found


def _pretraining(setting: Setting, vocabulary: Run, name: str, seed: int, rate: float, tokens: int) -> Run:
    settings = _pretraining_settings(setting, name, seed, tokens) | {"rate": rate}
    do = partial(_pretrain, setting, vocabulary.name, name, seed, rate, tokens)
    return Run(f"mlm-rate-{slug(name)}-{rate:g}", settings, do, (vocabulary.name,), tokens, outcome_only=True)


def _main(setting: Setting, vocabulary: Run, name: str, seed: int, probes: Mapping[str, Sequence[Run]]) -> Run:
    """With the learning rate that was best for its kind."""
    sizes: Sizes = setting.sizes
    kind = MODELS[name][0]
    tried = [run.name for run in probes[kind]] if len(sizes.rates) > 1 else []
    settings = _pretraining_settings(setting, name, seed, sizes.tokens) | {"rate": f"the best of {sizes.rates}"}

    def do(work: Work) -> Outcome:
        rate = work.best_rate(tried, sizes.rates[0])
        return _pretrain(setting, vocabulary.name, name, seed, rate, sizes.tokens, work)

    needs = (vocabulary.name, *tried)
    return Run(f"mlm-{slug(name)}-seed{seed}", settings, do, needs, sizes.tokens, plan=partial(_plan, sizes, name))


def _plan(sizes: Sizes, name: str) -> Plan:
    config = _config(sizes, name, sizes.vocabulary)
    build = partial(AutoModelForMaskedLM.from_config, config)
    return plan_of(build, config.max_position_embeddings, sizes.rows, sizes.tokens)


def _config(sizes: Sizes, name: str, vocabulary: int) -> BertConfig:
    kind, fields = MODELS[name]
    return preset(f"{kind}:{sizes.size}", vocab_size=vocabulary, **sizes.changes, **fields)


def _pretraining_settings(setting: Setting, name: str, seed: int, tokens: int) -> dict[str, Any]:
    shaping = ("size", "changes", "vocabulary", "rows", "warmup_steps", "evaluate_every", "train_bytes")
    sizes = {field: getattr(setting.sizes, field) for field in (*shaping, "held", "held_tokens")}
    return {"model": name, "seed": seed, "text": setting.corpora["text"], "tokens": tokens, **sizes}


def _pretrain(setting: Setting, vocabulary: str, name: str, seed: int, rate: float, tokens: int, work: Work) -> Outcome:
    sizes: Sizes = setting.sizes
    tokenizer = tokenizer_of(work, vocabulary)
    config = _config(sizes, name, len(tokenizer))
    tokenizer.model_max_length = config.max_position_embeddings
    set_seed(seed)
    model = AutoModelForMaskedLM.from_config(config)
    recipe = TrainingRecipe.preset(
        "masked",
        batch_size=sizes.rows,
        learning_rate=rate,
        warmup_steps=sizes.warmup_steps,
        max_tokens=tokens,
        epochs=1000,  # as often as `tokens` need
        evaluate_every_tokens=sizes.evaluate_every,
        seed=seed,
    )
    held_out = tokenize(work.corpus("text").validation[: sizes.held], tokenizer, sizes.held_tokens)
    texts = (f"text, {vocabulary}", partial(_training_texts, sizes, work))
    return train_once(work, model, texts, held_out, tokenizer, recipe)


def _training_texts(sizes: Sizes, work: Work) -> Sequence[Document]:
    return some_of(work.corpus("text").train, sizes.train_bytes)


def _word_order(setting: Setting, name: str, seed: int, pretrained: str) -> Run:
    sizes: Sizes = setting.sizes
    do = partial(_read_shuffled, sizes, pretrained, seed)
    settings = {"pretrained": pretrained}
    return Run(order_run(name, seed), settings, do, (pretrained,), sizes.held * sizes.held_tokens, by="first")


def order_run(name: str, seed: int) -> str:
    return f"word-order-{slug(name)}-seed{seed}"


def _read_shuffled(sizes: Sizes, pretrained: str, seed: int, work: Work) -> Outcome:
    if work.outcome_of(pretrained)["validation_loss"] is None:
        return {"seed": seed, "ended": (said := f"not done: {pretrained} ended with NaN"), "said": said}
    model = load_whole(AutoModelForMaskedLM, str(work.model_of(pretrained)))
    tokenizer = tokenizer_of(work, pretrained)
    hiding = Hiding.with_tokenizer(tokenizer, model.config.vocab_size, BERTS_SHARE, whole_words=False)
    documents = tokenize(work.corpus("text").validation[: sizes.held], tokenizer, sizes.held_tokens)
    # As in every validation: the same tokens are hidden.
    texts = PackedTexts(documents, model.config.max_position_embeddings, tokenizer, hiding, seed=None)
    assert tokenizer.pad_token_id is not None
    found = losses(model, texts, tokenizer.pad_token_id)
    said = f"{found['in_order']:.3f} nats in order, {found['shuffled']:.3f} shuffled"
    return {**found, "seed": seed, "tokens": sum(map(len, documents)), "said": said}


BERTS_SHARE = TrainingRecipe.preset("masked").masked_share


def _finetuning(setting: Setting, task: str, name: str, seed: int, pretrained: str) -> Run:
    sizes: Sizes = setting.sizes
    shaping = ("finetuning_rates", "epochs", "finetuning_rows", "group_by_length")
    settings = {field: getattr(sizes, field) for field in shaping} | {
        "task": task,
        "examples": sizes.examples.get(task),
        "pretrained": pretrained,
        "seed": seed,
        "glue": setting.corpora["glue"],
        "split": sizes.scored_on.get(task, "validation"),
    }
    size = len(sizes.finetuning_rates) * FINETUNING_TOKENS
    do = partial(_finetune, setting, task, name, seed, pretrained)
    name_of_run, parts = f"{task}-{slug(name)}-seed{seed}", len(sizes.finetuning_rates)
    return Run(name_of_run, settings, do, (pretrained,), size, parts, by="one")


FINETUNING_TOKENS = 360_000
"""About as long as a pretraining on so many takes a fine-tuning run at the laptop's scale: for the time left only."""


def _finetune(setting: Setting, task: str, name: str, seed: int, pretrained: str, work: Work) -> Outcome:
    sizes: Sizes = setting.sizes
    if work.outcome_of(pretrained)["validation_loss"] is None:
        said = f"not done: {pretrained} ended with NaN"
        return {"task": task, "model": name, "seed": seed, "results": [], "ended": said, "said": said}
    positions = sizes.changes.get("max_position_embeddings", 512)
    found = sweep(
        work.model_of(pretrained),
        task,
        work.folder / SWEEP,
        learning_rates=sizes.finetuning_rates,
        seeds=[seed],
        recipe=FinetuningRecipe(
            epochs=sizes.epochs,
            batch_size=sizes.finetuning_rows,
            group_by_length=sizes.group_by_length,
            train_examples=sizes.examples.get(task),
            max_length=min(128, positions) if not task.startswith("squad") else None,
        ),
        data=_glue(work),
        split=sizes.scored_on.get(task, "validation"),
        name=name,
        progress=work.display,
    )
    best = max(scores_of(found.results))
    kept = [f.name for f in fields(RunResult) if f.name not in LEFT_OUT]
    wanted = [result for result in found.results if result.learning_rate in sizes.finetuning_rates]
    results = [{name: getattr(result, name) for name in kept} for result in wanted]
    return {
        "task": task,
        "model": name,
        "seed": seed,
        "tokens": sum(result.tokens for result in wanted),
        "results": results,
        "said": f"best score {100 * best:.1f}",
    }


def _glue(work: Work) -> Path | None:
    """Where tasks are; None for the Hub."""
    place = work.setting.corpora["glue"]
    return made_up_glue(work.out / "made-up") if place == "made-up" else None if place == "hub" else Path(place)


def check(work: Work) -> None:
    check_texts(work, "text")
    sizes: Sizes = work.setting.sizes
    for task in sizes.tasks:
        read(task_of(task), _glue(work), sizes.scored_on.get(task, "validation"))


LEFT_OUT = ("path", "model", "history")


def slug(name: str) -> str:
    return name.lower().replace(", ", "-").replace(" ", "")
