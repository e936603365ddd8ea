"""Compares recurrence with one more layer on source code: Rec:fixed:skip with 6 layers, Slide with 7.

The text is the Python source of installed packages, one document for each folder. Validation and test use
whole packages that are not trained on. Both models see the same tokens in the same order.

    python examples/source_code.py train Rec:fixed:skip --seed 0     # one run; run it again to resume it
    python examples/source_code.py train Slide:13L --seed 0
    python examples/source_code.py report                            # table and curves of all finished runs
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import random
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from transformers import AutoTokenizer, PreTrainedTokenizerBase, set_seed

from onward import BlockRecurrentConfig, BlockRecurrentForCausalLM
from onward.data import Document, load_corpus
from onward.data.tokens import TokenizedDocument, tokenize
from onward.data.vocabularies import train_vocabulary
from onward.evaluation import measure_memories
from onward.training import TrainingRecipe, train

TRAIN = ("torch", "transformers", "sympy", "pandas", "scipy", "numpy", "matplotlib", "mypy", "pygments", "fontTools")
VALIDATION, TEST = ("networkx",), ("sklearn",)
DISTRIBUTIONS = {"sklearn": "scikit-learn"}
SIZES = {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "window": 64}
VOCABULARY, LANES, SEGMENT, TOKENS = 4096, 8, 512, 12_000_000
SHORTEST, TRAIN_BYTES = 20_000, 60_000_000
HELD, HELD_TOKENS = 12, 6_000  # documents for validation and for test, and the tokens of each that are scored


def texts(packages: tuple[str, ...]) -> list[Document]:
    """Folders with enough code for a long document."""
    code = load_corpus("installed-code", packages=packages, by="folder")
    return [d for d in [*code.train, *code.validation, *code.test] if d.bytes >= SHORTEST]


def training_texts() -> list[Document]:
    """The same random part in every run, and more than any run trains on."""
    found = texts(TRAIN)
    random.Random(0).shuffle(found)
    sizes = accumulate(document.bytes for document in found)
    return [document for document, size in zip(found, sizes, strict=True) if size <= TRAIN_BYTES]


def vocabulary(folder: Path) -> PreTrainedTokenizerBase:
    if not (folder / "tokenizer.json").is_file():
        train_vocabulary(training_texts(), VOCABULARY, "bpe").save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def held_out(packages: tuple[str, ...], tokenizer: PreTrainedTokenizerBase) -> list[TokenizedDocument]:
    longest = sorted(texts(packages), key=lambda document: -document.bytes)[:HELD]
    return tokenize(longest, tokenizer, HELD_TOKENS)


def run(preset: str, seed: int, out: Path, rate: float, tokens: int) -> None:
    tokenizer = vocabulary(out / "vocabulary")
    set_seed(seed)
    config = BlockRecurrentConfig.preset(preset, **SIZES, vocab_size=len(tokenizer), dropout=0.0)
    recipe = TrainingRecipe.preset(
        "block-recurrent",
        learning_rate=rate,
        warmup_steps=300,
        tokens_per_step=LANES * SEGMENT,
        max_tokens=tokens,
        evaluate_every_tokens=500_000,
        save_every_tokens=250_000,
        max_grad_norm=1.0,
        seed=seed,
    )
    train(
        BlockRecurrentForCausalLM(config),
        tokenize(training_texts(), tokenizer),
        held_out(VALIDATION, tokenizer),
        tokenizer,
        out / f"{preset.replace(':', '-')}-{rate:g}-seed{seed}",
        recipe,
    )


# --- results ---------------------------------------------------------------------------------------


def measured(folder: Path, tokenizer: PreTrainedTokenizerBase) -> dict[str, float]:
    """Bits per token of the test documents with their own states, with another document's, and with initial ones."""
    model = BlockRecurrentForCausalLM.from_pretrained(folder)
    states = ("true", "swapped", "ablated") if model.config.recurrent_layers else ("true",)
    found = measure_memories(model, held_out(TEST, tokenizer), memories=states, batch_size=HELD)
    return {name: measures.bits_per_token for name, measures in found.items()}


def run_facts(file: Path, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    saved = json.loads(file.read_text(encoding="utf-8"))
    config = BlockRecurrentConfig.from_pretrained(file.parent)
    name = "Rec:fixed:skip" if config.recurrent_layers else "Slide"
    packages = (*TRAIN, *VALIDATION, *TEST)
    return {
        "model": f"{name}, {config.num_hidden_layers} layers",
        "seed": saved["seed"],
        "tokens": saved["tokens"],
        "hours": saved["seconds"] / 3600,
        "learning_rate": saved["recipe"]["learning_rate"],
        "best validation bits": saved["best_validation_loss"] / math.log(2),
        "test bits": measured(file.parent, tokenizer),
        "validation": [
            (entry["tokens"], entry["validation_loss"] / math.log(2))
            for entry in saved["history"]
            if "validation_loss" in entry
        ],
        "versions": saved["versions"]
        | {package: importlib.metadata.version(DISTRIBUTIONS.get(package, package)) for package in packages},
        "machine": saved["machine"],
        "command": saved["command"],
    }


def report(out: Path, results: Path) -> None:
    """Writes curves.json, table.md and a plot of all finished runs."""
    tokenizer = vocabulary(out / "vocabulary")
    runs = [run_facts(file, tokenizer) for file in sorted(out.glob("*/training.json"))]
    results.mkdir(parents=True, exist_ok=True)
    (results / "curves.json").write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    (results / "table.md").write_text(table(runs), encoding="utf-8")
    plot(runs, results / "validation.svg")
    print(table(runs))


def table(runs: list[dict[str, Any]]) -> str:
    lines = [
        "| model | seed | tokens | hours, one thread | validation, bits per token | test | states swapped | ablated |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for run in runs:
        cells = [run["model"], str(run["seed"]), f"{run['tokens']:,}", f"{run['hours']:.1f}"]
        cells.append(f"{run['best validation bits']:.3f}")
        for states in ("true", "swapped", "ablated"):
            bits = run["test bits"].get(states)
            cells.append("" if bits is None else f"{bits:.3f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def plot(runs: list[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(7, 4), layout="tight")
    panel = figure.subplots()
    for run in runs:
        recurrent = run["model"].startswith("Rec")
        tokens, bits = zip(*run["validation"], strict=True)
        panel.plot(
            [n / 1e6 for n in tokens],
            bits,
            color="black" if recurrent else "gray",
            linestyle="-" if run["seed"] == 0 else "--",
            marker="o" if recurrent else "s",
            markersize=3,
            label=f"{run['model']}, seed {run['seed']}",
        )
    panel.set(xlabel="million tokens", ylabel="validation, bits per token", yscale="log")
    panel.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    training = verbs.add_parser("train")
    training.add_argument("preset")
    training.add_argument("--seed", type=int, default=0)
    training.add_argument("--learning-rate", type=float, default=0.5)
    training.add_argument("--tokens", type=int, default=TOKENS)
    reporting = verbs.add_parser("report")
    reporting.add_argument("--results", type=Path, default=Path("results/source_code"))
    for verb in (training, reporting):
        verb.add_argument("--out", type=Path, default=Path("runs/source_code"))
    given = parser.parse_args()
    if given.verb == "train":
        torch.set_num_threads(1)
        run(given.preset, given.seed, given.out, given.learning_rate, given.tokens)
    else:
        report(given.out, given.results)


if __name__ == "__main__":
    main()
