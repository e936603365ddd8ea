"""The command line: verbs are functions, and each says what it made and where."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Recurrence for Transformers: read, train and write documents of any length.",
)
console = Console()

Model = Annotated[str, typer.Argument(help="A folder, a Hub name, or a packaged one: smollm2-135m, minilm-l6.")]
CorpusName = Annotated[
    str, typer.Option("--corpus", help="shakespeare, pg19, wikitext-103, installed-code, hub:NAME, or a path.")
]
Out = Annotated[Path, typer.Option("--out", help="The folder that results go into.")]


class Trained(StrEnum):
    everything = "all"
    carrier = "carrier"
    lora = "lora"


class Split(StrEnum):
    train = "train"
    validation = "validation"
    test = "test"


def main() -> None:
    """Runs a verb; what goes wrong is one sentence, not a page of Python (that is for ONWARD_TRACEBACK=1)."""
    sys.argv[1:] = spread_numbers(sys.argv[1:], "--overlap")
    try:
        app()
    except (ValueError, TypeError, OSError, RuntimeError, ArithmeticError, ImportError) as error:
        if os.environ.get("ONWARD_TRACEBACK"):
            raise
        Console(stderr=True).print(f"onward: {error}", markup=False, highlight=False, soft_wrap=True)
        raise SystemExit(1) from None


def spread_numbers(arguments: list[str], option: str) -> list[str]:
    """Lets one option take many numbers: `--overlap 0 5 10` for `--overlap 0 --overlap 5 --overlap 10`."""
    spread: list[str] = []
    inside = first = False
    for argument in arguments:
        if inside and argument.isdigit():
            spread += [argument] if first else [option, argument]
            first = False
            continue
        inside = first = argument == option
        spread.append(argument)
    return spread


def load_model(name: str, window: int | None = None, head: Any = None) -> tuple[Any, Any]:
    """A recurrent model and its tokenizer; a plain backbone is read in plain windows."""
    from transformers import AutoModelForCausalLM

    from . import add_recurrence
    from .models.window_recurrent import WindowRecurrentModel
    from .pretrained import load_backbone

    refuse_encoder(name)
    model, tokenizer = load_backbone(name, head or AutoModelForCausalLM)
    if not isinstance(model, WindowRecurrentModel):
        if window is None:
            raise ValueError(f"{name} has no recurrence: say with --window in which windows to read it")
        model = add_recurrence(model, carrier="none", window=window)
    elif window is not None and window != model.config.window:
        raise ValueError(f"{name} has windows of its own, of {model.config.window} tokens: leave --window out")
    return on_device(model.eval()), tokenizer


def refuse_encoder(name: str) -> None:
    from .pretrained import PACKAGED

    if name in PACKAGED and PACKAGED[name].is_encoder:
        raise ValueError(f"{name} is an encoder, and this verb is for language models: use `onward embed` with it")


def on_device(model: Any) -> Any:
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return model if accelerator is None else model.to(accelerator)


@app.command()
def train(
    backbone: Model,
    corpus: CorpusName = "shakespeare",
    out: Out = Path("runs/train"),
    carrier: Annotated[str, typer.Option(help="What is carried: spans, pooled, constant or none.")] = "pooled",
    window: Annotated[int, typer.Option(help="Tokens the backbone sees at once.")] = 300,
    overlap: Annotated[int, typer.Option(help="Tokens a window repeats from the one before.")] = 0,
    vectors: Annotated[int | None, typer.Option(help="How many vectors are inserted.")] = None,
    insert_at: Annotated[str | None, typer.Option(help="A layer from 1, several as 2,5,9, or all.")] = None,
    trained: Annotated[Trained, typer.Option("--train", help="Which weights are trained.")] = Trained.everything,
    windows_per_segment: Annotated[int, typer.Option(help="Windows that one step goes back through.")] = 20,
    batch_size: Annotated[int, typer.Option(help="Segments in a step, over all processes.")] = 8,
    learning_rate: Annotated[float | None, typer.Option(help="Of the backbone (or its adapters).")] = None,
    carrier_learning_rate: Annotated[float | None, typer.Option(help="Of the carrier.")] = None,
    residual: Annotated[bool, typer.Option(help="Without it `pooled` is the paper's to the letter.")] = True,
    lora_rank: Annotated[int, typer.Option(help="Of the adapters, with --train lora.")] = 16,
    schedule: Annotated[str, typer.Option(help="Of the learning rate: constant, linear or cosine.")] = "constant",
    warmup_steps: Annotated[int, typer.Option(help="At most; never more than half of all steps.")] = 100,
    epochs: Annotated[float, typer.Option(help="Times through the corpus.")] = 2.0,
    max_tokens: Annotated[int | None, typer.Option(help="Stop after so many tokens.")] = None,
    evaluate_every: Annotated[int, typer.Option(help="Tokens between validations.")] = 2_000_000,
    save_every: Annotated[int | None, typer.Option(help="Tokens between checkpoints; as validations.")] = None,
    segments_at_once: Annotated[int | None, typer.Option(help="Of a step's segments; fewer need less.")] = None,
    checkpointing: Annotated[bool, typer.Option(help="Keep only the state between windows.")] = True,
    with_controls: Annotated[
        bool, typer.Option("--with-controls", help="Also train plain windows, and a constant for a memory.")
    ] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Log to tensorboard.")] = False,
    seed: int = 0,
) -> None:
    """Fine-tune a backbone with recurrence. Killed at any moment, the same command goes on from there."""
    from transformers import set_seed

    from . import WindowRecurrenceConfig, add_recurrence
    from .corpora import load_corpus
    from .pretrained import load_backbone
    from .streams import tokenize
    from .training import TrainingRecipe
    from .training import train as run

    fields: dict[str, Any] = {"carrier": carrier, "window": window, "overlap": overlap, "vectors": vectors}
    config = WindowRecurrenceConfig(**fields, insert_at=_layers(insert_at), residual=residual)
    refuse_encoder(backbone)
    if learning_rate is None and trained is Trained.lora:
        learning_rate = 5e-4  # adapters start from nothing, and need more than weights
    rates: dict[str, Any] = {"learning_rate": learning_rate, "carrier_learning_rate": carrier_learning_rate}
    recipe = TrainingRecipe(
        **{name: rate for name, rate in rates.items() if rate is not None},
        train=trained.value,
        windows_per_segment=windows_per_segment,
        batch_size=batch_size,
        epochs=epochs,
        max_tokens=max_tokens,
        evaluate_every_tokens=evaluate_every,
        save_every_tokens=save_every,
        segments_at_once=segments_at_once,
        lora_rank=lora_rank,
        schedule=schedule,
        warmup_steps=warmup_steps,
        gradient_checkpointing=checkpointing,
        seed=seed,
    )
    texts = load_corpus(corpus)
    jobs = {out: config}
    if with_controls and carrier not in ("constant", "none"):
        jobs[out / "constant"] = config.with_carrier("constant")
        if trained is not Trained.carrier:  # a backbone that was not trained is its own plain control
            jobs[out / "plain"] = config.with_carrier("none")
    for folder, settings in jobs.items():
        model, tokenizer = load_backbone(backbone)
        set_seed(seed)  # a carrier starts from random numbers
        result = run(
            add_recurrence(model, settings),
            tokenize(texts.train, tokenizer),
            tokenize(texts.validation, tokenizer, texts.validation_tokens),
            tokenizer,
            folder,
            recipe,
            report_to="tensorboard" if tensorboard else "none",
        )
        console.print(f"{settings.carrier}: validation loss {result.best_validation_loss:.4f}, saved in {folder}")


def _layers(text: str | None) -> Any:
    if text is None or text == "all":
        return text
    try:
        layers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--insert-at {text!r}: give a layer, several as 2,5,9, or all") from None
    return layers[0] if len(layers) == 1 else layers


@app.command()
def evaluate(
    model: Model,
    corpus: CorpusName = "shakespeare",
    overlap: Annotated[list[int] | None, typer.Option(help="One or more, as --overlap 0 5 10.")] = None,
    window: Annotated[int | None, typer.Option(help="For a plain backbone: its window.")] = None,
    split: Annotated[Split, typer.Option(help="Which part of the corpus.")] = Split.test,
    max_tokens: Annotated[int | None, typer.Option(help="Of each document, only the first so many.")] = None,
    batch_size: int = 8,
    out: Out = Path("runs/evaluate"),
) -> None:
    """Perplexity and cost, next to the controls: plain windows, a constant for a memory, memories swapped."""
    from .corpora import load_corpus
    from .evaluation.run import evaluate as run
    from .streams import tokenize

    loaded, tokenizer = load_model(model, window)
    texts = load_corpus(corpus)
    if max_tokens is not None and max_tokens < 2:
        raise ValueError(f"--max-tokens {max_tokens}: at least 2 are needed, one to read and one to predict")
    limit = max_tokens or (texts.validation_tokens if split is Split.validation else None)
    documents = tokenize(getattr(texts, split.value), tokenizer, limit)
    controls = {
        name: load_model(str(Path(model) / name))[0] if (Path(model) / name / "config.json").is_file() else None
        for name in ("constant", "plain")
    }
    run(
        loaded,
        documents,
        tokenizer=tokenizer,
        overlaps=overlap,
        constant=controls["constant"],
        plain_model=controls["plain"],
        batch_size=batch_size,
        out=out,
    )
    console.print(f"table, figures and results.json are in {out}")


@app.command()
def generate(
    model: Model,
    prompt: Annotated[str | None, typer.Option(help="The text to go on from.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="A file with it; of any length.")] = None,
    tokens: Annotated[int, typer.Option(help="How many tokens to write.")] = 200,
    window: Annotated[int | None, typer.Option(help="For a plain backbone: its window.")] = None,
    sample: Annotated[bool, typer.Option(help="Draw tokens at random instead of the likeliest.")] = True,
    temperature: float = 0.8,
    top_p: float = 0.95,
    endless: Annotated[bool, typer.Option("--endless", help="Do not stop at the model's end of text.")] = False,
    seed: int = 0,
) -> None:
    """Write on from a prompt, without end and at constant memory; the text appears as it is made."""
    import torch
    from transformers import TextStreamer

    text = prompt_file.read_text(encoding="utf-8") if prompt_file else prompt
    if not text or not text.strip():
        raise ValueError("there is nothing to go on from: give --prompt TEXT or --prompt-file FILE")
    loaded, tokenizer = load_model(model, window)
    torch.manual_seed(seed)
    if sample and temperature <= 0:
        raise ValueError(f"--temperature {temperature} draws nothing: use --no-sample for the likeliest tokens")
    options: dict[str, Any] = {"do_sample": sample} | ({"eos_token_id": -1} if endless else {})
    if sample:
        options |= {"temperature": temperature, "top_p": top_p}
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids.to(loaded.device)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    loaded.generate(ids, max_new_tokens=tokens, streamer=TextStreamer(tokenizer), pad_token_id=pad, **options)


@app.command()
def embed(
    model: Model,
    files: Annotated[list[Path], typer.Argument(help="Text files, one document each.")],
    out: Annotated[Path, typer.Option(help="Where the vectors go.")] = Path("runs/embeddings.safetensors"),
    window: Annotated[int | None, typer.Option(help="For a plain backbone: its window.")] = None,
    overlap: Annotated[int, typer.Option(help="For a plain backbone: tokens seen twice.")] = 0,
    tokens: Annotated[bool, typer.Option("--tokens", help="Also a vector for each token.")] = False,
) -> None:
    """Vectors of documents of any length, from encoders and decoders."""
    from rich.progress import track
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModel

    from . import add_recurrence
    from .corpora import load_documents
    from .models.window_recurrent import MODELS, WindowRecurrenceConfig, WindowRecurrentModel
    from .pretrained import load_backbone

    auto = AutoModel
    if (Path(model) / "config.json").is_file():
        config = AutoConfig.from_pretrained(model)
        if isinstance(config, WindowRecurrenceConfig) and config.head:
            auto = MODELS[config.head].auto_class
    loaded, tokenizer = load_backbone(model, auto)
    if not isinstance(loaded, WindowRecurrentModel):
        longest = min(tokenizer.model_max_length, loaded.config.max_position_embeddings, 512)
        loaded = add_recurrence(loaded, carrier="none", window=window or longest, overlap=overlap)
    reader: Any = on_device(loaded.eval())
    vectors: dict[str, Any] = {}
    import torch

    with torch.no_grad():
        for file in track(files, "documents", console=console):
            for document in load_documents(file):
                if f"{document.name}.document" in vectors:
                    raise ValueError(f"two documents are called {document.name!r}: embed them into different files")
                ids = tokenizer(document.text, return_tensors="pt").input_ids.to(reader.device)
                result = reader.embed(ids)
                vectors[f"{document.name}.document"] = result.documents[0].contiguous()
                if tokens:
                    vectors[f"{document.name}.tokens"] = result.tokens[0].contiguous()
    out.parent.mkdir(parents=True, exist_ok=True)
    save_file(vectors, out)
    console.print(f"{len(vectors)} tensors are in {out}")


@app.command()
def inspect(
    model: Model,
    window: Annotated[int | None, typer.Option(help="For a plain backbone: its window.")] = None,
    text: Annotated[Path | None, typer.Option(help="A text: shows how much of the attention memory gets.")] = None,
) -> None:
    """What is in a model: parameters, cost per token, where the memory goes in, is the seam taken."""
    from .inspection import facts, memory_attention

    loaded, tokenizer = load_model(model, window)
    table = Table(show_header=False, box=None)
    for name, value in facts(loaded).items():
        table.add_row(f"[bold]{name}[/bold]", value)
    console.print(table)
    if text is not None:
        ids = tokenizer(text.read_text(encoding="utf-8"), return_tensors="pt", add_special_tokens=False).input_ids
        shares = memory_attention(loaded, ids.to(loaded.device))
        listed = ", ".join(f"{layer}: {100 * share:.0f} %" for layer, share in shares.items())
        console.print(f"attention that goes to the memory in the second window, by layer: {listed or 'none'}")


@app.command()
def demo(
    out: Out = Path("runs/demo"),
    quick: Annotated[bool, typer.Option("--quick", help="Minutes, but too little training to show much.")] = False,
) -> None:
    """Add recurrence to a real pretrained model, fine-tune it beside its controls, and show the table."""
    from .demo import run

    run(out, quick=quick)


if __name__ == "__main__":
    main()
