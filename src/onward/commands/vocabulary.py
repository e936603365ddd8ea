"""`onward vocabulary`"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .shared import CorpusName, Out, console


class Kind(StrEnum):
    bpe = "bpe"
    sentencepiece = "sentencepiece"


def vocabulary(
    corpus: CorpusName = "shakespeare",
    size: Annotated[int, typer.Option(help="How many tokens; of little text there are fewer.")] = 32_000,
    kind: Annotated[Kind, typer.Option(help="Joined bytes, or pieces as SentencePiece has them.")] = Kind.bpe,
    out: Out = Path("runs/vocabulary"),
) -> None:
    """Make a vocabulary of a corpus's training text, for `onward train PRESET --tokenizer FOLDER`."""
    from ..corpora import load_corpus
    from ..streams import tokenize
    from ..vocabularies import train_vocabulary

    texts = load_corpus(corpus)
    with console.status("reading") as status:
        tokenizer = train_vocabulary(texts.train, size, kind.value, progress=status.update)
    tokenizer.save_pretrained(out)
    held_out = tokenize(texts.validation[:3], tokenizer)
    density = sum(document.bytes for document in held_out) / sum(map(len, held_out))
    console.print(f"{len(tokenizer):,} tokens, {density:.2f} bytes each on validation text: use --tokenizer {out}")
