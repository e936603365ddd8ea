"""`hotpotqa`: Table 3 of "Adding Recurrence to Pretrained Transformers": an encoder that reads ten paragraphs in windows.

Every window begins with the question. A span head scores each token of all paragraphs as the answer's first and last;
the first token's vectors, pooled over windows, tell whether the answer is a span, yes or no.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from matplotlib.figure import Figure
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    RobertaConfig,
    TrainingArguments,
    set_seed,
)
from transformers.modeling_outputs import ModelOutput

from .. import WindowRecurrenceConfig, add_recurrence
from ..corpora import Document
from ..finetuning.answers import exact_match, f1, normalize
from ..finetuning.run import FineTuner
from ..models.window_recurrent import WindowRecurrentForSequenceClassification
from ..pretrained import load_backbone
from ..questions import KINDS, EncodedQuestion, Question, encode_questions, load_questions, with_distractors
from ..state import where_rows
from ..training import NonFiniteLossError
from ..training.checkpoints import last_checkpoint, write_json
from ..training.many_runs import RunsProgress
from ..vocabularies import train_vocabulary
from .intervals import Interval, cell, over, verdict
from .made_up import made_up_questions
from .planning import Plan, plan_of
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
# F1 and exact match.
DISJOINT, PAPERS, OURS, CONSTANT = "disjoint windows", "recurrent, the paper's", "recurrent", "constant"
PAPER = {DISJOINT: (48.17, 43.55), PAPERS: (49.12, 44.55)}
LONGEST_ANSWER = 30
NO_TOKEN = -100  # what cross_entropy leaves out


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
        checkpoint_every=5,
    ),
    "laptop": Sizes(
        encoder="minilm-l6",
        window=128,
        distractors=4,
        questions=2000,
        held=100,
        tested=500,
        epochs=1,
        rows=8,
        rates=(5e-5, 1.5e-4, 5e-4),
        carrier_rate=1e-3,
        probe_questions=400,
        checkpoint_every=50,
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


# --- the model -------------------------------------------------------------------------------------


@dataclass
class Reading(ModelOutput):
    """Logits of the answer's kind [B, 3], and of its first and last token [B, N]: -inf where there is no context."""

    loss: Tensor | None = None
    kinds: Tensor | None = None
    starts: Tensor | None = None
    ends: Tensor | None = None


class QuestionReader(nn.Module):
    """A window-recurrent classifier of documents, whose last layer feeds a span head."""

    def __init__(self, reader: WindowRecurrentForSequenceClassification):
        super().__init__()
        self.reader = reader
        self.spans = nn.Linear(reader.config.hidden_size, 2)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        prefix_length: Tensor,
        token_type_ids: Tensor | None = None,
        kind: Tensor | None = None,
        start: Tensor | None = None,
        end: Tensor | None = None,
    ) -> Reading:
        """kind, start, end: [B]; where the answer is no span, start and end are NO_TOKEN."""
        read = self.reader(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            prefix_length=prefix_length,
            labels=kind,
            output_hidden_states=True,
        )
        reading = self.scored(read.hidden_states[-1], read.logits, attention_mask, prefix_length)
        if kind is not None:
            losses, counted = span_losses(reading, start, end)
            reading.loss = read.loss + losses.sum() / counted.sum().clamp(min=1)
        return reading

    def scored(self, hidden: Tensor, kinds: Tensor, attention_mask: Tensor, prefix_length: Tensor) -> Reading:
        """hidden: [B, N, k], of the whole document."""
        places = torch.arange(hidden.shape[1], device=hidden.device)
        context = attention_mask.bool() & (places >= prefix_length[:, None])
        starts, ends = self.spans(hidden).masked_fill(~context[..., None], -torch.inf).unbind(-1)
        return Reading(kinds=kinds, starts=starts, ends=ends)


def span_losses(reading: Any, start: Any, end: Any) -> tuple[Tensor, Tensor]:
    """Of every row the mean of its first and last token's, normalised over the whole document; and which rows have
    a span at all."""
    of_starts = cross_entropy(reading.starts, start, ignore_index=NO_TOKEN, reduction="none")
    of_ends = cross_entropy(reading.ends, end, ignore_index=NO_TOKEN, reduction="none")
    return (of_starts + of_ends) / 2, start != NO_TOKEN


def best_span(starts: Tensor, ends: Tensor, longest: int = LONGEST_ANSWER) -> tuple[int, int]:
    """The first and last token with the highest sum of logits, of at most `longest` tokens. starts, ends: [N]."""
    found, best = (0, 0), -torch.inf
    for more in range(min(longest, len(starts))):
        sums = starts[: len(starts) - more] + ends[more:]
        token = int(sums.argmax())
        if sums[token] > best:
            best, found = float(sums[token]), (token, token + more)
    return found


def read_swapped(model: QuestionReader, batch: Mapping[str, Tensor], others: Sequence[int]) -> Reading:
    """Every window with the memory that row `others[r]`'s last window has left, instead of its own."""
    given = {name: batch[name] for name in ("input_ids", "token_type_ids", "prefix_length") if name in batch}
    mask, window = batch["attention_mask"].bool(), model.reader.config.window
    prefix = batch["prefix_length"][:, None]
    # Window 0 begins with the prefix; the others have so much less room for what is new.
    number = ((torch.arange(mask.shape[1], device=mask.device) - prefix) // (window - prefix)).clamp(min=0)
    hidden: Any = 0
    state = memory = read = None
    for current in range(int(number[mask].max()) + 1):
        inside = mask & (number == current)
        read = model.reader(**given, attention_mask=inside, state=state, output_hidden_states=True)
        hidden = hidden + read.hidden_states[-1]  # zeros where nothing was read
        left = read.state.memory
        memory = left if memory is None else where_rows(inside.any(1), left, memory)
        state = replace(read.state, memory=memory).swap_memories(others)
    assert read is not None
    return model.scored(hidden, read.logits, batch["attention_mask"], batch["prefix_length"])


# --- questions -------------------------------------------------------------------------------------


def collate(questions: Sequence[EncodedQuestion], padding: int) -> dict[str, Tensor]:
    width = max(map(len, questions))

    def padded(rows: Sequence[Any], fill: int) -> Tensor:
        result = torch.full((len(rows), width), fill)
        for place, row in enumerate(rows):
            result[place, : len(row)] = torch.as_tensor(row)
        return result

    spans = [question.answer or (NO_TOKEN, NO_TOKEN) for question in questions]
    batch = {
        "input_ids": padded([question.input_ids for question in questions], padding),
        "attention_mask": padded([torch.ones(len(question)) for question in questions], 0),
        "prefix_length": torch.tensor([question.prefix for question in questions]),
        "kind": torch.tensor([KINDS.index(question.question.kind) for question in questions]),
        "start": torch.tensor([start for start, _ in spans]),
        "end": torch.tensor([end for _, end in spans]),
    }
    if questions[0].token_type_ids is not None:
        batch["token_type_ids"] = padded([question.token_type_ids for question in questions], 0)
    return batch


class InOrder(Dataset):
    """Every question once in an epoch, in batches of like length: a batch has as many windows as its longest document.

    The order depends on nothing but the seed, so that runs are paired, and a killed one finds its place again.
    """

    def __init__(self, questions: Sequence[EncodedQuestion], rows: int, epochs: int, seed: int):
        self.questions = questions
        self.order = _order([len(question) for question in questions], rows, epochs, seed)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> EncodedQuestion:
        return self.questions[self.order[index]]


BATCHES_SORTED = 20


def _order(lengths: Sequence[int], rows: int, epochs: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    found: list[int] = []
    for _ in range(epochs):
        shuffled = draw.sample(range(len(lengths)), len(lengths))
        some = rows * BATCHES_SORTED
        parts = [sorted(shuffled[i : i + some], key=lengths.__getitem__) for i in range(0, len(shuffled), some)]
        batches = [part[i : i + rows] for part in parts for i in range(0, len(part), rows)]
        whole = [batch for batch in batches if len(batch) == rows]
        draw.shuffle(whole)  # a batch that is not full would shift all after it
        found += [number for batch in whole for number in batch]
        found += [number for batch in batches if len(batch) < rows for number in batch]
    return found


@dataclass(frozen=True)
class Prepared:
    """Encoded questions: to learn from, for validation, and to be scored on."""

    train: list[EncodedQuestion]
    held: list[EncodedQuestion]
    test: list[EncodedQuestion]


def prepare(setting: Setting, tokenizer: PreTrainedTokenizerBase) -> Prepared:
    """Of the training questions a random part, the same for every run."""
    sizes: Sizes = setting.sizes
    read = questions_of(setting, "train")
    held, wanted = sizes.held, sizes.held + sizes.questions
    if len(read) <= held:
        raise ValueError(f"{setting.corpora['train']} has {len(read)} questions, of which held={held} leave none to learn")
    chosen = random.Random(ORDER_SEED).sample(read, min(wanted, len(read)))
    if sizes.distractors:
        chosen = with_distractors(chosen, sizes.distractors, ORDER_SEED)
    encode = partial(encode_questions, tokenizer=tokenizer, longest_question=sizes.window // 2)
    return Prepared(encode(chosen[held:]), encode(chosen[:held]), encode(questions_of(setting, "test")[: sizes.tested]))


def questions_of(setting: Setting, name: str) -> list[Question]:
    place = setting.corpora[name]
    if place == MADE_UP:
        sizes: Sizes = setting.sizes
        return made_up_questions(sizes.questions + sizes.held, 0) if name == "train" else made_up_questions(100, 1)
    return load_questions(place, "train" if name == "train" else "validation")


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
        num_labels=len(KINDS),
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
        )
        for rate in sizes.rates
    ]


def _main(setting: Setting, name: str, seed: int, trials: Mapping[str, Sequence[Run]]) -> Run:
    """With the learning rate that was best: of disjoint windows, or of recurrence."""
    sizes: Sizes = setting.sizes
    tried = [run.name for run in trials.get(DISJOINT if name == DISJOINT else OURS, ())]

    def do(work: Work) -> Outcome:
        rate = work.outcome_of(work.best_of(tried))["learning_rate"] if tried else sizes.rates[0]
        return _train(setting, name, seed, rate, sizes.questions, sizes.epochs, work, tested=True)

    return Run(
        run_name(name, seed),
        _settings(setting, name, seed, sizes.questions, sizes.epochs) | {"rate": f"the best of {sizes.rates}"},
        do,
        tuple(tried),
        sizes.epochs * _tokens(sizes, sizes.questions),
        plan=partial(_plan, setting, name),
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
    spans = nn.Linear(encoder.config.hidden_size, 2)
    nn.init.normal_(spans.weight, std=encoder.config.initializer_range)
    nn.init.zeros_(spans.bias)
    model = QuestionReader(add_recurrence(encoder, variants(sizes)[name]))
    model.spans = spans
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
    try:
        steps, seconds = learn(model, ordered, partial(collate, padding=padding), sizes, rate, seed, work)
        validation = answer(model, prepared.held, padding, sizes.rows)
        _require_numbers(validation)
    except NonFiniteLossError as error:
        return {**facts, "validation_loss": None, "ended": str(error), "said": str(error)}
    outcome = {**facts, "validation_loss": validation.loss, "steps": steps, "training_seconds": seconds}
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


# --- training --------------------------------------------------------------------------------------


class Learner(FineTuner):
    """Carriers have a learning rate of their own."""

    carrier_rate: float | None = None

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            reader: Any = self.model if model is None else model
            kind, options = self.get_optimizer_cls_and_kwargs(self.args, reader)
            self.optimizer = kind(self._groups(reader), **options)
        return self.optimizer

    def _groups(self, model: nn.Module) -> list[dict[str, Any]]:
        decayed = set(self.get_decay_parameter_names(model))
        groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
        for name, parameter in model.named_parameters():
            groups.setdefault((name in decayed, "carrier." in name), []).append(parameter)
        return [
            {
                "params": parameters,
                "weight_decay": self.args.weight_decay if decays else 0.0,
                "lr": self.carrier_rate if added and self.carrier_rate is not None else self.args.learning_rate,
            }
            for (decays, added), parameters in groups.items()
        ]


def learn(
    model: QuestionReader,
    questions: InOrder,
    collator: Callable[[Any], dict[str, Tensor]],
    sizes: Sizes,
    rate: float,
    seed: int,
    work: Work,
) -> tuple[int, float]:
    """Goes on from the run's last checkpoint. Returns steps and seconds; of a run that went on, those since."""
    folder = work.folder / MODEL
    arguments = TrainingArguments(
        output_dir=str(folder),
        seed=seed,
        num_train_epochs=1,  # `questions` has all of them
        per_device_train_batch_size=sizes.rows,
        train_sampling_strategy="sequential",
        learning_rate=rate,
        lr_scheduler_type="linear",
        warmup_steps=sizes.warmup,  # a share
        weight_decay=0.01,
        bf16=torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
        use_cpu=not torch.accelerator.is_available(),
        save_strategy="steps",
        save_steps=sizes.checkpoint_every,
        save_total_limit=2,
        eval_strategy="no",
        logging_steps=10,
        logging_nan_inf_filter=False,
        remove_unused_columns=False,
        dataloader_pin_memory=torch.accelerator.is_available(),
        disable_tqdm=True,
        log_level="passive",
        report_to="none",
    )
    arguments._n_gpu = min(1, arguments.n_gpu)  # or several GPUs would make the batch so many times larger
    callbacks = [work.display] if isinstance(work.display, RunsProgress) else []
    learner = Learner(model, arguments, data_collator=collator, train_dataset=questions, callbacks=callbacks)  # type: ignore[arg-type]
    learner.carrier_rate = sizes.carrier_rate
    learner.remove_callback(PrinterCallback)
    last = last_checkpoint(folder)
    done = learner.train(resume_from_checkpoint=None if last is None else str(last))
    return learner.state.global_step, done.metrics.get("train_runtime", 0.0)


# --- answers ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scores:
    """In percent, of all questions and by kind of answer."""

    f1: float
    exact_match: float
    by_kind: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Answers:
    questions: list[Question]
    texts: list[str]
    loss: float

    def scores(self) -> Scores:
        rows = [(q.kind, *score(text, q.answer)) for q, text in zip(self.questions, self.texts, strict=True)]
        by_kind = {}
        for kind in KINDS:
            of_kind = [row for row in rows if row[0] == kind]
            if of_kind:
                by_kind[kind] = {"f1": _percent([row[1] for row in of_kind]), "questions": len(of_kind)}
        return Scores(_percent([row[1] for row in rows]), _percent([row[2] for row in rows]), by_kind)


def _percent(values: Sequence[float]) -> float:
    return 100 * sum(values) / len(values)


def score(answer: str, right: str) -> tuple[float, float]:
    """F1 and exact match as HotpotQA's official script has them: yes and no share no words with a span."""
    exact = exact_match(answer, right)
    alone = {"yes", "no", "noanswer"} & {normalize(answer), normalize(right)}
    if alone or not normalize(answer) or not normalize(right):
        return (exact if alone else 0.0), exact
    return f1(answer, right), exact


@torch.no_grad()
def answer(
    model: QuestionReader, questions: Sequence[EncodedQuestion], padding: int, rows: int, swapped: bool = False
) -> Answers:
    """What the model answers, and its loss as in training: that of kinds, and that of spans where there are some."""
    model.eval()
    device = next(model.parameters()).device
    order = sorted(range(len(questions)), key=lambda number: len(questions[number]))
    texts = [""] * len(questions)
    sums = torch.zeros(3)
    for places in _batches(order, rows):
        some = [questions[place] for place in places]
        batch = {name: value.to(device) for name, value in collate(some, padding).items()}
        reading: Any
        if swapped:
            reading = read_swapped(model, batch, [*range(1, len(places)), 0])
        else:
            reading = model(**{name: v for name, v in batch.items() if name not in ("kind", "start", "end")})
        of_spans, counted = span_losses(reading, batch["start"], batch["end"])
        of_kinds = cross_entropy(reading.kinds, batch["kind"], reduction="sum")
        sums += torch.stack([of_kinds, of_spans.sum(), counted.sum()]).float().cpu()
        kinds = reading.kinds.argmax(-1).tolist()
        for row, (place, question) in enumerate(zip(places, some, strict=True)):
            spans = best_span(reading.starts[row].float().cpu(), reading.ends[row].float().cpu())
            texts[place] = question.text_of(*spans) if kinds[row] == 0 else KINDS[kinds[row]]
    loss = sums[0] / len(questions) + sums[1] / sums[2].clamp(min=1)
    return Answers([question.question for question in questions], texts, float(loss))


def _batches(order: Sequence[int], rows: int) -> list[Sequence[int]]:
    """A last one of a single question goes with those before it: alone it would have no other's memory to swap."""
    batches = [order[start : start + rows] for start in range(0, len(order), rows)]
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [[*batches[-2], *batches[-1]]]
    return batches


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
        num_labels=len(KINDS),
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
        scores = [cell(found.of(name, value), 2) for value in ("f1", "exact_match")]
        gain = "" if name == DISJOINT else cell(over(found.of(name), found.of(DISJOINT)), 2)
        rows.append([name, f"{first['learning_rate']:g}", *scores, gain, *told])
        kinds.append([name, *(cell(found.of_kind(name, kind), 2) for kind in KINDS)])
        if swapped := found.of(name, read="swapped"):
            scores = [cell(found.of(name, value, "swapped"), 2) for value in ("f1", "exact_match")]
            rows.append([f"{name}, swapped", "", *scores, cell(over(swapped, found.of(DISJOINT)), 2), "", ""])
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


COLUMNS = ("model", "learning rate", "F1", "exact match", "F1 over disjoint", "paper, F1", "paper, exact match")


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
    return claims


def _notes(setting: Setting, outcomes: Mapping[str, Outcome]) -> list[str]:
    sizes: Sizes = setting.sizes
    notes = [
        f"{sizes.encoder}, windows of {sizes.window} tokens, each of which begins with the question; answers of at most "
        f"{LONGEST_ANSWER} tokens. The paper's columns are of RoBERTa-base on 30,000 questions of HotpotQA.",
        "F1 and exact match as HotpotQA's official script has them, in percent. ± is half a 95 % interval over seeds "
        "(Student); claims are about paired differences.",
        "swapped: every window is read with the memory of another question's context.",
    ]
    if sizes.distractors:
        notes.append(
            f"Trained on {setting.corpora['train']} with {sizes.distractors} paragraphs of other questions added to each: "
            "where no answer is yes or no, models cannot learn to say so, and such test questions count as wrong."
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
)
