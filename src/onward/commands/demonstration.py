"""The demo: a real pretrained decoder gains recurrence, beside its controls, in under twenty minutes on two cores."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import PreTrainedTokenizerBase, set_seed

from .. import WindowRecurrenceConfig, add_recurrence
from ..data import Corpus, Document, load_corpus
from ..data.tokens import TokenizedDocument, tokenize
from ..evaluation.measures import paired_difference
from ..evaluation.report import Row
from ..evaluation.run import evaluate
from ..models.pretrained import load_backbone
from ..training import TrainingRecipe, train

BACKBONE = "smollm2-135m"
CONFIG = WindowRecurrenceConfig(carrier="spans", window=64, vectors=16)
OVERLAPS = (0, 8, 24)
STRETCHES = (0.2, 0.6)  # where in each test play a stretch is read
STRETCH_TOKENS = 768
RECIPE = TrainingRecipe(
    train="lora",
    lora_rank=8,
    learning_rate=5e-4,
    carrier_learning_rate=1e-3,
    batch_size=4,
    windows_per_segment=4,
    max_tokens=25_600,
    schedule="linear",
    warmup_steps=5,
    gradient_checkpointing=False,
    evaluate_every_tokens=1_000_000,  # once, at the end
    save_total_limit=1,
)

console = Console()


def run(out: Path, *, quick: bool = False) -> None:
    """Trains plain, constant and recurrent models on the same tokens, and prints the paper's table in small."""
    start = time.time()
    recipe = replace(RECIPE, max_tokens=2_048) if quick else RECIPE
    stretch = STRETCH_TOKENS // 4 if quick else STRETCH_TOKENS
    say(
        f"{BACKBONE} reads Shakespeare in windows of {CONFIG.window} tokens. Three models learn from the same "
        f"{recipe.max_tokens:,} tokens with the same light adapters (LoRA, rank {recipe.lora_rank}): plain windows, a "
        f"learned constant in the memory's place, and recurrence ({CONFIG.carrier}, {CONFIG.vector_count} vectors)."
    )
    _, tokenizer = load_backbone(BACKBONE)
    corpus = load_corpus("shakespeare")
    models = {name: trained(name, corpus, tokenizer, out, recipe) for name in ("none", "constant", CONFIG.carrier)}
    say("Now plays that none of them was trained on. FLOPs per token are counted, with what the memory adds.")
    test = stretches(corpus.test, tokenizer, stretch)
    rows = evaluate(
        models[CONFIG.carrier],
        test,
        tokenizer=tokenizer,
        overlaps=OVERLAPS[:1] if quick else OVERLAPS,
        constant=models["constant"],
        plain_model=models["none"],
        batch_size=len(test),
        out=out,
    )
    say(verdict(rows))
    show_sample(models[CONFIG.carrier], test[0], tokenizer)
    say(f"{(time.time() - start) / 60:.1f} minutes in all. Table, figures and results.json are in {out}.")


def say(text: str) -> None:
    console.print(f"\n{text}\n", markup=False, highlight=False)


def trained(name: str, corpus: Corpus, tokenizer: PreTrainedTokenizerBase, out: Path, recipe: TrainingRecipe) -> Any:
    """One of the three models, trained; a run that was cut short goes on, one that has ended is only loaded."""
    say(f"Training {'plain windows' if name == 'none' else name}")
    backbone, _ = load_backbone(BACKBONE)
    set_seed(recipe.seed)
    model = add_recurrence(backbone, CONFIG if name == CONFIG.carrier else CONFIG.with_carrier(name))
    validation = stretches(corpus.validation, tokenizer, 256)
    train(model, tokenize(corpus.train, tokenizer), validation, tokenizer, out / name, recipe)
    return model.eval()


def stretches(plays: Sequence[Document], tokenizer: PreTrainedTokenizerBase, tokens: int) -> list[TokenizedDocument]:
    """A few stretches of each play, as documents; neighbours, which swap memories, are of different plays."""
    cut = [
        Document(f"{play.name} from {place:.0%}", play.text[play.text.index("\n", int(place * len(play.text))) :])
        for place in STRETCHES
        for play in plays
    ]
    return tokenize(cut, tokenizer, tokens)


def verdict(rows: Sequence[Row]) -> str:
    """Whether recurrence was better at equal cost, and whether by content: with the figures, either way."""
    at = {row.variant: row.measures for row in rows if row.overlap == OVERLAPS[0] and row.measures is not None}
    recurrent = at["recurrent"]
    sentences = []
    for control, meaning in (
        ("plain", "plain windows"),
        ("constant", "a constant in the memory's place"),
        ("swapped", "another document's memory"),
    ):
        gain = paired_difference(at[control], recurrent)
        sure = gain.standard_error is not None and abs(gain.mean) > 2 * gain.standard_error
        better = "better than" if gain.mean > 0 else "no better than"
        doubt = "" if sure else " (within the noise of so little text)"
        sentences.append(
            f"{better} with {meaning}{doubt}: word perplexity {recurrent.word_perplexity:.1f} against "
            f"{at[control].word_perplexity:.1f}"
        )
    return "The recurrent model is " + "; ".join(sentences) + "."


@torch.no_grad()
def show_sample(model: Any, document: TokenizedDocument, tokenizer: PreTrainedTokenizerBase) -> None:
    """A continuation that goes over several windows, from a context of several windows."""
    context = document.ids[None, : 4 * CONFIG.window].long().to(model.device)
    torch.manual_seed(0)
    written = model.generate(
        context, max_new_tokens=2 * CONFIG.window, do_sample=True, temperature=0.7, top_p=0.9, pad_token_id=0
    )
    shown = tokenizer.decode(context[0, -CONFIG.window :]), tokenizer.decode(written[0, context.shape[1] :])
    say(f"A sample. The last window of the context:\n\n{shown[0]}\n\nand what recurrence makes of it:\n\n{shown[1]}")
