"""`onward generate`: a text continued, in constant memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from ..utils.fields import FieldError
from .options import option
from .shared import MemoryOptions, Model, Seed, read_text

LOWEST_TEMPERATURE = 1e-6  # divided by less, scores overflow


def generate(
    model: Model,
    memory: MemoryOptions,
    prompt: Annotated[str | None, option("The text to continue.")] = None,
    prompt_file: Annotated[Path | None, option("A file with the text to continue, of any length.")] = None,
    tokens: Annotated[int, option("Number of tokens to write.")] = 200,
    sample: Annotated[bool, option("Draw tokens at random, or take the likeliest each time.")] = True,
    temperature: Annotated[float, option("Above 0; below 1, likely tokens become likelier.")] = 0.8,
    top_p: Annotated[float, option("Draw from the likeliest tokens, up to this probability in all.")] = 0.95,
    endless: Annotated[bool, option("Do not stop at the model's end of text.", "--endless")] = False,
    seed: Seed = 0,
) -> None:
    """Continue a text of any length, in constant memory; tokens are printed as they are generated.

    Example: onward generate runs/books --prompt-file chapter.txt --tokens 5000
    """
    import torch
    from transformers import TextStreamer

    if prompt is not None and prompt_file is not None:
        raise ValueError("--prompt and --prompt-file both say what to continue: give one of them")
    text = prompt if prompt_file is None else read_text(prompt_file, "--prompt-file")
    if not text or not text.strip():
        raise ValueError("there is nothing to continue: give --prompt TEXT or --prompt-file FILE")
    if tokens < 1:
        raise FieldError("tokens", tokens, "write at least 1")
    if sample and not temperature >= LOWEST_TEMPERATURE:
        wanted = "it must be above 0" if not temperature > 0 else f"choose {LOWEST_TEMPERATURE:f} or more"
        raise FieldError("temperature", temperature, f"{wanted}; --no-sample takes the likeliest token each time")
    if sample and not 0 < top_p <= 1:
        raise FieldError("top_p", top_p, "it must be above 0 and at most 1, which draws from all tokens")
    loaded, tokenizer = memory.load(model)
    torch.manual_seed(seed)
    options: dict[str, Any] = {"do_sample": sample} | ({"eos_token_id": -1} if endless else {})
    if sample:
        options |= {"temperature": temperature, "top_p": top_p}
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids.to(loaded.device)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    loaded.generate(ids, max_new_tokens=tokens, streamer=TextStreamer(tokenizer), pad_token_id=pad, **options)
