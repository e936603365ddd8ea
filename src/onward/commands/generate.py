"""`onward generate`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .shared import Model, load_model, read_text

COLDEST = 1e-6  # divided by less, scores have no numbers


def generate(
    model: Model,
    prompt: Annotated[str | None, typer.Option(help="The text to go on from.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="A file with it; of any length.")] = None,
    tokens: Annotated[int, typer.Option(help="How many tokens to write.")] = 200,
    window: Annotated[int | None, typer.Option(help="For a plain backbone: its window.")] = None,
    sample: Annotated[bool, typer.Option(help="Draw tokens at random instead of the likeliest.")] = True,
    temperature: Annotated[float, typer.Option(help="Above 0; below 1 the likely tokens become likelier.")] = 0.8,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens that together have this share.")] = 0.95,
    endless: Annotated[bool, typer.Option("--endless", help="Do not stop at the model's end of text.")] = False,
    seed: int = 0,
) -> None:
    """Write on from a prompt, without end and at constant memory; the text appears as it is made."""
    import torch
    from transformers import TextStreamer

    if prompt is not None and prompt_file is not None:
        raise ValueError("--prompt and --prompt-file both say what to go on from: give one of them")
    text = prompt if prompt_file is None else read_text(prompt_file, "--prompt-file")
    if not text or not text.strip():
        raise ValueError("there is nothing to go on from: give --prompt TEXT or --prompt-file FILE")
    if tokens < 1:
        raise ValueError(f"--tokens {tokens}: write at least 1")
    if sample and not temperature > 0:
        raise ValueError(
            f"--temperature {temperature}: it must be above 0; --no-sample takes the likeliest token each time"
        )
    if sample and temperature < COLDEST:
        raise ValueError(
            f"--temperature {temperature}: choose {COLDEST:f} or more; --no-sample takes the likeliest token each time"
        )
    if sample and not 0 < top_p <= 1:
        raise ValueError(f"--top-p {top_p}: it must be above 0 and at most 1, which draws from all tokens")
    loaded, tokenizer = load_model(model, window)
    torch.manual_seed(seed)
    options: dict[str, Any] = {"do_sample": sample} | ({"eos_token_id": -1} if endless else {})
    if sample:
        options |= {"temperature": temperature, "top_p": top_p}
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids.to(loaded.device)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    loaded.generate(ids, max_new_tokens=tokens, streamer=TextStreamer(tokenizer), pad_token_id=pad, **options)
