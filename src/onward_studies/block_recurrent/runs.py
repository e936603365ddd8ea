"""Runs of block-recurrent models: rows of the paper's tables, trained on as many tokens of the same text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from typing import Any

from transformers import PreTrainedTokenizerBase, set_seed

from onward import BlockRecurrentForCausalLM
from onward.data import Document
from onward.data.tokens import tokenize
from onward.data.vocabularies import byte_tokenizer
from onward.evaluation import block_cost, block_flops_per_token

from ..engine.outcomes import Outcomes
from ..engine.planning import RunPlan, plan_of
from ..engine.sizes import all_but
from ..engine.study import Outcome, Run, StudySetting
from ..engine.texts import cut, some_of
from ..engine.trainings import documents_of, measured, recipe_of, tokenizer_of, train_once, vocabulary_run
from ..engine.trials import Training, Trials
from ..engine.work import Work
from .rows import BASELINE, RECURRENT, BlockRow, BlockSizes

CONTROLS = {"swapped": "another document's", "ablated": "none"}
"""Other states and memories than a document's own: what `measured` calls them, and what tables call them."""


def block_runs(setting: StudySetting, corpus: str, rows: Sequence[BlockRow]) -> list[Run]:
    """The vocabulary, trials of learning rates, and every row with every seed."""
    sizes: BlockSizes = setting.sizes
    before = [] if sizes.vocabulary is None else [_vocabulary(setting, corpus)]
    text = _Text(setting, corpus, before[0].name if before else None)
    trials = Trials(sizes.rates)
    for preset in (BASELINE, RECURRENT):
        trials.add(preset, text.training(BlockRow(preset), 0, trial=True))
    mains = [
        trials.main(RECURRENT if row.has_states(sizes) else BASELINE, text.training(row, seed))
        for seed in range(setting.seeds)
        for row in rows
    ]
    return [*before, *trials.runs, *mains]


def run_name(sizes: BlockSizes, corpus: str, row: BlockRow, seed: int) -> str:
    return f"{_family(sizes, corpus)}-{row.slug}-seed{seed}"


def block_outcomes(setting: StudySetting, outcomes: Mapping[str, Outcome], corpus: str) -> Outcomes:
    return Outcomes(setting, outcomes, partial(run_name, setting.sizes, corpus))


def _family(sizes: BlockSizes, corpus: str) -> str:
    """Studies that share a folder may have models of other depth."""
    depth = BlockRow(RECURRENT).config(sizes).num_hidden_layers
    return f"blocks{depth}-{corpus}{'-bytes' if sizes.vocabulary is None else ''}"


def _vocabulary(setting: StudySetting, corpus: str) -> Run:
    sizes: BlockSizes = setting.sizes
    assert sizes.vocabulary is not None
    texts = {"corpus": setting.corpora[corpus], "train_bytes": sizes.train_bytes}
    return vocabulary_run("bpe", sizes.vocabulary, partial(_whole_texts, sizes, corpus), texts, corpus)


def _whole_texts(sizes: BlockSizes, corpus: str, work: Work) -> Sequence[Document]:
    """For the vocabulary, since studies that share it may cut texts into other pieces."""
    return some_of(work.corpus(corpus).train, sizes.train_bytes)


def _texts(sizes: BlockSizes, corpus: str, work: Work) -> Sequence[Document]:
    whole = _whole_texts(sizes, corpus, work)
    return whole if sizes.piece is None else [part for text in whole for part in cut(text, sizes.piece)]


@dataclass(frozen=True)
class _Text:
    """A corpus with its vocabulary, on which rows are trained."""

    setting: StudySetting
    corpus: str
    vocabulary: str | None

    def training(self, row: BlockRow, seed: int, trial: bool = False) -> Training:
        sizes: BlockSizes = self.setting.sizes
        tokens = sizes.probe_tokens if trial else sizes.tokens
        of_trial = f"{_family(sizes, self.corpus)}-rate-{row.slug}"
        return Training(
            of_trial if trial else run_name(sizes, self.corpus, row, seed),
            self._settings(row, seed, tokens),
            partial(self._train, row, seed, tokens, not trial),
            () if self.vocabulary is None else (self.vocabulary,),
            tokens,
            cache(partial(self._plan, row)),
        )

    def _settings(self, row: BlockRow, seed: int, tokens: int) -> dict[str, Any]:
        left_out = ("tokens", "rates", "probe_tokens", "rows_at_once")
        sizes = all_but(self.setting.sizes, BlockSizes, left_out)
        text, as_bytes = self.setting.corpora[self.corpus], self.vocabulary is None
        return {**sizes, "corpus": text, "bytes": as_bytes, "row": asdict(row), "seed": seed, "tokens": tokens}

    def _plan(self, row: BlockRow) -> RunPlan:
        """FLOPs are those of far into a document, where windows and memories are full."""
        sizes: BlockSizes = self.setting.sizes
        config = row.config(sizes, vocab_size=257 if self.vocabulary is None else sizes.vocabulary)
        length = config.segment_length
        rows = max(1, sizes.tokens_per_step // length)
        segment = plan_of(partial(BlockRecurrentForCausalLM, config), length, rows, sizes.tokens, logits_to_keep=length)
        return replace(segment, flops_per_token=block_flops_per_token(config))

    def _tokenizer(self, work: Work) -> PreTrainedTokenizerBase:
        return byte_tokenizer() if self.vocabulary is None else tokenizer_of(work, self.vocabulary)

    def _train(self, row: BlockRow, seed: int, tokens: int, evaluated: bool, rate: float, work: Work) -> Outcome:
        sizes: BlockSizes = self.setting.sizes
        tokenizer = self._tokenizer(work)
        set_seed(seed)
        config = row.config(sizes, vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
        model = BlockRecurrentForCausalLM(config)
        steps = {"tokens_per_step": sizes.tokens_per_step, "segments_at_once": sizes.rows_at_once}
        recipe = recipe_of("block-recurrent", sizes, rate, tokens, seed, schedule=sizes.schedule, **steps)
        texts = work.corpus(self.corpus)
        held = [tokenize(s[: sizes.held], tokenizer, sizes.held_tokens) for s in (texts.validation, texts.test)]
        training = (f"{self.corpus}, {self.vocabulary}", partial(_texts, sizes, self.corpus, work))
        outcome = train_once(work, model, training, held[0], tokenizer, recipe)
        if outcome["validation_loss"] is None or not evaluated:
            return outcome
        carries = config.recurrent_layers or config.memory_size
        read = measured(model.eval(), held[1], ["true", *CONTROLS] if carries else ["true"])
        found = read.pop("true")
        return outcome | {
            "test_bits": found.bits_per_token,
            **{f"test_bits_{memory}": other.bits_per_token for memory, other in read.items()},
            "test_bits_per_byte": found.bits_per_byte,
            "test_word_perplexity": found.word_perplexity,
            "flops": block_cost(model).counted,
            "documents": documents_of(found),
        }
