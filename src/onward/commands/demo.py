"""`onward demo`: a pretrained decoder gains recurrence, next to its controls."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from .options import option
from .shared import Out, console

if TYPE_CHECKING:
    from ..data import Corpus, Document
    from ..data.tokens import TokenizedDocument
    from ..evaluation.report import Row
    from ..training import TrainingRecipe

BACKBONE = "smollm2-135m"
CONFIG: dict[str, Any] = {"carrier": "matched", "window": 64, "slots": 127}
CONTROLS = {"none": "plain windows", "recent": "kept tokens", "constant": "a learned constant"}  # by their carrier
STRETCHES = (0.2, 0.6)  # where in each test play a stretch begins
STRETCH_TOKENS = 768
RECIPE: dict[str, Any] = {
    "train": "lora",
    "lora_rank": 8,
    "learning_rate": 5e-4,
    "carrier_learning_rate": 1e-3,
    "batch_size": 2,
    "windows_per_segment": 8,  # of which the last five see a memory that could not keep everything
    "max_tokens": 25_600,
    "schedule": "linear",
    "warmup_steps": 5,
    "gradient_checkpointing": False,
    "evaluate_every_tokens": 1_000_000,  # once, at the end
    "save_total_limit": 1,
}


def demo(
    out: Out = Path("runs/demo"),
    quick: Annotated[bool, option("Minutes, with too little training to show much.", "--quick")] = False,
) -> None:
    """See recurrence at work: add it to a pretrained model, train it beside its controls, and show the table.

    Example: onward demo --quick
    """
    from ..data import load_corpus
    from ..evaluation.run import evaluate
    from ..models.pretrained import load_backbone
    from ..training import TrainingRecipe

    start = time.time()
    recipe = TrainingRecipe(**RECIPE | ({"max_tokens": 2_048} if quick else {}))
    stretch = STRETCH_TOKENS // 2 if quick else STRETCH_TOKENS
    ours = CONFIG["carrier"]
    show(
        f"{BACKBONE} is trained on Shakespeare in windows of {CONFIG['window']} tokens. Four models learn from the "
        f"same {recipe.max_tokens:,} tokens with the same light adapters (LoRA, rank {recipe.lora_rank}): plain "
        "windows; kept tokens, a text's first one and the last ones before the window, as anyone can keep them; a "
        f"learned constant; and ours ({ours}). A memory has {CONFIG['slots']} keys and values for each head."
    )
    _, tokenizer = load_backbone(BACKBONE)
    corpus = load_corpus("shakespeare")
    models = {name: trained(name, corpus, tokenizer, out, recipe) for name in (*CONTROLS, ours)}
    show(
        "Now plays that none of them was trained on. Ours is the row `recurrent`; in the row `swapped` it has the "
        "memory of another play. FLOPs per token include what the memory adds."
    )
    test = stretches(corpus.test, tokenizer, stretch)
    rows = evaluate(
        models[ours],
        test,
        tokenizer=tokenizer,
        constant=models["constant"],
        kept=models["recent"],
        plain_model=models["none"],
        batch_size=len(test),
        out=out,
    )
    show(verdict(rows))
    show_sample(models[ours], test[0], tokenizer)
    show(f"{(time.time() - start) / 60:.1f} minutes in all. Table, figures and results.json are in {out}.")


def show(text: str) -> None:
    console.print(f"\n{text}\n")


def trained(name: str, corpus: Corpus, tokenizer: Any, out: Path, recipe: TrainingRecipe) -> Any:
    """One of the four models, trained. An interrupted run resumes; a finished one is only loaded."""
    from transformers import set_seed

    from .. import WindowRecurrenceConfig, add_recurrence
    from ..data.tokens import tokenize
    from ..models.pretrained import load_backbone
    from ..training import train

    show(f"Training {CONTROLS.get(name, name)}")
    backbone, _ = load_backbone(BACKBONE)
    set_seed(recipe.seed)
    config = WindowRecurrenceConfig(**CONFIG)
    model = add_recurrence(backbone, config if name == config.carrier else config.with_carrier(name))
    validation = stretches(corpus.validation, tokenizer, 256)
    train(model, tokenize(corpus.train, tokenizer), validation, tokenizer, out / name, recipe)
    return model.eval()


def stretches(plays: Sequence[Document], tokenizer: Any, tokens: int) -> list[TokenizedDocument]:
    """A few stretches of each play, as documents. Neighbours, which swap memories, are from different plays."""
    from ..data import Document
    from ..data.tokens import tokenize

    cut = [
        Document(f"{play.name} from {place:.0%}", play.text[play.text.index("\n", int(place * len(play.text))) :])
        for place in STRETCHES
        for play in plays
    ]
    return tokenize(cut, tokenizer, tokens)


def verdict(rows: Sequence[Row]) -> str:
    """How ours compares with the other controls, with the figures either way. What it is worth, its gain over kept
    tokens, `evaluate` has said."""
    from ..evaluation.measures import paired_difference
    from ..evaluation.worth import is_sure

    at = {row.variant: row.measures for row in rows if row.measures is not None}
    recurrent = at["recurrent"]
    sentences = []
    for control, meaning in (
        ("plain", "plain windows"),
        ("constant", "a constant in the memory's place"),
        ("swapped", "another play's memory"),
    ):
        gain = paired_difference(at[control], recurrent)
        better = "better than" if gain.mean > 0 else "no better than"
        doubt = "" if is_sure(gain) else " (within the noise of so little text)"
        sentences.append(
            f"{better} with {meaning}{doubt}: word perplexity {recurrent.word_perplexity:.1f} against "
            f"{at[control].word_perplexity:.1f}"
        )
    return "The recurrent model is " + "; ".join(sentences) + "."


def show_sample(model: Any, document: TokenizedDocument, tokenizer: Any) -> None:
    """A continuation over several windows, from a context of several windows."""
    import torch

    window = model.config.window
    context = document.ids[None, : 4 * window].long().to(model.device)
    torch.manual_seed(0)
    written = model.generate(
        context, max_new_tokens=2 * window, do_sample=True, temperature=0.7, top_p=0.9, pad_token_id=0
    )
    show(f"A sample. The last window of the context:\n\n{tokenizer.decode(context[0, -window:])}")
    show(f"and the recurrent model's continuation:\n\n{tokenizer.decode(written[0, context.shape[1] :])}")
