"""How well a recurrent language model predicts whole documents, and what its memory is worth.

A gain can come from what a memory holds, or merely from there being one. So a document can also be scored with the
memories of another document ("swapped"), and by block-recurrent models with the states that every document starts
from ("ablated").
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.tokens import TokenizedDocument
from ..models.window_recurrent import WindowRecurrentForCausalLM, WindowRecurrentModel, add_recurrence
from ..models.window_recurrent.probe import probe
from ..utils.fields import FieldError
from ..utils.memory import peak_memory
from .controls import controls_of
from .measures import Measures
from .scoring import NothingToSwap, Tally, batches, score_batch


def measure(
    model: PreTrainedModel,
    documents: Sequence[TokenizedDocument],
    *,
    memory: str = "true",
    batch_size: int = 8,
    max_tokens: int | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    progress: Callable[[int], None] | None = None,
) -> Measures:
    """Scores every token of whole documents except each one's first, with one memory; see `measure_memories`."""
    options: dict[str, Any] = {"batch_size": batch_size, "max_tokens": max_tokens, "tokenizer": tokenizer}
    return measure_memories(model, documents, memories=(memory,), progress=progress, **options)[memory]


@torch.no_grad()
def measure_memories(
    model: PreTrainedModel,
    documents: Sequence[TokenizedDocument],
    *,
    memories: Sequence[str] | None = None,
    batch_size: int = 8,
    max_tokens: int | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Measures]:
    """Scores every token of whole documents except each one's first, once with each of several memories.

    `memories`, by default all that the model has: "true"; "swapped", where every window is scored with the memory
    that another document of the batch has at that window, or had at its end; and for block-recurrent models, where
    the memory is everything from further back than the window, "ablated", where every block is scored with the states
    that documents start from. Several memories at once cost less: swapped memories come from the true run.

    `max_tokens` scores only the beginning of each document; the `tokenizer` is then needed to count its words and
    bytes. `progress` is called with the number of tokens that have just been scored.
    """
    controls = controls_of(model)
    memories = controls.memories if memories is None else memories
    for memory in memories:
        if memory not in controls.memories:
            raise FieldError("memory", memory, f"it is not known; choose one of {', '.join(controls.memories)}")
    if batch_size < 1:
        raise FieldError("batch_size", batch_size, "it must be at least 1")
    if max_tokens is not None and max_tokens < 2:
        raise FieldError("max_tokens", max_tokens, "the first token is not scored, so at least 2 are needed")
    if "swapped" in memories and batch_size < 2:
        raise NothingToSwap("memories are swapped within a batch: use a batch_size of at least 2")
    documents = [first_tokens(document, max_tokens, tokenizer) for document in documents]
    lengths = [max(0, len(document) - 1) for document in documents]  # the last token predicts nothing
    if not any(lengths):
        raise ValueError("there is nothing to score: give at least one document of two tokens or more")
    together = batches(lengths, batch_size, controls.window, swapped="swapped" in memories)
    tallies = {memory: Tally(documents) for memory in memories}
    training = model.training
    model.eval()
    try:
        # Weights may only now be loaded from disk, which should count neither as time nor as memory.
        model(torch.zeros(1, 1, dtype=torch.long, device=model.device))
        with peak_memory(model.device) as peak:
            for batch in together:
                score_batch(controls, documents, batch, tallies, progress or (lambda scored: None))
    finally:
        model.train(training)
    window, overlap = controls.window, controls.overlap
    return {memory: tally.measures(window, overlap, peak(), memory) for memory, tally in tallies.items()}


def first_tokens(
    document: TokenizedDocument, max_tokens: int | None, tokenizer: PreTrainedTokenizerBase | None
) -> TokenizedDocument:
    """A document cut to `max_tokens`, with the words and bytes of the text that is left."""
    if max_tokens is None or len(document) <= max_tokens:
        return document
    if tokenizer is None:
        problem = f"it cuts document {document.name!r}, and its words must be counted again; pass the tokenizer, too"
        raise FieldError("max_tokens", max_tokens, problem)
    whole, kept = (_decode(tokenizer, ids) for ids in (document.ids, document.ids[:max_tokens]))
    # Some tokenizers do not reproduce the text exactly; so the counts are scaled instead of counted.
    words = document.words * len(kept.split()) / max(1, len(whole.split()))
    size = document.bytes * len(kept.encode()) / max(1, len(whole.encode()))
    return TokenizedDocument(document.name, document.ids[:max_tokens], round(words), round(size))


def _decode(tokenizer: PreTrainedTokenizerBase, ids: Tensor) -> str:
    text = str(tokenizer.decode(ids.tolist(), clean_up_tokenization_spaces=False))
    return text.rstrip("\ufffd")  # the beginning of a character that was cut


# --- models to compare with -------------------------------------------------------------------------


def plain(model: PreTrainedModel, window: int, overlap: int = 0) -> WindowRecurrentForCausalLM:
    """The backbone of `model`, or `model` itself, with windows that carry nothing. Weights are shared."""
    return add_recurrence(backbone_of(model), carrier="none", insert_at=1, window=window, overlap=overlap)


def kept_tokens(model: WindowRecurrentForCausalLM) -> WindowRecurrentForCausalLM:
    """The backbone of `model`, whose memory is the last tokens in as many bytes as the model's. Weights are shared."""
    config = copy.deepcopy(model.config)
    config.dtype = model.dtype
    if config.slot_shapes is None:  # models saved by earlier versions
        config.slot_shapes = probe(model.backbone, model.config).shapes
    return add_recurrence(model.backbone, config.with_carrier("recent"))


def full_context(model: PreTrainedModel, window: int, cap: int = 512) -> WindowRecurrentForCausalLM | None:
    """The plain backbone with the longest window it allows, at most `cap`; None if `window` is as long.

    Windows overlap by half, so that every token sees at least half a window before it.
    """
    positions = getattr(backbone_of(model).config.get_text_config(), "max_position_embeddings", None)
    longest = min(positions or cap, cap)
    return plain(model, longest, longest // 2) if longest > window else None


def backbone_of(model: Any) -> Any:
    return model.backbone if isinstance(model, WindowRecurrentModel) else model
