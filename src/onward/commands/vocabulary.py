"""`onward vocabulary`"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .shared import CorpusName, Field, Out, Pattern, console, load_texts, say, worded


class Kind(StrEnum):
    bpe = "bpe"
    sentencepiece = "sentencepiece"
    wordpiece = "wordpiece"


def vocabulary(
    corpus: CorpusName = "shakespeare",
    pattern: Pattern = None,
    field: Field = None,
    size: Annotated[int, typer.Option(help="How many tokens; of little text there are fewer.")] = 32_000,
    kind: Annotated[Kind, typer.Option(help="Joined bytes, pieces as SentencePiece has them, or BERT's.")] = Kind.bpe,
    out: Out = Path("runs/vocabulary"),
) -> None:
    """Make a vocabulary of a corpus's training text, for `onward train PRESET --tokenizer FOLDER`.

    Block-recurrent models take any kind, masked language models (bert, recurrent-bert) wordpiece.
    """
    from ..data.tokens import tokenize
    from ..data.vocabularies import holds_tokenizer, train_vocabulary
    from ..utils.files import make_folder, put_all_in_place

    if holds_tokenizer(out):
        raise ValueError(f"--out {out} holds a vocabulary already: choose another folder, or delete it to make it anew")
    texts = load_texts(corpus, pattern, field)
    with console.status("reading") as status, worded({r"\bsize=": "--size "}):
        tokenizer = train_vocabulary(texts.train, size, kind.value, progress=status.update)
    make_folder(out)
    tokenizer.save_pretrained(out / ".unfinished")
    put_all_in_place(out / ".unfinished", out)
    held_out = tokenize(texts.validation[:3], tokenizer)
    density = sum(document.bytes for document in held_out) / sum(map(len, held_out))
    say(f"{len(tokenizer):,} tokens, {density:.2f} bytes each on validation text: use --tokenizer {out}")
