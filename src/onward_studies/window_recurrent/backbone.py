"""`backbone`: the small decoder, pretrained here, that studies of window recurrence start from.

It is trained on an encyclopedia and every second book; those studies train on the other books. At the papers' scale
nothing is run: the backbone is GPT-2, from the Hub.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from transformers import (
    AutoConfig,
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)

from onward import add_recurrence
from onward.data import Document
from onward.data.tokens import tokenize
from onward.models.pretrained import load_backbone
from onward.training.checkpoints import writing
from onward.utils.files import whole_folder
from onward.utils.manifests import write_manifest
from onward.utils.processes import is_first

from ..engine.figures import one_panel
from ..engine.folders import MODEL
from ..engine.reporting import Report, Table
from ..engine.sizes import CountOrZero, LearningRate, by_scale, scales_of
from ..engine.study import Outcome, Run, Study, StudySetting
from ..engine.texts import check_texts, some_of
from ..engine.trainings import recipe_of, tokenizer_of, train_once, vocabulary_run
from ..engine.work import Work

BACKBONE = "backbone"


@dataclass(frozen=True)
class Decoder:
    """Shaped like Llama; or with a `name`, a pretrained decoder, and no other field counts. It is trained on
    `bytes_of_each` of the encyclopedia and of the books."""

    name: str | None = None
    layers: int = by_scale(3, 4)
    width: int = by_scale(32, 256)
    heads: int = by_scale(2, 4)
    vocabulary: int = by_scale(300, 8_000)
    context: int = by_scale(64, 512)
    tokens: int = by_scale(6_000, 3_000_000)
    rows: int = by_scale(8, 2)
    learning_rate: LearningRate = by_scale(1e-2, 1e-3)
    warmup_steps: CountOrZero = by_scale(2, 400)
    evaluate_every: int = by_scale(3_000, 500_000)
    bytes_of_each: int = by_scale(30_000, 30_000_000)
    held: int = by_scale(2, 12)
    held_tokens: int = by_scale(200, 4_000)


DECODERS = {**scales_of(Decoder), "paper": Decoder(name="gpt2")}
CORPORA = {
    "smoke": {"books": "shakespeare", "wikipedia": "shakespeare"},
    "laptop": {"books": "pg19", "wikipedia": "wikitext-103"},
    "paper": {"books": "pg19", "wikipedia": "wikitext-103"},
}


def backbone_runs(setting: StudySetting, decoder: Decoder) -> list[Run]:
    """The vocabulary and the decoder; none if it is a pretrained one."""
    if decoder.name is not None:
        return []
    texts = {name: setting.corpora[name] for name in ("books", "wikipedia")} | {"bytes_of_each": decoder.bytes_of_each}
    vocabulary = vocabulary_run("bpe", decoder.vocabulary, partial(_texts, decoder), texts, "books-wikipedia")
    pretraining = partial(_pretrain, decoder, vocabulary.name)
    return [vocabulary, Run(BACKBONE, {**texts, **asdict(decoder)}, pretraining, (vocabulary.name,), decoder.tokens)]


def _texts(decoder: Decoder, work: Work) -> list[Document]:
    books, articles = work.corpus("books").train[::2], work.corpus("wikipedia").train
    return [*some_of(books, decoder.bytes_of_each), *some_of(articles, decoder.bytes_of_each)]


def _pretrain(decoder: Decoder, vocabulary: str, work: Work) -> Outcome:
    tokenizer = tokenizer_of(work, vocabulary)
    set_seed(0)
    end = tokenizer.eos_token_id
    config = decoder_config(decoder, vocab_size=len(tokenizer), bos_token_id=end, eos_token_id=end)
    # Plain windows as long as its context, each a segment of its own, as decoders are usually pretrained.
    model = add_recurrence(LlamaForCausalLM(config), carrier="none", window=decoder.context)
    own = {"schedule": "cosine", "weight_decay": 0.1, "patience": None, "gradient_checkpointing": False}
    own |= {"batch_size": decoder.rows, "windows_per_segment": 1}
    recipe = recipe_of("window-recurrent", decoder, decoder.learning_rate, decoder.tokens, 0, **own)
    held = [
        document
        for name in ("books", "wikipedia")
        for document in tokenize(work.corpus(name).validation[: decoder.held], tokenizer, decoder.held_tokens)
    ]
    outcome = train_once(work, model, (BACKBONE, partial(_texts, decoder, work)), held, tokenizer, recipe)
    if outcome["validation_loss"] is None:
        raise ArithmeticError(f"the backbone ended with NaN ({outcome['ended']}): give it a smaller learning_rate")
    if is_first():
        place = work.folder / MODEL / BACKBONE
        with writing(place, work.folder / MODEL), whole_folder(place) as unfinished:
            model.backbone.save_pretrained(unfinished)
            tokenizer.save_pretrained(unfinished)
            write_manifest(unfinished)
    return outcome


def decoder_config(decoder: Decoder, **more: Any) -> PreTrainedConfig:
    if decoder.name in PRETRAINED_SHAPES:
        return PRETRAINED_SHAPES[decoder.name]()
    if decoder.name is not None:
        return AutoConfig.from_pretrained(decoder.name)
    # In a training as short as this, GPT-2's shape learns to use no more than a few dozen tokens:
    # results/backbone/notes.md.
    fields: dict[str, Any] = {
        "vocab_size": decoder.vocabulary,
        "max_position_embeddings": decoder.context,
        "hidden_size": decoder.width,
        "intermediate_size": 8 * decoder.width // 3 // 16 * 16,  # as many weights as 4 times the width without a gate
        "num_hidden_layers": decoder.layers,
        "num_attention_heads": decoder.heads,
        "num_key_value_heads": decoder.heads,
        "tie_word_embeddings": True,
    }
    return LlamaConfig(**fields | more)


def _smollm2() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )


PRETRAINED_SHAPES: dict[str, Callable[[], PreTrainedConfig]] = {"gpt2": GPT2Config, "smollm2-135m": _smollm2}
"""So that plans need not download them."""


def load(work: Work, decoder: Decoder) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    return load_backbone(decoder.name or str(work.model_of(BACKBONE, BACKBONE)))


def report(setting: StudySetting, outcomes: Mapping[str, Outcome]) -> Report:
    found = outcomes.get(BACKBONE)
    if found is None:
        return Report("A backbone of our own", "It has not been pretrained yet.", [])
    row = {
        "model": "Llama's shape",
        "parameters": f"{found['parameters']:,}",
        "tokens": f"{found['tokens']:,}",
        "hours": f"{found['training_seconds'] / 3600:.1f}",
        "validation loss, nats per token": f"{found['validation_loss']:.3f}",
    }
    figure, panel = one_panel(6, 3.6, "tokens read (millions)", "validation loss (nats per token)")
    tokens, losses = zip(*found["curve"], strict=True)
    panel.plot([n / 1e6 for n in tokens], losses, color="0.0", marker="o", markersize=3, linewidth=1)
    summary = f"A decoder pretrained on {found['tokens']:,} tokens, to {found['validation_loss']:.3f} nats per token."
    return Report("A backbone of our own", summary, [Table.of("Pretraining", [row])], {"pretraining": figure})


def runs(setting: StudySetting) -> list[Run]:
    return backbone_runs(setting, setting.sizes)


STUDIES = [Study("backbone", CORPORA, DECODERS, runs, report, check_texts)]
