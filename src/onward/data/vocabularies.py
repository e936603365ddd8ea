"""Text <-> tokens: bytes, a vocabulary trained on a corpus, or a pretrained tokenizer.

byte_tokenizer()                                         one token per byte
train_vocabulary(documents, 32_000)                      byte-level BPE
train_vocabulary(documents, 32_000, "sentencepiece")     unigram pieces; bytes for the rest
train_vocabulary(documents, 30_000, "wordpiece")         BERT's: lower case, with [CLS], [SEP] and [MASK]
load_tokenizer("bytes" | "my_vocabulary/" | "gpt2")      bytes, a local folder, or a name on the Hub
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..utils.damage import damage_told
from ..utils.fields import FieldError
from ..utils.hub import HubUnreachable, hub_is_reachable, is_hub_name
from .documents import Document
from .packaged import PACKAGED, source_of
from .pieces import PIECE, WORDS, cut_between_words

END = "<end>"
"""The one special token: it ends a text, and pads."""

MOST_TOKENS = 10_000_000


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte: encodes every text and needs no training."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {END: 0} | {letter: i + 1 for i, letter in enumerate(alphabet)}
    return _wrapped(_byte_level(models.BPE(vocab=vocabulary, merges=[])))


def _byte_level(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    # "<end>" in a text, as in this file, does not end it: it is tokenized as letters.
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END, split_special_tokens=True)


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Loads `bytes`, a folder written by save_pretrained, a packaged backbone's tokenizer, or a name on the Hub."""
    name = str(name)
    if name == "bytes":
        return byte_tokenizer()
    folder = Path(source_of(name)).expanduser()
    if name and folder.is_dir():
        if not holds_tokenizer(folder):
            raise FileNotFoundError(f"folder {name!r} holds no tokenizer: save_pretrained one there")
        with damage_told(folder):
            return AutoTokenizer.from_pretrained(folder)
    choices = f"use 'bytes', a folder that holds a tokenizer, {', '.join(map(repr, PACKAGED))}, or a name on the Hub"
    if not is_hub_name(name) or folder.exists():
        raise FileNotFoundError(f"there is no tokenizer {name!r}: {choices}")
    reachable = hub_is_reachable()
    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=not reachable)
    except (OSError, ValueError) as error:
        if reachable:
            raise FileNotFoundError(f"no tokenizer {name!r} is here or on the Hugging Face Hub: {choices}") from error
        raise HubUnreachable(
            f"there is no folder {name!r}, no such tokenizer is in the local cache, and the Hugging Face Hub cannot be "
            f"reached: connect to the network, or {choices}"
        ) from None


def holds_tokenizer(folder: Path) -> bool:
    return any(folder.glob("tokenizer*")) or any(folder.glob("vocab*"))


# --- training --------------------------------------------------------------------------------------

Report = Callable[[str], object]


def train_vocabulary(
    documents: Iterable[Document],
    size: int,
    kind: str = "bpe",
    *,
    max_bytes: int = 100_000_000,
    progress: Report | None = None,
) -> PreTrainedTokenizerFast:
    """Trains a vocabulary of `size` tokens, or fewer if the documents have too little variety; repeatable.

    `bpe` joins bytes. `sentencepiece` is a unigram vocabulary like those of SentencePiece: a space is written ▁, and
    characters too rare for a token are encoded as bytes. Neither mixes letters, digits and signs in a token, both join
    runs of spaces, and both decode every text to what it was. `wordpiece` is BERT's, for masked language models: words
    in lower case without accents are cut into pieces, all except the first begin with ##, and characters too rare for
    a token are unknown.

    Longer corpora are sampled down to `max_bytes`, evenly from beginning to end: 100 MB hold all words that matter,
    and take some minutes. `documents` are read once, one at a time. `progress` is called with what is being done.
    """
    if kind not in KINDS:
        raise FieldError("kind", kind, f"choose {', '.join(map(repr, KINDS))}")
    smallest = len(BYTES) + 1
    if size < smallest:
        problem = f"bytes, or letters, and special tokens alone are {smallest}; choose at least that many"
        raise FieldError("size", size, problem)
    if size > MOST_TOKENS:
        raise FieldError("size", size, f"no vocabulary has that many tokens; choose at most {MOST_TOKENS:,}")
    if max_bytes < 1:
        raise FieldError("max_bytes", max_bytes, "read at least one byte")
    report = progress or (lambda _: None)
    texts = _sample(documents, max_bytes)
    if not any(text.strip() for text in texts):
        raise ValueError("a corpus with no text: a vocabulary needs some documents to be trained on")
    characters = sum(map(len, texts))
    report(f"read {characters:,} characters")
    # Trainers allocate memory for all tokens, and a text has far fewer than this.
    return KINDS[kind](texts, min(size, smallest + 16 * characters), report)


def _sample(documents: Iterable[Document], max_bytes: int) -> list[str]:
    """Every piece of text, or every second, fourth, ... one, until they fit."""
    kept: list[tuple[str, int]] = []
    every, total, number = 1, 0, 0
    for document in documents:
        for piece in _short_pieces(document.text):
            if number % every == 0:
                kept.append((piece, len(piece.encode("utf-8"))))
                total += kept[-1][1]
            number += 1
            while total > max_bytes and len(kept) > 1:
                kept, every = kept[::2], every * 2
                total = sum(size for _, size in kept)
    return [piece for piece, _ in kept]


def _short_pieces(text: str) -> Iterator[str]:
    # Some texts have no whitespace for megabytes; the trainers cannot take words so long.
    for piece in cut_between_words(text):
        yield from (piece[start : start + 2 * PIECE] for start in range(0, len(piece), 2 * PIECE))


def _count_words(texts: Iterable[str], tokenizer: Tokenizer, report: Report) -> Counter[str]:
    report("counting words")
    words: Counter[str] = Counter()
    for text in texts:
        words.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text))
    return words


def _train_bpe(texts: list[str], size: int, report: Report) -> PreTrainedTokenizerFast:
    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    report("joining bytes")
    tokenizer.train_from_iterator(texts, trainer)
    return _wrapped(tokenizer)


# Rarer letters, and all words with them, become unknown. SentencePiece's share would lose "?" in an encyclopedia.
ALMOST_ALL = 0.99995


def _train_wordpiece(texts: list[str], size: int, report: Report) -> PreTrainedTokenizerFast:
    empty = BertTokenizer()
    special = [empty.pad_token, empty.unk_token, empty.cls_token, empty.sep_token, empty.mask_token]
    backend = empty.backend_tokenizer
    words = _count_words((backend.normalizer.normalize_str(text) for text in texts), backend, report)
    first, later = _letters(words, limit=size // 4)
    # The trainer would number ## letters in the order in which it meets them, which is another on every run.
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=2,
        limit_alphabet=len(first),
        initial_alphabet=first,
        special_tokens=[*special, *(f"##{letter}" for letter in later)],
        show_progress=False,
    )
    report("joining letters")
    backend.train_from_iterator(texts, trainer)
    return BertTokenizer(vocab=empty.get_vocab())


def _letters(words: Mapping[str, int], limit: int) -> tuple[list[str], list[str]]:
    """The most frequent letters, up to ALMOST_ALL of the text, and those of them that continue a word."""
    counts: Counter[str] = Counter()
    later: set[str] = set()
    for word, count in words.items():
        for letter in word:
            counts[letter] += count
        later.update(word[1:])
    common = _most_common(counts, ALMOST_ALL, limit // 2)
    return sorted(common), sorted(later.intersection(common))


# --- SentencePiece ---------------------------------------------------------------------------------

SPACE = "▁"
ESCAPE = "\ufdd0"  # a code point that will never be a character
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
COVERAGE = 0.9995  # SentencePiece's
LONGEST = 16  # SentencePiece's


def _train_sentencepiece(texts: list[str], size: int, report: Report) -> PreTrainedTokenizerFast:
    room = size - len(BYTES) - 1
    characters = _common_characters(texts, limit=room // 2)
    between = re.compile(f"[^{re.escape(characters)}]+" if characters else r"(?s:.+)")
    parts = [part for text in texts for part in between.split(text) if part]
    pieces = _train_pieces(parts, room, report) if parts else {}
    # Byte fallback needs a token for the unknown. No text has it or the bytes' names as tokens, because WORDS splits
    # signs from letters.
    vocabulary = [(END, 0.0), *((byte, 0.0) for byte in BYTES)]
    vocabulary += sorted(pieces.items(), key=lambda item: (-item[1], item[0]))
    return _wrapped(_sentencepiece(models.Unigram(vocabulary, unk_id=0, byte_fallback=True)))


def _sentencepiece(model: models.Model) -> Tokenizer:
    tokenizer = Tokenizer(model)
    # SPACE stands for a space, so a SPACE in the text itself is escaped.
    escapes = [(ESCAPE, ESCAPE + "0"), (SPACE, ESCAPE + "1")]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(*pair) for pair in escapes])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="never", split=False),
        ]
    )
    back = [(SPACE, " "), (ESCAPE + "1", SPACE), (ESCAPE + "0", ESCAPE)]
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Fuse(), *(decoders.Replace(*pair) for pair in back)]
    )
    return tokenizer


def _common_characters(texts: list[str], limit: int) -> str:
    """The most frequent characters, up to COVERAGE of the text. Each gets a token."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    return "".join(_most_common(counts, COVERAGE, limit, but=(SPACE, ESCAPE)))


def _most_common(counts: Counter[str], coverage: float, limit: int, but: Collection[str] = ()) -> list[str]:
    missing = coverage * counts.total()
    common: list[str] = []
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if missing <= 0 or len(common) == limit:
            break
        missing -= count
        if character not in but:
            common.append(character)
    return common


def _train_pieces(parts: list[str], room: int, report: Report) -> dict[str, float]:
    """The pieces of a unigram vocabulary and the logarithms of their shares in the text.

    BPE proposes four times as many as there is room for. Then, in turns, words are split in the most likely way, pieces
    are counted again, and the least useful quarter is dropped. The package's own trainer is not used: it sums fractions
    in random order, so it is not repeatable, and it compares letters' counts in the text with pieces' counts in the
    list of words, so it splits common words.
    """
    proposing = _sentencepiece(models.BPE())
    words = _count_words(parts, proposing, report)
    report(f"proposing pieces of {len(words):,} words")
    trainer = trainers.BpeTrainer(vocab_size=4 * room, min_frequency=2, max_token_length=LONGEST, show_progress=False)
    proposing.train_from_iterator(parts, trainer)
    counts = _count_pieces(words, proposing.model)
    while True:
        report(f"{len(counts):,} pieces")
        for _ in range(2):
            scores = _log_shares(counts)
            counts = _count_pieces(words, models.Unigram(list(scores.items()), unk_id=0))
        scores = _log_shares(counts)
        too_many = len(counts) - room
        if too_many <= 0:
            return scores
        losses = {
            piece: count * (scores[piece] - _score_without(piece, scores))
            for piece, count in counts.items()
            if len(piece) > 1
        }
        for piece in sorted(losses, key=lambda piece: (losses[piece], piece))[: min(too_many, len(counts) // 4 + 1)]:
            del counts[piece]


def _count_pieces(words: Mapping[str, int], model: models.Model) -> dict[str, int]:
    tokenizer = Tokenizer(model)
    counts = [0] * tokenizer.get_vocab_size()
    listed = list(words)
    for start in range(0, len(listed), 10_000):
        batch = listed[start : start + 10_000]
        for word, encoding in zip(batch, tokenizer.encode_batch_fast(batch), strict=True):
            for token in encoding.ids:
                counts[token] += words[word]
    return {piece: counts[token] for piece, token in sorted(tokenizer.get_vocab().items())}


def _log_shares(counts: Mapping[str, int]) -> dict[str, float]:
    # A character that only larger pieces hold keeps half a count.
    total = math.log(sum(max(count, 0.5) for count in counts.values()))
    return {piece: math.log(max(count, 0.5)) - total for piece, count in counts.items()}


def _score_without(piece: str, scores: Mapping[str, float]) -> float:
    """The score of the best way to put a piece together from smaller ones."""
    best = [0.0] + [-math.inf] * len(piece)
    for end in range(1, len(piece) + 1):
        for start in range(end):
            if end - start < len(piece):
                best[end] = max(best[end], best[start] + scores.get(piece[start:end], -math.inf))
    return best[-1]


KINDS: dict[str, Callable[[list[str], int, Report], PreTrainedTokenizerFast]] = {
    "bpe": _train_bpe,
    "sentencepiece": _train_sentencepiece,
    "wordpiece": _train_wordpiece,
}
