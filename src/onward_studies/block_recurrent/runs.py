"""Runs of block-recurrent models: rows of the paper's tables, trained on as many tokens of the same text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, partial
from typing import Any

from transformers import PreTrainedTokenizerBase, set_seed

from onward import BlockRecurrentConfig, BlockRecurrentForCausalLM
from onward.data import Document
from onward.data.tokens import TokenizedDocument, tokenize
from onward.data.vocabularies import byte_tokenizer
from onward.evaluation import Measures, block_cost, block_flops_per_token
from onward.training import TrainingRecipe

from ..engine.intervals import Interval, cell, over
from ..engine.planning import Plan, plan_of
from ..engine.reporting import Table
from ..engine.study import Outcome, Run, Setting, Work
from ..engine.training_runs import cut, read_with, some_of, tokenizer_of, train_once, vocabulary_run

RECURRENT, BASELINE = "Rec:fixed:skip", "Slide:13L"
NARROW = ("0.1.0",)  # versions of onward whose kernels started with 0.77 / fan_in, and z in gates with 0.077 / fan_in
OVER_SEEDS = "± is half a 95 % interval over seeds (Student); claims are about paired differences of test bits."


@dataclass(frozen=True)
class BlockSizes:
    """`changes` are sizes of the 12-layer base model, of which every row keeps its proportion. `rates` are tried on
    `probe_tokens` for Slide:13L and Rec:fixed:skip, and what is best on validation is taken, for models without and
    with recurrence. Where `vocabulary` is None, text is read as bytes. Training documents are cut into pieces of
    `piece` characters: rows with short segments read many at once, and of long ones only the beginnings, where others
    read far into a few. `rows_at_once`: how many of a step's segments a process reads at a time, as many as fit its
    memory; None for all its share."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    vocabulary: int | None = 32_000
    tokens: int = 65_536_000_000
    tokens_per_step: int = 131_072
    rows_at_once: int | None = None
    schedule: str = "inverse_sqrt"
    rates: tuple[float, ...] = (1.0,)
    probe_tokens: int = 0
    warmup_steps: int = 1000
    evaluate_every: int = 1_000_000_000
    train_bytes: int | None = None
    piece: int | None = None
    held: int | None = None
    held_tokens: int | None = None


SMOKE = BlockSizes(
    changes={"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "window": 8, "dropout": 0.0},
    vocabulary=300,
    tokens=600,
    tokens_per_step=256,
    rates=(0.1, 1.0),
    probe_tokens=300,
    warmup_steps=1,
    evaluate_every=10_000,
    train_bytes=20_000,
    piece=600,
    held=2,
    held_tokens=100,
)
LAPTOP = BlockSizes(
    changes={"hidden_size": 128, "num_hidden_layers": 6, "num_attention_heads": 2, "window": 32, "dropout": 0.0},
    vocabulary=2_000,
    tokens=3_000_000,  # after a third of them states of some seeds carry nothing yet
    tokens_per_step=2_048,
    schedule="linear",  # of so short a training it makes more: 4.52 instead of 4.64 nats of Slide:13L on books
    rates=(0.05, 0.1, 0.2),
    probe_tokens=400_000,
    warmup_steps=100,
    evaluate_every=500_000,
    train_bytes=20_000_000,
    piece=60_000,
    held=8,
    held_tokens=4_000,
)
LAPTOP_OF_MANY = replace(  # for studies of so many models that each must be smaller
    LAPTOP,
    changes={**LAPTOP.changes, "num_hidden_layers": 4},
    tokens=1_200_000,  # after a third of them states carry nothing yet, and seeds differ several times as much
    probe_tokens=400_000,
    rates=(0.1, 0.2, 0.4),
    warmup_steps=20,
    evaluate_every=600_000,
    piece=8_000,  # so that rows with long segments, which read few texts at once, read much the same as others
)


@dataclass(frozen=True)
class Row:
    """A preset, under its own name or, with something changed, another."""

    preset: str
    label: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.label or self.preset

    @property
    def slug(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    def config(self, sizes: BlockSizes, **more: Any) -> BlockRecurrentConfig:
        return BlockRecurrentConfig.preset(self.preset, **{**sizes.changes, **self.changes, **more})


def block_runs(setting: Setting, corpus: str, rows: Sequence[Row]) -> list[Run]:
    """The vocabulary, trials of learning rates, and every row with every seed."""
    sizes: BlockSizes = setting.sizes
    before = [] if sizes.vocabulary is None else [_vocabulary(setting, corpus)]
    place = _Place(setting, corpus, before[0].name if before else None)
    trials: dict[str, list[Run]] = {}
    if len(sizes.rates) > 1:
        for preset in (BASELINE, RECURRENT):
            trials[preset] = [place.trial(Row(preset), rate) for rate in sizes.rates]
    plans = {row.name: cache(partial(place.plan, row)) for row in rows}
    mains = [place.main(row, seed, trials, plans[row.name]) for seed in range(setting.seeds) for row in rows]
    return [*before, *(run for runs in trials.values() for run in runs), *mains]


def run_name(sizes: BlockSizes, corpus: str, row: Row, seed: int) -> str:
    return f"{_family(sizes, corpus)}-{row.slug}-seed{seed}"


def _family(sizes: BlockSizes, corpus: str) -> str:
    """Studies that share a folder may have models of other depth."""
    depth = Row(RECURRENT).config(sizes).num_hidden_layers
    return f"blocks{depth}-{corpus}{'-bytes' if sizes.vocabulary is None else ''}"


def _vocabulary(setting: Setting, corpus: str) -> Run:
    sizes: BlockSizes = setting.sizes
    assert sizes.vocabulary is not None
    read = {"corpus": setting.corpora[corpus], "train_bytes": sizes.train_bytes}
    return vocabulary_run("bpe", sizes.vocabulary, partial(_whole_texts, sizes, corpus), read, corpus)


def _whole_texts(sizes: BlockSizes, corpus: str, work: Work) -> Sequence[Document]:
    """A vocabulary is of these, since studies that share it may cut them otherwise."""
    return some_of(work.corpus(corpus).train, sizes.train_bytes)


def _texts(sizes: BlockSizes, corpus: str, work: Work) -> Sequence[Document]:
    whole = _whole_texts(sizes, corpus, work)
    return whole if sizes.piece is None else [part for text in whole for part in cut(text, sizes.piece)]


@dataclass(frozen=True)
class _Place:
    """A corpus with its vocabulary, on which rows are trained."""

    setting: Setting
    corpus: str
    vocabulary: str | None

    @property
    def needs(self) -> tuple[str, ...]:
        return () if self.vocabulary is None else (self.vocabulary,)

    @property
    def as_bytes(self) -> bool:
        return self.vocabulary is None

    def trial(self, row: Row, rate: float) -> Run:
        sizes: BlockSizes = self.setting.sizes
        name = f"{_family(sizes, self.corpus)}-rate-{row.slug}-{rate:g}"
        settings = self._settings(row, 0, sizes.probe_tokens) | {"rate": rate}
        do = partial(self._train, row, 0, rate, sizes.probe_tokens)
        return Run(name, settings, do, self.needs, sizes.probe_tokens, outcome_only=True)

    def main(self, row: Row, seed: int, trials: Mapping[str, Sequence[Run]], plan: Callable[[], Plan]) -> Run:
        sizes: BlockSizes = self.setting.sizes
        carries = bool(row.config(sizes).recurrent_layers)
        tried = [run.name for run in trials.get(RECURRENT if carries else BASELINE, ())]

        def do(work: Work) -> Outcome:
            rate = work.best_rate(tried, sizes.rates[0])
            return self._train(row, seed, rate, sizes.tokens, work, measured=True)

        settings = self._settings(row, seed, sizes.tokens) | {"rate": f"the best of {sizes.rates}"}
        name = run_name(sizes, self.corpus, row, seed)
        return Run(name, settings, do, (*self.needs, *tried), sizes.tokens, plan=plan)

    def plan(self, row: Row) -> Plan:
        """FLOPs are those of far into a document, where windows and memories are full."""
        sizes: BlockSizes = self.setting.sizes
        config = row.config(sizes, vocab_size=257 if self.as_bytes else sizes.vocabulary)
        length = config.segment_length
        rows = max(1, sizes.tokens_per_step // length)
        read = plan_of(partial(BlockRecurrentForCausalLM, config), length, rows, sizes.tokens, logits_to_keep=length)
        return replace(read, flops_per_token=block_flops_per_token(config))

    def _settings(self, row: Row, seed: int, tokens: int) -> dict[str, Any]:
        left_out = ("tokens", "rates", "probe_tokens", "rows_at_once")
        sizes = {f.name: getattr(self.setting.sizes, f.name) for f in fields(BlockSizes) if f.name not in left_out}
        text = self.setting.corpora[self.corpus]
        return {**sizes, "corpus": text, "bytes": self.as_bytes, "row": asdict(row), "seed": seed, "tokens": tokens}

    def _tokenizer(self, work: Work) -> PreTrainedTokenizerBase:
        return byte_tokenizer() if self.vocabulary is None else tokenizer_of(work, self.vocabulary)

    def _train(self, row: Row, seed: int, rate: float, tokens: int, work: Work, measured: bool = False) -> Outcome:
        sizes: BlockSizes = self.setting.sizes
        tokenizer = self._tokenizer(work)
        set_seed(seed)
        config = row.config(sizes, vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
        model = BlockRecurrentForCausalLM(config)
        recipe = TrainingRecipe.preset(
            "block-recurrent",
            learning_rate=rate,
            schedule=sizes.schedule,
            warmup_steps=sizes.warmup_steps,
            tokens_per_step=sizes.tokens_per_step,
            segments_at_once=sizes.rows_at_once,
            epochs=1000,
            max_tokens=tokens,
            evaluate_every_tokens=sizes.evaluate_every,
            seed=seed,
        )
        texts = work.corpus(self.corpus)
        held = [tokenize(s[: sizes.held], tokenizer, sizes.held_tokens) for s in (texts.validation, texts.test)]
        training = (f"{self.corpus}, {self.vocabulary}", partial(_texts, sizes, self.corpus, work))
        outcome = train_once(work, model, training, held[0], tokenizer, recipe)
        if outcome["validation_loss"] is None or not measured:
            return outcome
        read = _read(model.eval(), held[1])
        found, cost = read["true"], block_cost(model)
        return outcome | {
            "test_bits": found.bits_per_token,
            **{f"test_bits_{memory}": other.bits_per_token for memory, other in read.items() if memory in CONTROLS},
            "test_bits_per_byte": found.bits_per_byte,
            "test_word_perplexity": found.word_perplexity,
            "flops": cost.counted,
            "documents": [(d.name, round(d.nll, 4), d.tokens) for d in found.documents],
        }


CONTROLS = {"swapped": "another document's", "ablated": "none"}


def _read(model: BlockRecurrentForCausalLM, documents: Sequence[TokenizedDocument]) -> dict[str, Measures]:
    """As it is, and what it carries replaced by another document's, or by what documents start from."""
    carries = model.config.recurrent_layers or model.config.memory_size
    return read_with(model, documents, ["true", *CONTROLS] if carries else ["true"])


class BlockReadings:
    """Looks up what runs have measured: a number for each seed that has ended."""

    def __init__(self, setting: Setting, outcomes: Mapping[str, Outcome], corpus: str):
        self.setting, self.outcomes, self.corpus = setting, outcomes, corpus

    def of(self, row: Row, value: str = "test_bits") -> dict[int, float]:
        names = {seed: run_name(self.setting.sizes, self.corpus, row, seed) for seed in range(self.setting.seeds)}
        ended = {seed: self.outcomes[name] for seed, name in names.items() if name in self.outcomes}
        return {seed: outcome[value] for seed, outcome in ended.items() if outcome.get(value) is not None}

    def lost(self, row: Row, memory: str) -> Interval | None:
        """By how many bits it reads worse with this in the place of what it carries."""
        return over(self.of(row, f"test_bits_{memory}"), self.of(row))


def controls_table(readings: Mapping[str, BlockReadings], rows: Sequence[Row]) -> tuple[list[Table], list[str]]:
    """For each text, what is lost without a document's own states and memories, and a note about it. Neither where
    nothing is carried."""
    lost = {
        row.name: [cell(found.lost(row, memory), 3) for found in readings.values() for memory in CONTROLS]
        for row in rows
    }
    known = [[name, *cells] for name, cells in lost.items() if any(cells)]
    columns = [f"{text}, {instead}" for text in readings for instead in CONTROLS.values()]
    title = "Bits lost with other states and memories than a document's own"
    return ([Table(title, ["model", *columns], known)], [ABOUT_CONTROLS]) if known else ([], [])


ABOUT_CONTROLS = (
    "Lost bits: how much worse a model reads with what another document carries, or with the states that documents "
    "start from and no memories (none). It was not trained to read with none, so Slide:13L is the fairer baseline."
)


def about_starts(outcomes: Mapping[str, Outcome]) -> list[str]:
    """Models that started otherwise must not be taken for those of today."""
    trained = [outcome for outcome in outcomes.values() if "validation_loss" in outcome]
    narrow = [o for o in trained if o.get("circumstances", {}).get("versions", {}).get("onward") in NARROW]
    if not narrow:
        return []
    which = "All trainings" if len(narrow) == len(trained) else f"{len(narrow)} of {len(trained)} trainings"
    return [
        f"{which} are of onward {NARROW[-1]}, whose kernels started narrower than the authors': with variance 0.77 / "
        "fan_in instead of 1 / fan_in, and those of new states in gates with 0.077 / fan_in."
    ]


def about_rates(readings: Mapping[str, BlockReadings], rows: Sequence[Row]) -> list[str]:
    """Which learning rates were chosen: rows with states and rows without may differ in them."""
    chosen, tried = [], set()
    for text, found in readings.items():
        sizes: BlockSizes = found.setting.sizes
        rates: dict[bool, set[float]] = {False: set(), True: set()}
        for row in rows:
            rates[bool(row.config(sizes).recurrent_layers)] |= set(found.of(row, "learning_rate").values())
        if all(rates.values()):
            without, with_states = (_listed(some) for some in rates.values())
            chosen.append(f"{text} {without} without states, {with_states} with")
            tried |= set(sizes.rates)
    if not chosen:
        return []
    told = f"Learning rates, the best of {_listed(tried)} on validation: {'; '.join(chosen)}."
    return [f"{told} {BASELINE} and {RECURRENT} were tried; other rows have what was best for one of these."]


def _listed(rates: set[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in sorted(rates))
