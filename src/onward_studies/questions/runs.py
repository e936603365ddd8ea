"""Runs of studies of questions: a reader for every variant and seed is trained and tested."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    RobertaConfig,
    set_seed,
)

from onward import add_recurrence
from onward.data import Document
from onward.data.questions import SPAN
from onward.data.vocabularies import train_vocabulary
from onward.models.pretrained import load_backbone
from onward.models.window_recurrent import WindowRecurrentForSequenceClassification
from onward.training import NonFiniteLossError
from onward.training.checkpoints import UNFINISHED, discard_unfinished
from onward.utils.files import put_all_in_place
from onward.utils.safe_json import write_json

from ..engine.folders import MODEL
from ..engine.made_up import made_up_questions
from ..engine.planning import RunPlan, plan_of
from ..engine.sizes import all_but
from ..engine.study import Outcome, Run, StudySetting
from ..engine.texts import ORDER_SEED
from ..engine.trainings import has_bf16
from ..engine.trials import Training, Trials
from ..engine.work import Work
from .answering import answer, answer_own_and_swapped
from .reader import InOrder, QuestionReader, Recipe, collate, learn, span_head
from .scores import Answers
from .task import (
    DISJOINT,
    MADE_UP,
    OURS,
    PreparedQuestions,
    QuestionSizes,
    QuestionTask,
    carries,
    prepare,
    slug,
    variants,
)


def runs(task: QuestionTask, setting: StudySetting) -> list[Run]:
    """Trials of learning rates for disjoint windows and for recurrence, and every variant with every seed."""
    trials = Trials(setting.sizes.rates)
    for name in (DISJOINT, OURS):
        trials.add(name, _training(task, setting, name, 0, trial=True))
    mains = [
        trials.main(DISJOINT if name == DISJOINT else OURS, _training(task, setting, name, seed))
        for seed in range(setting.seeds)
        for name in variants(setting.sizes)
    ]
    return [*trials.runs, *mains]


def _training(task: QuestionTask, setting: StudySetting, name: str, seed: int, trial: bool = False) -> Training:
    sizes: QuestionSizes = setting.sizes
    questions, epochs = (sizes.probe_questions, 1) if trial else (sizes.questions, sizes.epochs)
    return Training(
        f"{task.name}-rate-{slug(name)}" if trial else task.run_name(name, seed),
        _settings(setting, name, seed, questions, epochs),
        partial(_train, task, setting, name, seed, questions, epochs, not trial),
        (),
        epochs * task.tokens(setting, questions),
        partial(plan, task, setting, name),
        by="one",
    )


def _settings(setting: StudySetting, name: str, seed: int, questions: int, epochs: int) -> dict[str, Any]:
    left_out = ("questions", "epochs", "rates", "probe_questions", "checkpoint_every", "checkpointing")
    sizes = all_but(setting.sizes, QuestionSizes, left_out)
    drawn = {"questions": questions, "of": setting.sizes.questions, "epochs": epochs, "seed": seed, "order": ORDER_SEED}
    return {**sizes, **drawn, "variant": name, "corpora": dict(setting.corpora)}


# --- plans


def plan(task: QuestionTask, setting: StudySetting, name: str) -> RunPlan:
    """Of the encoder, which does nearly all of the work. All windows of a question are kept for their gradients, unless
    there are checkpoints at the bottleneck."""
    sizes: QuestionSizes = setting.sizes
    config = variants(sizes)[name]
    config.backbone, config.head, config.causal = roberta(task.kinds), "sequence-classification", False
    with torch.device("meta"):
        reader = WindowRecurrentForSequenceClassification(config)
        mask = torch.zeros(1, 1, sizes.window, sizes.window)  # without one, transformers needs values to make it
    known = setting.corpora["train"] == task.planned_for
    tokens = sizes.epochs * task.tokens(setting, sizes.questions) if known else None
    read = plan_of(lambda: reader.backbone, sizes.window, sizes.rows, tokens, sizes.checkpointing, attention_mask=mask)
    room = sizes.window - task.question_tokens
    windows = 1 if sizes.checkpointing else -(-task.tokens(setting, 1) // room)
    of_span_head = 2 * config.hidden_size + 2 if SPAN in task.kinds else 0
    return replace(
        read,
        parameters=reader.num_parameters() + of_span_head,
        flops_per_token=read.flops_per_token * sizes.window / room,  # the question is in every window
        kept=windows * read.kept,
    )


def roberta(kinds: Sequence[str]) -> RobertaConfig:
    """The configuration of roberta-base, without downloading it."""
    return RobertaConfig(
        vocab_size=50_265,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        max_position_embeddings=514,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        id2label=dict(enumerate(kinds)),
    )


# --- models


def load_encoder(sizes: QuestionSizes, kinds: Sequence[str]) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """With a new head for the kinds of answers."""
    if sizes.encoder != MADE_UP:
        return load_backbone(sizes.encoder, AutoModelForSequenceClassification, num_labels=len(kinds))
    texts = [Document(q.id, f"{q.question} {q.context}") for q in made_up_questions(60, 0)]
    tokenizer = train_vocabulary(texts, 300, "wordpiece")
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
        id2label=dict(enumerate(kinds)),
    )
    return BertForSequenceClassification(config), tokenizer


def build(
    sizes: QuestionSizes, kinds: Sequence[str], name: str, seed: int
) -> tuple[QuestionReader, PreTrainedTokenizerBase]:
    """Heads are initialized before the carrier, so they are the same for all variants of a seed."""
    set_seed(seed)
    encoder, tokenizer = load_encoder(sizes, kinds)
    spans = span_head(encoder.config) if SPAN in kinds else None
    model = QuestionReader(add_recurrence(encoder, variants(sizes)[name]), spans, kinds)
    if sizes.checkpointing:
        model.reader.gradient_checkpointing_enable()
    return model, tokenizer


# --- training and testing


def _train(
    task: QuestionTask,
    setting: StudySetting,
    name: str,
    seed: int,
    questions: int,
    epochs: int,
    tested: bool,
    rate: float,
    work: Work,
) -> Outcome:
    sizes: QuestionSizes = setting.sizes
    model, tokenizer = build(sizes, task.kinds, name, seed)
    prepared: PreparedQuestions = work.once("questions", lambda: prepare(task, setting, tokenizer))
    padding = tokenizer.pad_token_id
    train = prepared.train[:questions]
    bf16 = work.in_bf16(has_bf16())
    facts = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "learning_rate": rate,
        "seed": seed,
        "bf16": bf16,
        "questions": len(train),
        "tokens": epochs * sum(map(len, train)),
        "without_span": sum(q.answer is None and q.question.kind == SPAN for q in train),
        "left_out": prepared.left_out,
    }
    collator = partial(collate, padding=padding, kinds=task.kinds)
    recipe = Recipe(rate, sizes.carrier_rate, sizes.rows, sizes.warmup, seed, sizes.checkpoint_every, bf16)
    callbacks = [work.display] if work.display else []
    started = time.monotonic()
    try:
        ordered = InOrder(train, sizes.rows, epochs, seed)
        curve = learn(model, ordered, collator, recipe, work.folder / MODEL, callbacks)
        seconds = time.monotonic() - started
        validation = answer(model, prepared.held, padding, sizes.rows)
        _require_numbers(validation)
    except NonFiniteLossError as error:
        return {**facts, "validation_loss": None, "ended": str(error), "said": str(error)}
    outcome = {**facts, "validation_loss": validation.loss, "training_seconds": seconds, "curve": curve}
    if not tested:
        return {**outcome, "said": f"validation loss {validation.loss:.4f}"}
    if carries(name):
        read = answer_own_and_swapped(model, prepared.test, padding, sizes.rows)
    else:
        read = {"true": answer(model, prepared.test, padding, sizes.rows)}
    _save(work, model, tokenizer, read["true"])
    scores = {reading: task.scores(answers) for reading, answers in read.items()}
    return {**outcome, "read": {reading: asdict(s) for reading, s in scores.items()}, "said": str(scores["true"])}


def _require_numbers(answers: Answers) -> None:
    if not torch.tensor(answers.loss).isfinite():
        raise NonFiniteLossError(f"after training the validation loss is {answers.loss}")


def _save(work: Work, model: QuestionReader, tokenizer: PreTrainedTokenizerBase, answers: Answers) -> None:
    """The encoder, its span head, and the answers in the form that HotpotQA's official script scores."""
    folder = work.folder / MODEL
    discard_unfinished(folder)
    unfinished = folder / UNFINISHED
    model.reader.save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    if model.spans is not None:
        save_file(model.spans.state_dict(), unfinished / "spans.safetensors")
    put_all_in_place(unfinished, folder)
    found = {question.id: text for question, text in zip(answers.questions, answers.texts, strict=True)}
    write_json(work.folder / "answers.json", {"answer": found, "sp": {}})
