"""`hotpotqa`: Table 3 of "Adding Recurrence to Pretrained Transformers": ten paragraphs in windows."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from matplotlib.figure import Figure
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

from .. import WindowRecurrenceConfig, add_recurrence
from ..corpora import Document
from ..models.window_recurrent import WindowRecurrentForSequenceClassification
from ..pretrained import load_backbone
from ..questions import KINDS, EncodedQuestion, Question, encode_questions, load_questions, with_distractors
from ..training import NonFiniteLossError
from ..training.checkpoints import write_json
from ..training.many_runs import RunsProgress
from ..vocabularies import train_vocabulary
from .intervals import Interval, cell, over, verdict
from .made_up import made_up_questions
from .planning import Plan, plan_of
from .question_reader import LONGEST_ANSWER, Answers, InOrder, QuestionReader, Recipe, answer, collate, learn, span_head
from .reporting import Claim, Report, Table
from .study import MODEL, Outcome, Run, Setting, Study, Work
from .training_runs import ORDER_SEED

MADE_UP = "made-up"
HOTPOTQA = "hub:hotpotqa/hotpot_qa:distractor"
CORPORA = {
    "smoke": {"train": MADE_UP, "test": MADE_UP},
    "laptop": {"train": "hub:rajpurkar/squad", "test": HOTPOTQA},
    "paper": {"train": HOTPOTQA, "test": HOTPOTQA},
}
DISJOINT, PAPERS, OURS, CONSTANT = "disjoint windows", "recurrent, the paper's", "recurrent", "constant"
PAPER = {DISJOINT: (48.17, 43.55), PAPERS: (49.12, 44.55)}  # F1 and exact match


@dataclass(frozen=True)
class Sizes:
    """Of the training questions, `distractors` paragraphs added to each, `held` are for validation and `questions`
    others are learned from; `tested`, so many of the test questions. `rates` are tried on `probe_questions`, for
    disjoint windows and for recurrence, and the best on validation are taken. `carrier_rate`: of the carrier, if it is
    not that of all. How many `rows` are in a step the paper does not tell."""

    encoder: str = "roberta-base"
    window: int = 512
    distractors: int = 0
    questions: int = 30_000
    held: int = 1000
    tested: int | None = None
    epochs: int = 4
    rows: int = 16
    rates: tuple[float, ...] = (2e-5,)
    carrier_rate: float | None = None
    probe_questions: int = 0
    warmup: float = 0.1
    checkpoint_every: int = 500
    checkpointing: bool = False


SCALES = {
    "smoke": Sizes(
        encoder=MADE_UP,
        window=24,
        distractors=1,
        questions=60,
        held=12,
        tested=18,
        epochs=1,
        rows=6,
        rates=(1e-3, 3e-3),
        probe_questions=18,
        checkpoint_every=50,
    ),
    "laptop": Sizes(
        encoder="minilm-l6",
        window=128,
        distractors=2,
        questions=2000,
        held=100,
        tested=500,
        epochs=1,
        rows=4,
        rates=(3e-4, 6e-4, 1.2e-3),
        carrier_rate=1e-3,
        probe_questions=300,
        checkpoint_every=25,
    ),
    "paper": Sizes(),
}


def variants(sizes: Sizes) -> dict[str, WindowRecurrenceConfig]:
    ours = WindowRecurrenceConfig(window=sizes.window)
    return {
        DISJOINT: WindowRecurrenceConfig(carrier="none", window=sizes.window),
        CONSTANT: ours.with_carrier("constant"),
        PAPERS: WindowRecurrenceConfig.preset("encoder", window=sizes.window),
        OURS: ours,
    }


# --- questions -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepared:
    """Encoded questions: to learn from, for validation, and to be scored on."""

    train: list[EncodedQuestion]
    held: list[EncodedQuestion]
    test: list[EncodedQuestion]


def prepare(setting: Setting, tokenizer: PreTrainedTokenizerBase) -> Prepared:
    encode = partial(encode_questions, tokenizer=tokenizer, longest_question=setting.sizes.window // 2)
    train, held = chosen_questions(setting)
    return Prepared(encode(train), encode(held), encode(questions_of(setting, "test")[: setting.sizes.tested]))


def chosen_questions(setting: Setting) -> tuple[list[Question], list[Question]]:
    """To learn from, and for validation: a random part, the same for every run. No paragraph is in both."""
    sizes: Sizes = setting.sizes
    read = questions_of(setting, "train")
    shuffled = random.Random(ORDER_SEED).sample(read, len(read))
    held = shuffled[: sizes.held]
    of_held = {paragraph for question in held for paragraph in question.paragraphs}
    train = [question for question in shuffled[sizes.held :] if of_held.isdisjoint(question.paragraphs)]
    if not train:
        place = setting.corpora["train"]
        raise ValueError(
            f"{place} has {len(read)} questions: held={sizes.held} of them leave none to learn from; hold fewer"
        )
    train = train[: sizes.questions]
    if sizes.distractors:
        train, held = (with_distractors(some, sizes.distractors, ORDER_SEED) for some in (train, held))
    return train, held


def questions_of(setting: Setting, name: str) -> list[Question]:
    place = setting.corpora[name]
    if place == MADE_UP:
        sizes: Sizes = setting.sizes
        return made_up_questions(sizes.questions + sizes.held, 0) if name == "train" else made_up_questions(100, 1)
    return load_questions(place, "train" if name == "train" else "validation")


def check(work: Work) -> None:
    """Questions that cannot be read are found before hours are spent."""
    chosen_questions(work.setting)
    questions_of(work.setting, "test")


def load_encoder(sizes: Sizes) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """With a head for three kinds of answer, drawn anew."""
    if sizes.encoder != MADE_UP:
        return load_backbone(sizes.encoder, AutoModelForSequenceClassification, num_labels=len(KINDS))
    texts = [Document(q.id, f"{q.question} {q.context}") for q in made_up_questions(60, 0)]
    tokenizer = train_vocabulary(texts, 300, "wordpiece")
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
        id2label=dict(enumerate(KINDS)),
    )
    return BertForSequenceClassification(config), tokenizer


# --- runs ------------------------------------------------------------------------------------------


def runs(setting: Setting) -> list[Run]:
    """Trials of learning rates, and every variant with every seed."""
    sizes: Sizes = setting.sizes
    tried = {kind: _trials(setting, kind) for kind in (DISJOINT, OURS)} if len(sizes.rates) > 1 else {}
    main = [_main(setting, name, seed, tried) for seed in range(setting.seeds) for name in variants(sizes)]
    return [*(trial for of_kind in tried.values() for trial in of_kind), *main]


def run_name(name: str, seed: int) -> str:
    return f"hotpotqa-{_slug(name)}-seed{seed}"


def _slug(name: str) -> str:
    return name.replace(", the ", "-").replace("'s", "").replace(" ", "-")


def _trials(setting: Setting, name: str) -> list[Run]:
    sizes: Sizes = setting.sizes
    return [
        Run(
            f"hotpotqa-rate-{_slug(name)}-{rate:g}",
            _settings(setting, name, 0, sizes.probe_questions, 1) | {"rate": rate},
            partial(_train, setting, name, 0, rate, sizes.probe_questions, 1),
            size=_tokens(sizes, sizes.probe_questions),
            by="one",
        )
        for rate in sizes.rates
    ]


def _main(setting: Setting, name: str, seed: int, trials: Mapping[str, Sequence[Run]]) -> Run:
    """With the learning rate that was best: of disjoint windows, or of recurrence."""
    sizes: Sizes = setting.sizes
    tried = [run.name for run in trials.get(DISJOINT if name == DISJOINT else OURS, ())]

    def do(work: Work) -> Outcome:
        rate = work.best_rate(tried, sizes.rates[0])
        return _train(setting, name, seed, rate, sizes.questions, sizes.epochs, work, tested=True)

    return Run(
        run_name(name, seed),
        _settings(setting, name, seed, sizes.questions, sizes.epochs) | {"rate": f"the best of {sizes.rates}"},
        do,
        tuple(tried),
        sizes.epochs * _tokens(sizes, sizes.questions),
        plan=partial(_plan, setting, name),
        by="one",
    )


def _settings(setting: Setting, name: str, seed: int, questions: int, epochs: int) -> dict[str, Any]:
    left_out = ("questions", "epochs", "rates", "probe_questions", "checkpoint_every", "checkpointing")
    sizes = {f.name: getattr(setting.sizes, f.name) for f in fields(Sizes) if f.name not in left_out}
    drawn = {"questions": questions, "of": setting.sizes.questions, "epochs": epochs, "seed": seed}
    return {**sizes, **drawn, "variant": name, "corpora": dict(setting.corpora)}


PARAGRAPH_TOKENS, QUESTION_TOKENS, PARAGRAPHS = 125, 25, 10
"""Of HotpotQA, about: for the time left, and for plans."""


def _tokens(sizes: Sizes, questions: int) -> int:
    paragraphs = 1 + sizes.distractors if sizes.distractors else PARAGRAPHS
    return questions * (paragraphs * PARAGRAPH_TOKENS + QUESTION_TOKENS)


def build(sizes: Sizes, name: str, seed: int) -> tuple[QuestionReader, PreTrainedTokenizerBase]:
    """Heads are drawn before the carrier: they are the same for all variants of a seed."""
    set_seed(seed)
    encoder, tokenizer = load_encoder(sizes)
    spans = span_head(encoder.config)
    model = QuestionReader(add_recurrence(encoder, variants(sizes)[name]), spans)
    if sizes.checkpointing:
        model.reader.gradient_checkpointing_enable()
    return model, tokenizer


def _train(
    setting: Setting,
    name: str,
    seed: int,
    rate: float,
    questions: int,
    epochs: int,
    work: Work,
    tested: bool = False,
) -> Outcome:
    sizes: Sizes = setting.sizes
    model, tokenizer = build(sizes, name, seed)
    prepared = prepare(setting, tokenizer)
    padding = tokenizer.pad_token_id
    ordered = InOrder(prepared.train[:questions], sizes.rows, epochs, seed)
    facts = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "learning_rate": rate,
        "seed": seed,
        "questions": min(questions, len(prepared.train)),
        "without_span": sum(q.answer is None and q.question.kind == KINDS[0] for q in prepared.train[:questions]),
    }
    recipe = Recipe(rate, sizes.carrier_rate, sizes.rows, sizes.warmup, seed, sizes.checkpoint_every)
    callbacks = [work.display] if isinstance(work.display, RunsProgress) else []
    started = time.monotonic()
    try:
        learn(model, ordered, partial(collate, padding=padding), recipe, work.folder / MODEL, callbacks)
        seconds = time.monotonic() - started
        validation = answer(model, prepared.held, padding, sizes.rows)
        _require_numbers(validation)
    except NonFiniteLossError as error:
        return {**facts, "validation_loss": None, "ended": str(error), "said": str(error)}
    outcome = {**facts, "validation_loss": validation.loss, "training_seconds": seconds}
    if not tested:
        return {**outcome, "said": f"validation loss {validation.loss:.4f}"}
    read = {"true": answer(model, prepared.test, padding, sizes.rows)}
    if carries(name):
        read["swapped"] = answer(model, prepared.test, padding, sizes.rows, swapped=True)
    _save(work, model, tokenizer, read["true"])
    scores = {reading: asdict(answers.scores()) for reading, answers in read.items()}
    said = f"F1 {scores['true']['f1']:.2f}, exact match {scores['true']['exact_match']:.2f}"
    return {**outcome, "read": scores, "said": said}


def carries(name: str) -> bool:
    return name in (PAPERS, OURS)


def _require_numbers(answers: Answers) -> None:
    if not torch.tensor(answers.loss).isfinite():
        raise NonFiniteLossError(f"after training the validation loss is {answers.loss}")


def _save(work: Work, model: QuestionReader, tokenizer: PreTrainedTokenizerBase, answers: Answers) -> None:
    """The encoder, its span head, and the answers in the form that HotpotQA's official script scores."""
    folder = work.folder / MODEL
    model.reader.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_file(model.spans.state_dict(), folder / "spans.safetensors")
    found = {question.id: text for question, text in zip(answers.questions, answers.texts, strict=True)}
    write_json(work.folder / "answers.json", {"answer": found, "sp": {}})


# --- at the paper's scale --------------------------------------------------------------------------


def _plan(setting: Setting, name: str) -> Plan:
    """Of the encoder, which does nearly all of the work: windows of a question are all kept for their gradients,
    without checkpoints at the bottleneck."""
    sizes: Sizes = setting.sizes
    config = variants(sizes)[name]
    config.backbone, config.head, config.causal = _roberta(), "sequence-classification", False
    with torch.device("meta"):
        reader = WindowRecurrentForSequenceClassification(config)
        mask = torch.zeros(1, 1, sizes.window, sizes.window)  # without one, transformers looks at values to make it
    known = setting.corpora["train"] == HOTPOTQA
    tokens = sizes.epochs * _tokens(sizes, sizes.questions) if known else None
    read = plan_of(lambda: reader.backbone, sizes.window, sizes.rows, tokens, sizes.checkpointing, attention_mask=mask)
    room = sizes.window - QUESTION_TOKENS
    windows = 1 if sizes.checkpointing else -(-_tokens(sizes, 1) // room)
    return replace(
        read,
        parameters=reader.num_parameters() + 2 * config.hidden_size + 2,
        flops_per_token=read.flops_per_token * sizes.window / room,  # every window reads the question again
        kept=windows * read.kept,
    )


def _roberta() -> RobertaConfig:
    """roberta-base's, without fetching it."""
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
        id2label=dict(enumerate(KINDS)),
    )


# --- what they come to -----------------------------------------------------------------------------


class Found:
    """Looks up scores on test questions: a number for each seed that has ended."""

    def __init__(self, setting: Setting, outcomes: Mapping[str, Outcome]):
        self.seeds, self.outcomes = setting.seeds, outcomes

    def ended(self, name: str) -> dict[int, Outcome]:
        names = {seed: run_name(name, seed) for seed in range(self.seeds)}
        return {seed: self.outcomes[run] for seed, run in names.items() if "read" in self.outcomes.get(run, {})}

    def of(self, name: str, value: str = "f1", read: str = "true") -> dict[int, float]:
        return {s: o["read"][read][value] for s, o in self.ended(name).items() if read in o["read"]}

    def of_kind(self, name: str, kind: str) -> dict[int, float]:
        by_kind = {seed: outcome["read"]["true"]["by_kind"] for seed, outcome in self.ended(name).items()}
        return {seed: found[kind]["f1"] for seed, found in by_kind.items() if kind in found}


def report(setting: Setting, outcomes: Mapping[str, Outcome]) -> Report:
    sizes: Sizes = setting.sizes
    found = Found(setting, outcomes)
    rows, kinds = [], []
    for name in variants(sizes):
        ended = found.ended(name)
        if not ended:
            continue
        first = next(iter(ended.values()))
        told = [f"{number:.2f}" for number in PAPER[name]] if name in PAPER else ["", ""]
        gain = "" if name == DISJOINT else cell(over(found.of(name), found.of(DISJOINT)), 2)
        rows.append([name, f"{first['learning_rate']:g}", *_cells(found, name, "true"), gain, *told])
        kinds.append([name, *(cell(found.of_kind(name, kind), 2) for kind in KINDS)])
        if swapped := found.of(name, read="swapped"):
            gain = cell(over(swapped, found.of(DISJOINT)), 2)
            rows.append([f"{name}, swapped", "", *_cells(found, name, "swapped"), gain, "", ""])
    claims = _claims(found)
    summary = " ".join(f"{claim.claim}: {claim.verdict} ({claim.we_saw})." for claim in claims)
    tables = [Table("Table 3: HotpotQA", COLUMNS, rows), Table("F1 by kind of answer", ("model", *KINDS), kinds)]
    return Report(
        "Question answering over many windows",
        summary or "Too little has run to say anything yet.",
        tables if rows else [],
        {"f1_and_exact_match": plot(found, sizes)} if rows else {},
        claims,
        _notes(setting, outcomes),
    )


COLUMNS = (
    "model",
    "learning rate",
    "span loss, nats",
    "F1",
    "exact match",
    "F1 over disjoint",
    "paper, F1",
    "paper, exact match",
)


def _cells(found: Found, name: str, read: str) -> list[str]:
    values = (("span_loss", 3), ("f1", 2), ("exact_match", 2))
    return [cell(found.of(name, value, read), digits) for value, digits in values]


def _claims(found: Found) -> list[Claim]:
    told = [f"{PAPER[DISJOINT][i]:.2f} -> {PAPER[PAPERS][i]:.2f}" for i in (0, 1)]
    exact = partial(found.of, value="exact_match")
    compared = [
        ("Recurrence as in the paper raises F1 over disjoint windows", told[0], found.of(PAPERS), found.of(DISJOINT)),
        ("and exact match", told[1], exact(PAPERS), exact(DISJOINT)),
        ("Recurrence with residual vectors raises F1 (ours)", "not tested", found.of(OURS), found.of(DISJOINT)),
        ("and over a constant in its place (ours)", "not tested", found.of(OURS), found.of(CONSTANT)),
        (
            "It is the memory's content: another question's is worse (ours)",
            "not tested",
            found.of(OURS),
            found.of(OURS, read="swapped"),
        ),
    ]
    claims = []
    for claim, saw, ours, theirs in compared:
        gain = over(ours, theirs)
        if gain is not None:
            claims.append(Claim(claim, saw, f"{gain.text(2)} points better", verdict(gain)))
    loss = partial(found.of, value="span_loss")
    for claim, ours, theirs in (
        ("Recurrence with residual vectors lowers the loss of spans (ours)", loss(OURS), loss(DISJOINT)),
        ("and below another question's memory (ours)", loss(OURS), loss(OURS, read="swapped")),
    ):
        gain = over(theirs, ours)
        if gain is not None:
            claims.append(Claim(claim, "not tested", f"{gain.text(4)} nats better", verdict(gain)))
    return claims


def _notes(setting: Setting, outcomes: Mapping[str, Outcome]) -> list[str]:
    sizes: Sizes = setting.sizes
    notes = [
        f"{sizes.encoder}, windows of {sizes.window} tokens, each of which begins with the question; answers of at "
        f"most {LONGEST_ANSWER} tokens. The paper's columns are of RoBERTa-base on 30,000 questions of HotpotQA.",
        "F1 and exact match as HotpotQA's official script has them, in percent. ± is half a 95 % interval over seeds "
        "(Student), which have the same test questions; claims are about paired differences.",
        "Span loss: how sure models are of the answer's first and last token, of test questions that have a span; it "
        "shows differences that scores cannot while most answers are wrong.",
        "swapped: every window is read with the memory of another question's context.",
    ]
    if sizes.distractors:
        notes.append(
            f"Trained on {setting.corpora['train']} with {sizes.distractors} paragraphs of other questions added to "
            "each: where no answer is yes or no, models do not learn to say so, and such test questions count as wrong."
        )
    lost = [name for name, outcome in outcomes.items() if outcome.get("ended")]
    return [*notes, *([f"Ended with NaN: {', '.join(lost)}."] if lost else [])]


def plot(found: Found, sizes: Sizes) -> Figure:
    figure = Figure(figsize=(7.2, 2.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    names = [name for name in variants(sizes) if found.ended(name)]
    for panel, (value, label) in zip(panels, (("f1", "F1 (%)"), ("exact_match", "exact match (%)")), strict=True):
        for place, name in enumerate(names):
            for read, marker, color in (("true", "o", "0.0"), ("swapped", "x", "0.5")):
                if scores := found.of(name, value, read):
                    mean = Interval.of(list(scores.values()))
                    panel.errorbar(mean.mean, place, xerr=mean.half or 0, capsize=3, color=color, marker=marker)
        panel.set_yticks(range(len(names)), names)
        panel.set_xlabel(f"{label}; ×: swapped memories")
    panels[0].invert_yaxis()
    return figure


STUDY = Study(
    "hotpotqa",
    "Adding Recurrence, Table 3: answers over many windows, with recurrence and without",
    CORPORA,
    SCALES,
    runs,
    report,
    check,
)
