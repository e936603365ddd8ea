"""The runs of `mlm` and `stability`: BERT beside its recurrent twin at equal parameters. Both studies have the same.

Each seed pretrains every model, and fine-tunes it on every task with every learning rate: so an interval over seeds
covers the chance in pretraining and in fine-tuning.
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

from ..engine.folders import SWEEP
from ..engine.made_up import made_up_glue
from ..engine.planning import RunPlan, plan_of
from ..engine.sizes import CountOrZero, LearningRates, by_scale, scales_of
from ..engine.study import Outcome, Run, StudySetting
from ..engine.texts import check_texts, some_of
from ..engine.trainings import not_done, recipe_of, tokenizer_of, train_once, vocabulary_run
from ..engine.trials import Training, Trials
from ..engine.work import Work
from .word_order import losses

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "BERT": ("bert", {}),
    "recurrent, stride 1": ("recurrent-bert", {"stride": 1}),
    "recurrent, stride 2": ("recurrent-bert", {"stride": 2}),
}
BASE, OURS = "BERT", "recurrent, stride 1"


PAPERS_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "squad", "squad_v2")


def _small(width: int, layers: int, heads: int, intermediate: int, positions: int) -> dict[str, int]:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {**sizes, "intermediate_size": intermediate, "max_position_embeddings": positions}


@dataclass(frozen=True)
class MaskedSizes:
    """`rates` are tried on `probe_tokens`, for both kinds of model, and the best on validation is taken. `scored_on`:
    by task, the split that has GLUE's validation examples, if it has another name."""

    size: str = "base"
    # On a laptop narrow, so that it sees enough text to learn more than how common words are: at a width of 256 that
    # takes more hours than a laptop has. Without dropout there, as no text is repeated.
    changes: Mapping[str, int] = by_scale(
        _small(32, 2, 2, 48, 32),
        _small(128, 4, 4, 512, 128) | {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0},
        {},
    )
    vocabulary: int = by_scale(300, 8_000, 30_000)
    tokens: int = by_scale(3_000, 12_000_000, 131_072_000_000)
    rows: int = by_scale(8, 16, 256)
    rates: LearningRates = by_scale((1e-3, 1e-2), (5e-4, 1.5e-3, 4.5e-3), (1e-4,))
    probe_tokens: int = by_scale(1_000, 1_200_000, 0)
    warmup_steps: CountOrZero = by_scale(2, 150, 10_000)
    evaluate_every: int = by_scale(1_500, 1_000_000, 1_000_000_000)
    train_bytes: int | None = by_scale(40_000, 60_000_000, None)
    held: int = by_scale(2, 60, 1000)
    held_tokens: int = by_scale(200, 2000)
    tasks: tuple[str, ...] = by_scale(("sst2", "rte"), ("sst2", "cola", "rte", "stsb"), PAPERS_TASKS)
    finetuning_rates: LearningRates = by_scale(
        (1e-3, 1e-2), (3e-5, 6e-5, 1.2e-4, 2.5e-4, 5e-4), (1e-5, 2e-5, 3e-5, 4e-5, 5e-5)
    )
    epochs: float = by_scale(1, 3)
    examples: Mapping[str, int] = by_scale({}, {"sst2": 5000}, {})
    finetuning_rows: int = 32
    group_by_length: bool = by_scale(False, True, False)
    scored_on: Mapping[str, str] = field(default_factory=dict)


SCALES = scales_of(MaskedSizes)
CORPORA = {
    "smoke": {"text": "shakespeare", "glue": "made-up"},
    "laptop": {"text": "wikitext-103", "glue": "hub"},
    "paper": {"text": "hub:wikimedia/wikipedia:20231101.en", "glue": "hub"},
}


def runs(setting: StudySetting) -> list[Run]:
    sizes: MaskedSizes = setting.sizes
    texts = {"text": setting.corpora["text"], "train_bytes": sizes.train_bytes}
    vocabulary = vocabulary_run("wordpiece", sizes.vocabulary, partial(_training_texts, sizes), texts, "text")
    trials = Trials(sizes.rates)
    for name in (BASE, OURS):
        trials.add(MODELS[name][0], _pretraining(setting, vocabulary.name, name, 0, trial=True))
    found = [vocabulary, *trials.runs]
    for seed in range(setting.seeds):
        pretrained = {
            name: trials.main(kind, _pretraining(setting, vocabulary.name, name, seed))
            for name, (kind, _) in MODELS.items()
        }
        found += pretrained.values()
        found += [_word_order(setting, name, seed, run.name) for name, run in pretrained.items()]
        found += [
            _finetuning(setting, task, name, seed, run.name) for name, run in pretrained.items() for task in sizes.tasks
        ]
    return found


def slug(name: str) -> str:
    return name.lower().replace(", ", "-").replace(" ", "")


# --- pretraining


def pretrained_run(name: str, seed: int) -> str:
    return f"mlm-{slug(name)}-seed{seed}"


def _pretraining(setting: StudySetting, vocabulary: str, name: str, seed: int, trial: bool = False) -> Training:
    sizes: MaskedSizes = setting.sizes
    tokens = sizes.probe_tokens if trial else sizes.tokens
    shaping = ("size", "changes", "vocabulary", "rows", "warmup_steps", "evaluate_every", "train_bytes")
    own = {field: getattr(sizes, field) for field in (*shaping, "held", "held_tokens")}
    return Training(
        f"mlm-rate-{slug(name)}" if trial else pretrained_run(name, seed),
        {"model": name, "seed": seed, "text": setting.corpora["text"], "tokens": tokens, **own},
        partial(_pretrain, sizes, vocabulary, name, seed, tokens),
        (vocabulary,),
        tokens,
        partial(_plan, sizes, name),
    )


def _plan(sizes: MaskedSizes, name: str) -> RunPlan:
    config = _config(sizes, name, sizes.vocabulary)
    build = partial(AutoModelForMaskedLM.from_config, config)
    return plan_of(build, config.max_position_embeddings, sizes.rows, sizes.tokens)


def _config(sizes: MaskedSizes, name: str, vocabulary: int) -> BertConfig:
    kind, fields = MODELS[name]
    return preset(f"{kind}:{sizes.size}", vocab_size=vocabulary, **sizes.changes, **fields)


def _pretrain(
    sizes: MaskedSizes, vocabulary: str, name: str, seed: int, tokens: int, rate: float, work: Work
) -> Outcome:
    tokenizer = tokenizer_of(work, vocabulary)
    config = _config(sizes, name, len(tokenizer))
    tokenizer.model_max_length = config.max_position_embeddings
    set_seed(seed)
    model = AutoModelForMaskedLM.from_config(config)
    recipe = recipe_of("masked", sizes, rate, tokens, seed, batch_size=sizes.rows)
    held_out = tokenize(work.corpus("text").validation[: sizes.held], tokenizer, sizes.held_tokens)
    texts = (f"text, {vocabulary}", partial(_training_texts, sizes, work))
    return train_once(work, model, texts, held_out, tokenizer, recipe)


def _training_texts(sizes: MaskedSizes, work: Work) -> Sequence[Document]:
    return some_of(work.corpus("text").train, sizes.train_bytes)


# --- evaluation without the order of words


def _word_order(setting: StudySetting, name: str, seed: int, pretrained: str) -> Run:
    sizes: MaskedSizes = setting.sizes
    do = partial(_measure_word_order, sizes, pretrained, seed)
    settings = {"pretrained": pretrained}
    return Run(order_run(name, seed), settings, do, (pretrained,), sizes.held * sizes.held_tokens, by="first")


def order_run(name: str, seed: int) -> str:
    return f"word-order-{slug(name)}-seed{seed}"


def _measure_word_order(sizes: MaskedSizes, pretrained: str, seed: int, work: Work) -> Outcome:
    if work.outcome_of(pretrained)["validation_loss"] is None:
        return not_done(pretrained, seed=seed)
    model = load_whole(AutoModelForMaskedLM, str(work.model_of(pretrained)))
    tokenizer = tokenizer_of(work, pretrained)
    hiding = Hiding.with_tokenizer(tokenizer, model.config.vocab_size, BERTS_SHARE, whole_words=False)
    documents = tokenize(work.corpus("text").validation[: sizes.held], tokenizer, sizes.held_tokens)
    # Without a seed, the same tokens are hidden as in every validation.
    texts = PackedTexts(documents, model.config.max_position_embeddings, tokenizer, hiding, seed=None)
    assert tokenizer.pad_token_id is not None
    found = losses(model, texts, tokenizer.pad_token_id)
    said = f"{found['in_order']:.3f} nats in order, {found['shuffled']:.3f} shuffled"
    return {**found, "seed": seed, "tokens": sum(map(len, documents)), "said": said}


BERTS_SHARE = TrainingRecipe.preset("masked").masked_share


# --- fine-tuning


def finetuning_run(task: str, name: str, seed: int) -> str:
    return f"{task}-{slug(name)}-seed{seed}"


def _finetuning(setting: StudySetting, task: str, name: str, seed: int, pretrained: str) -> Run:
    sizes: MaskedSizes = setting.sizes
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
    parts = len(sizes.finetuning_rates)
    return Run(finetuning_run(task, name, seed), settings, do, (pretrained,), size, parts, by="one")


FINETUNING_TOKENS = 360_000
"""At the laptop's scale, pretraining on this many takes as long as one fine-tuning: for the time left only."""


def _finetune(setting: StudySetting, task: str, name: str, seed: int, pretrained: str, work: Work) -> Outcome:
    sizes: MaskedSizes = setting.sizes
    if work.outcome_of(pretrained)["validation_loss"] is None:
        return not_done(pretrained, task=task, model=name, seed=seed, results=[])
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
        progress=work.display or False,
    )
    best = max(scores_of(found.results))
    kept = [f.name for f in fields(RunResult) if f.name not in ("path", "model", "history")]
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
    """The folder of the tasks; None for the Hub."""
    place = work.setting.corpora["glue"]
    return made_up_glue(work.out / "made-up") if place == "made-up" else None if place == "hub" else Path(place)


def check(work: Work) -> None:
    check_texts(work, "text")
    sizes: MaskedSizes = work.setting.sizes
    for task in sizes.tasks:
        read(task_of(task), _glue(work), sizes.scored_on.get(task, "validation"))
