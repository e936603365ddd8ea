"""`onward vocabulary`: a tokenizer that fits a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from .options import option
from .shared import Out, TextOptions, console, say


def vocabulary(
    texts: TextOptions,
    size: Annotated[int, option("Number of tokens; a small corpus gives fewer.")] = 32_000,
    kind: Annotated[
        Literal["bpe", "sentencepiece", "wordpiece"], option("Masked language models need wordpiece.")
    ] = "bpe",
    out: Out = Path("runs/vocabulary"),
) -> None:
    """Make a tokenizer that fits your texts, for training from a preset.

    Example: onward vocabulary --corpus my-books/ --size 8000 --out runs/words
    """
    from ..data.tokens import tokenize
    from ..data.vocabularies import holds_tokenizer, train_vocabulary
    from ..utils.files import make_folder, put_all_in_place

    if holds_tokenizer(out):
        raise ValueError(f"--out {out} holds a vocabulary already: choose another folder, or delete it to make it anew")
    corpus = texts.load()
    with console.status("reading") as status:
        tokenizer = train_vocabulary(corpus.train, size, kind, progress=status.update)
    make_folder(out)
    tokenizer.save_pretrained(out / ".unfinished")
    put_all_in_place(out / ".unfinished", out)
    held_out = tokenize(corpus.validation[:3], tokenizer)
    density = sum(document.bytes for document in held_out) / sum(map(len, held_out))
    say(f"{len(tokenizer):,} tokens, {density:.2f} bytes each on validation text: use --tokenizer {out}")
