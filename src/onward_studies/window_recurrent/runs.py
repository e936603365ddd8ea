"""Runs of window-recurrent models: a backbone is trained with a carrier, or without, and read on held-out documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any

import torch
from transformers import set_seed

from onward import WindowRecurrenceConfig, add_recurrence
from onward.data import Document
from onward.data.tokens import TokenizedDocument, tokenize
from onward.evaluation import Measures, counted_flops_per_token, formula_flops_per_token, plain
from onward.models.window_recurrent import WindowRecurrentForCausalLM
from onward.ops import windows
from onward.training import TrainingRecipe

from ..engine.planning import TOKENS_OF, Plan, plan_of
from ..engine.study import Outcome, Run, Setting, Work
from ..engine.training_runs import read_with, some_of, train_once
from .backbone import BACKBONE, CORPORA, DECODERS, Decoder, backbone_runs, decoder_config, load

PLAIN = "plain"


@dataclass(frozen=True)
class WindowSizes:
    """`overlaps` are those of the paper's tables, `more_overlaps` of plain windows only; `recurrent` are fields of the
    recurrent model's configuration. `rates` are tried on `probe_tokens`, for every kind of model (`kind_of`), and the
    best on validation are taken; on the corpus `tried_on`, if it is given, for all corpora. Steps are of `rows`
    segments of `windows_per_segment` windows; other windows have as many tokens in a step, rather than as many windows,
    and with `equal_steps` other overlaps, too. Of validation and test documents the first `held` are read,
    `held_tokens` of each, or as many as their corpus asks for (of test documents `test_tokens`). With
    `train="carrier"` the backbone stays as it is, plain windows with it. Names of runs begin with `tag`."""

    decoder: Decoder = DECODERS["paper"]
    window: int = 300
    overlaps: tuple[int, ...] = (0, 5, 10, 30, 50)
    more_overlaps: tuple[int, ...] = (75, 100, 150, 200)
    recurrent: Mapping[str, Any] = field(default_factory=lambda: {"residual": False})
    tokens: int | None = None
    epochs: float = 2
    windows_per_segment: int = 20
    rows: int = 8
    rates: tuple[float, ...] = (2e-5, 5e-5, 1e-4)
    tried_on: str | None = "wikipedia"
    carrier_rate: float | None = None
    probe_tokens: int = 10_000_000
    schedule: str = "constant"
    warmup_steps: int = 100
    evaluate_every: int = 2_000_000
    patience: int | None = 3
    train_bytes: int | None = None
    held: int | None = None
    held_tokens: int | None = None
    test_tokens: int | None = None
    equal_steps: bool = False
    checkpointing: bool = True
    train: str = "all"
    tag: str = ""

    def trains(self, variant: Variant) -> bool:
        return self.train != "carrier" or variant.config.carrier != "none"


SCALES = {
    "smoke": WindowSizes(
        decoder=DECODERS["smoke"],
        window=24,
        overlaps=(0, 4),
        more_overlaps=(8,),
        recurrent={"carrier": "spans", "history": [3]},
        tokens=2_000,
        epochs=1000,
        windows_per_segment=4,
        rows=4,
        rates=(1e-3, 3e-3),
        tried_on=None,
        carrier_rate=1e-3,
        probe_tokens=800,
        schedule="linear",
        warmup_steps=1,
        evaluate_every=2_000,
        patience=None,
        train_bytes=20_000,
        held=3,
        held_tokens=150,
        test_tokens=150,
        equal_steps=True,
        checkpointing=False,
    ),
    "laptop": WindowSizes(
        decoder=DECODERS["laptop"],
        window=64,
        overlaps=(0, 1, 2, 6, 11),  # as the paper's: 0, 1/60, 1/30, 1/10, 1/6 of a window
        more_overlaps=(16, 21, 32, 43),
        recurrent={"carrier": "spans", "history": [15]},
        tokens=200_000,
        epochs=1000,
        windows_per_segment=10,
        rows=4,
        rates=(3e-5, 1e-4, 3e-4),
        tried_on=None,
        carrier_rate=1e-3,
        probe_tokens=60_000,
        schedule="linear",
        warmup_steps=20,
        evaluate_every=200_000,
        patience=None,
        train_bytes=30_000_000,
        held=12,
        held_tokens=4_000,
        test_tokens=8_000,
        equal_steps=True,
        checkpointing=False,
    ),
    "paper": WindowSizes(),
}


@dataclass(frozen=True)
class Variant:
    """A model to be trained: what it carries, and how long its windows are. `others` are overlaps that it is read with,
    too."""

    label: str
    fields: Mapping[str, Any]
    window: int
    overlap: int = 0
    others: tuple[int, ...] = ()

    @property
    def config(self) -> WindowRecurrenceConfig:
        chosen = dict(self.fields)
        constant_of = chosen.pop("constant_of", None)  # a control, of the recurrent model with these fields
        config = WindowRecurrenceConfig(**chosen, window=self.window, overlap=self.overlap)
        return config.with_carrier("constant") if constant_of else config

    @property
    def carries(self) -> bool:
        return self.config.carrier not in ("none", "constant")

    @property
    def name(self) -> str:
        overlap = f"-overlap{self.overlap}" if self.overlap else ""
        return f"{self.label}-window{self.window}{overlap}"


def plain_windows(window: int, others: Iterable[int] = ()) -> Variant:
    return Variant(PLAIN, {"carrier": "none"}, window, 0, tuple(others))


def recurrent(sizes: WindowSizes, window: int, overlap: int = 0) -> Variant:
    return Variant("recurrent", sizes.recurrent, window, overlap)


def about_recurrent(sizes: WindowSizes) -> str:
    """For the notes of a report that has the paper's figures beside it."""
    config = WindowRecurrenceConfig(**sizes.recurrent)
    if config.carrier == "pooled" and not config.residual:
        return "recurrent is the paper's module."
    return (
        f"recurrent is our carrier {config.carrier!r} with its defaults, not the paper's module to the letter, which "
        "needs far more training than there is here before its content counts; the study carriers has both."
    )


OVER_SEEDS = (
    "Intervals are over seeds only: test documents are the same for all, and so is the backbone where one machine has "
    "done all runs."
)


def constant(sizes: WindowSizes, window: int, overlap: int = 0) -> Variant:
    return Variant("constant", {**sizes.recurrent, "constant_of": "recurrent"}, window, overlap)


# --- runs ------------------------------------------------------------------------------------------


def window_runs(setting: Setting, corpus: str, variants: Sequence[Variant]) -> list[Run]:
    """The backbone, trials of learning rates, and every variant with every seed."""
    sizes: WindowSizes = setting.sizes
    if sizes.tried_on not in (None, *setting.corpora):
        raise ValueError(f"tried_on={sizes.tried_on!r}: choose one of {', '.join(setting.corpora)}, or None")
    before = backbone_runs(setting, sizes.decoder)
    trials: dict[str, list[Run]] = {}
    shared = [plain_windows(sizes.window), recurrent(sizes, sizes.window)] if sizes.train == "all" else []
    for variant in (*shared, *variants):
        kind = kind_of(sizes, variant)
        if kind not in trials and sizes.trains(variant) and len(sizes.rates) > 1:
            trials[kind] = _trials(setting, sizes.tried_on or corpus, variant)
    seeds = range(setting.seeds)
    return [
        *before,
        *(trial for of_kind in trials.values() for trial in of_kind),
        *(_main(setting, corpus, variant, seed, trials) for seed in seeds for variant in variants),
    ]


def kind_of(sizes: WindowSizes, variant: Variant) -> str:
    """Those of a kind have one learning rate: all with a memory, since it is mostly their backbone's; where backbones
    stay as they are, each has its own."""
    return "recurrent" if variant.config.carrier != "none" and sizes.train == "all" else variant.label


def run_name(sizes: WindowSizes, corpus: str, variant: Variant, seed: int) -> str:
    return f"{sizes.tag}{corpus}-{variant.name}-seed{seed}"


def _trials(setting: Setting, corpus: str, variant: Variant) -> list[Run]:
    sizes: WindowSizes = setting.sizes
    return [
        Run(
            f"{sizes.tag}{corpus}-rate-{kind_of(sizes, variant)}-{rate:g}",
            _settings(setting, corpus, variant, 0, sizes.probe_tokens) | {"rate": rate},
            partial(_train, setting, corpus, variant, 0, rate, sizes.probe_tokens),
            _backbone(sizes),
            sizes.probe_tokens or 1,
            outcome_only=True,
        )
        for rate in sizes.rates
    ]


def _main(setting: Setting, corpus: str, variant: Variant, seed: int, trials: Mapping[str, Sequence[Run]]) -> Run:
    """With the learning rate that was best for its kind."""
    sizes: WindowSizes = setting.sizes
    tried = [run.name for run in trials.get(kind_of(sizes, variant), ())]

    # What is not trained is the same for every seed.
    same = run_name(sizes, corpus, variant, 0) if seed and not sizes.trains(variant) else None

    def do(work: Work) -> Outcome:
        if same is not None:
            return dict(work.outcome_of(same)) | {"seed": seed}
        rate = work.best_rate(tried, sizes.rates[0])
        return _train(setting, corpus, variant, seed, rate, sizes.tokens, work, measured=True)

    return Run(
        run_name(sizes, corpus, variant, seed),
        _settings(setting, corpus, variant, seed, sizes.tokens) | {"rate": f"the best of {sizes.rates}"},
        do,
        (same,) if same is not None else (*_backbone(sizes), *tried),
        sizes.tokens or 1,
        plan=partial(_plan, setting, corpus, variant),
        outcome_only=not sizes.trains(variant),
    )


def _plan(setting: Setting, corpus: str, variant: Variant) -> Plan:
    """Of the backbone, which does nearly all of the work, in one window: with checkpoints at the bottleneck, more is
    never kept."""
    sizes: WindowSizes = setting.sizes
    config = variant.config
    config.backbone, config.head, config.causal = decoder_config(sizes.decoder), "causal-lm", True
    text = TOKENS_OF.get(setting.corpora[corpus])
    tokens = sizes.tokens or (None if text is None else round(sizes.epochs * text))
    with torch.device("meta"):
        model = WindowRecurrentForCausalLM(config)
        mask = torch.zeros(1, 1, variant.window, variant.window)  # without one, transformers looks at values to make it
    inputs: dict[str, Any] = {"attention_mask": mask, "use_cache": False}
    read = plan_of(lambda: model.backbone, variant.window, sizes.rows, tokens, sizes.checkpointing, **inputs)
    formula = formula_flops_per_token(model, variant.window, variant.overlap)
    head = 2 * model.config.hidden_size * model.config.vocab_size
    again = variant.window / (variant.window - variant.overlap)  # what overlaps is read again, but not scored
    flops = again * (read.flops_per_token - head) + head
    return replace(read, parameters=model.num_parameters(), flops_per_token=flops, formula=formula)


def _backbone(sizes: WindowSizes) -> tuple[str, ...]:
    return (BACKBONE,) if sizes.decoder.name is None else ()


def _settings(setting: Setting, corpus: str, variant: Variant, seed: int, tokens: int | None) -> dict[str, Any]:
    of_runs = ("overlaps", "more_overlaps", "window", "recurrent", "tokens", "rates", "tried_on", "probe_tokens")
    left_out = (*of_runs, "checkpointing", "tag")
    sizes = {f.name: getattr(setting.sizes, f.name) for f in fields(WindowSizes) if f.name not in left_out}
    sizes["decoder"] = asdict(setting.sizes.decoder)
    places = {name: place for name, place in setting.corpora.items() if name in CORPORA[setting.scale]}
    return {**sizes, "corpora": places, "corpus": corpus, "variant": asdict(variant), "seed": seed, "tokens": tokens}


def _train(
    setting: Setting,
    corpus: str,
    variant: Variant,
    seed: int,
    rate: float,
    tokens: int | None,
    work: Work,
    measured: bool = False,
) -> Outcome:
    sizes: WindowSizes = setting.sizes
    backbone, tokenizer = load(work, sizes.decoder)
    set_seed(seed)
    model = add_recurrence(backbone, variant.config)
    rows, windows_per_segment = step_of(sizes, variant)
    recipe = TrainingRecipe(
        learning_rate=rate,
        carrier_learning_rate=sizes.carrier_rate,
        batch_size=rows,
        windows_per_segment=windows_per_segment,
        epochs=sizes.epochs,
        max_tokens=tokens,
        schedule=sizes.schedule,
        warmup_steps=sizes.warmup_steps,
        evaluate_every_tokens=sizes.evaluate_every,
        patience=sizes.patience,
        gradient_checkpointing=sizes.checkpointing,
        train=sizes.train,
        seed=seed,
    )
    documents = work.corpus(corpus)
    most = documents.validation_tokens if sizes.held_tokens is None else sizes.held_tokens
    held = {
        "validation": tokenize(documents.validation[: sizes.held], tokenizer, most),
        "test": tokenize(documents.test[: sizes.held], tokenizer, sizes.test_tokens),
    }
    texts = (f"{corpus}, of windows", partial(training_texts, sizes, corpus, work))
    if sizes.trains(variant):
        outcome = train_once(work, model, texts, held["validation"], tokenizer, recipe)
        if outcome["validation_loss"] is None or not measured:
            return outcome
    else:
        outcome = {"parameters": model.num_parameters(), "seed": seed, "tokens": 0, "said": "read as it is"}
    read = {split: _read(model.eval(), variant, of_split) for split, of_split in held.items()}
    return outcome | {
        "read": read,
        "parameters_added": sum(p.numel() for p in model.carrier.parameters()),
        "rows_and_windows": step_of(sizes, variant),
        **flops_by_overlap(model, variant),
    }


def flops_by_overlap(model: WindowRecurrentForCausalLM, variant: Variant) -> dict[str, dict[int, float]]:
    """Per token, by the paper's formula, and counted with memory and language model head."""
    read = {overlap: plain(model, variant.window, overlap) for overlap in variant.others} | {variant.overlap: model}
    return {
        "flops": {overlap: formula_flops_per_token(model, variant.window, overlap) for overlap in read},
        "counted_flops": {overlap: counted_flops_per_token(reader) for overlap, reader in read.items()},
    }


def step_of(sizes: WindowSizes, variant: Variant) -> tuple[int, int]:
    """Rows and windows of a segment: as many tokens in a step for all variants, or as many windows."""
    if variant.window == sizes.window and not sizes.equal_steps:
        return sizes.rows, sizes.windows_per_segment
    segment = sizes.windows_per_segment * sizes.window
    count = max(1, round((segment - variant.overlap) / (variant.window - variant.overlap)))
    length = windows.segment_length(count, variant.window, variant.overlap)
    return max(1, round(sizes.rows * segment / length)), count


def training_texts(sizes: WindowSizes, corpus: str, work: Work) -> Sequence[Document]:
    """Of books the ones that our own backbone was not pretrained on."""
    documents = work.corpus(corpus).train
    unread = documents[1::2] if corpus == "books" and sizes.decoder.name is None else documents
    return some_of(unread, sizes.train_bytes)


def _read(model: Any, variant: Variant, documents: Sequence[TokenizedDocument]) -> dict[str, Any]:
    """By what it is read with: its own memory, another document's, other overlaps."""
    found = read_with(model, documents, ["true", "swapped"] if variant.carries else ["true"])
    for overlap in variant.others:
        found[f"overlap {overlap}"] = read_with(plain(model, variant.window, overlap), documents, ["true"])["true"]
    return {name: _kept(measures) for name, measures in found.items()}


def _kept(measures: Measures) -> dict[str, Any]:
    return {
        "loss": measures.loss,
        "tokens": measures.tokens,
        "word_perplexity": measures.word_perplexity,
        "bits_per_byte": measures.bits_per_byte,
        "by_position": [round(x, 5) for x in measures.by_position.means],
        "by_window": [round(x, 5) for x in measures.by_window.means],
        "documents": [(d.name, round(d.nll, 4), d.tokens) for d in measures.documents],
        "tokens_per_second": measures.tokens_per_second,
    }


# --- what was read, over seeds ---------------------------------------------------------------------


class Readings:
    """Looks up what runs have measured: a number for each seed that has ended."""

    def __init__(self, setting: Setting, outcomes: Mapping[str, Outcome], corpus: str):
        self.sizes: WindowSizes = setting.sizes
        self.seeds, self.outcomes, self.corpus = setting.seeds, outcomes, corpus

    def of(self, variant: Variant, read: str = "true", split: str = "test", value: str = "loss") -> dict[int, float]:
        found = {}
        for seed, outcome in self.ended(variant).items():
            number = outcome.get("read", {}).get(split, {}).get(read, {}).get(value)
            if number is not None:  # as it is where it was infinite
                found[seed] = number
        return found

    def ended(self, variant: Variant) -> dict[int, Outcome]:
        names = {seed: run_name(self.sizes, self.corpus, variant, seed) for seed in range(self.seeds)}
        return {seed: self.outcomes[name] for seed, name in names.items() if name in self.outcomes}

    def flops(self, variant: Variant, overlap: int, kind: str = "flops") -> float | None:
        """Per token, by the paper's formula, or "counted_flops"."""
        ended = [outcome[kind] for outcome in self.ended(variant).values() if kind in outcome]
        return ended[0][str(overlap)] if ended else None

    def curve(self, variant: Variant, read: str = "true", value: str = "by_position") -> list[float | None]:
        """On test documents, the mean over seeds."""
        curves = [outcome["read"]["test"][read][value] for outcome in self.ended(variant).values() if "read" in outcome]
        return [
            None if any(point is None for point in points) else sum(points) / len(points)
            for points in zip(*curves, strict=False)
        ]
