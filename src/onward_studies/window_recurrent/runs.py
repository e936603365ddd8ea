"""Runs of window-recurrent models: a backbone is trained with a carrier or without, and evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from transformers import set_seed

from onward import add_recurrence
from onward.data import Document
from onward.data.tokens import TokenizedDocument, tokenize
from onward.evaluation import Measures, counted_flops_per_token, formula_flops_per_token, plain
from onward.models.window_recurrent import WindowRecurrentForCausalLM
from onward.ops import windows
from onward.utils.fields import FieldError

from ..engine.outcomes import Outcomes
from ..engine.planning import TOKENS_OF, RunPlan, plan_of
from ..engine.sizes import all_but
from ..engine.study import Outcome, Run, StudySetting
from ..engine.texts import some_of
from ..engine.trainings import documents_of, measured, recipe_of, train_once
from ..engine.trials import Training, Trials
from ..engine.work import Work
from .backbone import BACKBONE, CORPORA, backbone_runs, decoder_config, load
from .variants import Variant, WindowSizes, kind_of, plain_windows, recurrent


def window_runs(setting: StudySetting, corpus: str, variants: Sequence[Variant]) -> list[Run]:
    """The backbone, trials of learning rates, and every variant with every seed."""
    sizes: WindowSizes = setting.sizes
    if sizes.tried_on not in (None, *setting.corpora):
        raise FieldError("tried_on", sizes.tried_on, f"choose one of {', '.join(setting.corpora)}, or None")
    trials = Trials(sizes.rates)
    shared = [plain_windows(sizes.window), recurrent(sizes, sizes.window)] if sizes.train == "all" else []
    for variant in (*shared, *variants):
        if sizes.trains(variant):
            trials.add(kind_of(sizes, variant), _training(setting, sizes.tried_on or corpus, variant, 0, trial=True))
    mains = [_main(setting, corpus, variant, seed, trials) for seed in range(setting.seeds) for variant in variants]
    return [*backbone_runs(setting, sizes.decoder), *trials.runs, *mains]


def run_name(sizes: WindowSizes, corpus: str, variant: Variant, seed: int) -> str:
    return f"{sizes.tag}{corpus}-{variant.name}-seed{seed}"


def _main(setting: StudySetting, corpus: str, variant: Variant, seed: int, trials: Trials) -> Run:
    sizes: WindowSizes = setting.sizes
    main = trials.main(kind_of(sizes, variant), _training(setting, corpus, variant, seed))
    if sizes.trains(variant):
        return main
    if seed == 0:
        return replace(main, outcome_only=True)
    same = run_name(sizes, corpus, variant, 0)  # an untrained model is the same for every seed
    return replace(main, do=lambda work: work.outcome_of(same) | {"seed": seed}, needs=(same,), outcome_only=True)


def _training(setting: StudySetting, corpus: str, variant: Variant, seed: int, trial: bool = False) -> Training:
    sizes: WindowSizes = setting.sizes
    tokens = sizes.probe_tokens if trial else sizes.tokens
    of_trial = f"{sizes.tag}{corpus}-rate-{kind_of(sizes, variant)}"
    return Training(
        of_trial if trial else run_name(sizes, corpus, variant, seed),
        _settings(setting, corpus, variant, seed, tokens),
        partial(_train, setting, corpus, variant, seed, tokens, not trial),
        (BACKBONE,) if sizes.decoder.name is None else (),
        tokens or 1,
        partial(_plan, setting, corpus, variant),
    )


def _settings(setting: StudySetting, corpus: str, variant: Variant, seed: int, tokens: int | None) -> dict[str, Any]:
    of_runs = ("overlaps", "more_overlaps", "window", "recurrent", "tokens", "rates", "tried_on", "probe_tokens")
    left_out = (*of_runs, "checkpointing", "tag")
    sizes = all_but(setting.sizes, WindowSizes, left_out) | {"decoder": asdict(setting.sizes.decoder)}
    places = {name: place for name, place in setting.corpora.items() if name in CORPORA[setting.scale]}
    return {**sizes, "corpora": places, "corpus": corpus, "variant": asdict(variant), "seed": seed, "tokens": tokens}


def _plan(setting: StudySetting, corpus: str, variant: Variant) -> RunPlan:
    """Of the backbone, which does nearly all of the work, in one window: with checkpoints at the bottleneck, more is
    never kept."""
    sizes: WindowSizes = setting.sizes
    config = variant.config
    config.backbone, config.head, config.causal = decoder_config(sizes.decoder), "causal-lm", True
    text = TOKENS_OF.get(setting.corpora[corpus])
    tokens = sizes.tokens or (None if text is None else round(sizes.epochs * text))
    with torch.device("meta"):
        model = WindowRecurrentForCausalLM(config)
        mask = torch.zeros(1, 1, variant.window, variant.window)  # without one, transformers needs values to make it
    inputs: dict[str, Any] = {"attention_mask": mask, "use_cache": False}
    window = plan_of(lambda: model.backbone, variant.window, sizes.rows, tokens, sizes.checkpointing, **inputs)
    formula = formula_flops_per_token(model, variant.window, variant.overlap)
    head = 2 * model.config.hidden_size * model.config.vocab_size
    repeated = variant.window / (variant.window - variant.overlap)  # overlaps are processed again, but not scored
    flops = repeated * (window.flops_per_token - head) + head
    return replace(window, parameters=model.num_parameters(), flops_per_token=flops, formula=formula)


# --- training and evaluation


def _train(
    setting: StudySetting,
    corpus: str,
    variant: Variant,
    seed: int,
    tokens: int | None,
    evaluated: bool,
    rate: float,
    work: Work,
) -> Outcome:
    sizes: WindowSizes = setting.sizes
    backbone, tokenizer = load(work, sizes.decoder)
    set_seed(seed)
    model = add_recurrence(backbone, variant.config)
    rows, windows_per_segment = step_of(sizes, variant)
    recipe = recipe_of(
        "window-recurrent",
        sizes,
        rate,
        tokens,
        seed,
        carrier_learning_rate=sizes.carrier_rate,
        batch_size=rows,
        windows_per_segment=windows_per_segment,
        gradient_checkpointing=sizes.checkpointing,
        **{name: getattr(sizes, name) for name in ("epochs", "schedule", "patience", "train")},
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
        if outcome["validation_loss"] is None or not evaluated:
            return outcome
    else:
        outcome = {"parameters": model.num_parameters(), "seed": seed, "tokens": 0, "said": "read as it is"}
    return outcome | {
        "read": {split: _evaluate(model.eval(), variant, of_split) for split, of_split in held.items()},
        "parameters_added": sum(p.numel() for p in model.carrier.parameters()),
        "rows_and_windows": (rows, windows_per_segment),
        **_flops_by_overlap(model, variant),
    }


def step_of(sizes: WindowSizes, variant: Variant) -> tuple[int, int]:
    """Rows, and windows of a segment: as many tokens in a step for all variants, or as many windows."""
    if variant.window == sizes.window and not sizes.equal_steps:
        return sizes.rows, sizes.windows_per_segment
    segment = sizes.windows_per_segment * sizes.window
    count = max(1, round((segment - variant.overlap) / (variant.window - variant.overlap)))
    length = windows.segment_length(count, variant.window, variant.overlap)
    return max(1, round(sizes.rows * segment / length)), count


def training_texts(sizes: WindowSizes, corpus: str, work: Work) -> Sequence[Document]:
    """Of books, those that our own backbone was not pretrained on."""
    documents = work.corpus(corpus).train
    unseen = documents[1::2] if corpus == "books" and sizes.decoder.name is None else documents
    return some_of(unseen, sizes.train_bytes)


def _evaluate(model: Any, variant: Variant, documents: Sequence[TokenizedDocument]) -> dict[str, Any]:
    """With its own memory ("true"), with another document's ("swapped"), and with other overlaps."""
    found = measured(model, documents, ["true", "swapped"] if variant.carries else ["true"])
    for overlap in variant.others:
        found[f"overlap {overlap}"] = measured(plain(model, variant.window, overlap), documents, ["true"])["true"]
    return {name: _saved(measures) for name, measures in found.items()}


def _saved(measures: Measures) -> dict[str, Any]:
    numbers = ("loss", "tokens", "word_perplexity", "bits_per_byte", "tokens_per_second")
    curves = ("by_position", "by_window")
    return {
        **{name: getattr(measures, name) for name in numbers},
        **{name: [round(x, 5) for x in getattr(measures, name).means] for name in curves},
        "documents": documents_of(measures),
    }


def _flops_by_overlap(model: WindowRecurrentForCausalLM, variant: Variant) -> dict[str, dict[int, float]]:
    """Per token: by the paper's formula, and counted with memory and language model head."""
    models = {overlap: plain(model, variant.window, overlap) for overlap in variant.others} | {variant.overlap: model}
    return {
        "flops": {overlap: formula_flops_per_token(model, variant.window, overlap) for overlap in models},
        "counted_flops": {overlap: counted_flops_per_token(one) for overlap, one in models.items()},
    }


# --- lookups for reports


def window_outcomes(setting: StudySetting, outcomes: Mapping[str, Outcome], corpus: str) -> Outcomes:
    return Outcomes(setting, outcomes, partial(run_name, setting.sizes, corpus))


def measure(value: str = "loss", read: str = "true", split: str = "test") -> str:
    """The path of a measure in an outcome."""
    return f"read/{split}/{read}/{value}"
