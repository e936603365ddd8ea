"""BERT beside its recurrent twin at equal parameters: pretrained on the same rows, fine-tuned over rates and seeds.

    python examples/masked_models.py pretrain bert --corpus my-texts/      # one run; killed, the same command goes on
    python examples/masked_models.py pretrain recurrent-1 --corpus my-texts/
    python examples/masked_models.py pretrain recurrent-2 --corpus my-texts/
    python examples/masked_models.py finetune bert --glue glue/            # all tasks, all learning rates, all seeds
    python examples/masked_models.py report                                # tables and pictures of what there is
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedTokenizerBase, set_seed

from onward.corpora import Corpus, load_corpus
from onward.finetuning import FinetuningRecipe, compare, sweep
from onward.models.recurrent_bert import preset
from onward.streams import tokenize
from onward.training import TrainingRecipe, train
from onward.vocabularies import train_vocabulary

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert:base", {}),
    "recurrent-1": ("recurrent-bert:base", {"stride": 1}),
    "recurrent-2": ("recurrent-bert:base", {"stride": 2}),
}
SIZES = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "max_position_embeddings": 128,
}
VOCABULARY, TOKENS, ROWS, RATE, HELD, HELD_TOKENS = 8000, 12_000_000, 32, 1e-3, 60, 2000
# SST-2's validation split of GLUE is the test split of some copies, see docs/fine-tuning.md.
OF_SST2 = {"split": "test", "train_examples": 5000}
TASKS: dict[str, dict[str, Any]] = {"sst2": OF_SST2, "cola": {}, "rte": {}, "stsb": {}}
RATES, SEEDS, EPOCHS = (3e-5, 6e-5, 1.2e-4, 2.5e-4, 5e-4), 3, 3


def vocabulary(folder: Path, corpus: Corpus) -> PreTrainedTokenizerBase:
    if not (folder / "tokenizer.json").is_file():
        train_vocabulary(corpus.train, VOCABULARY, "wordpiece").save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def pretrain(name: str, corpus: str, out: Path, seed: int) -> None:
    texts = load_corpus(corpus)
    tokenizer = vocabulary(out / "vocabulary", texts)
    kind, fields = MODELS[name]
    set_seed(seed)
    model = AutoModelForMaskedLM.from_config(preset(kind, vocab_size=len(tokenizer), **SIZES, **fields))
    recipe = TrainingRecipe.preset(
        "masked",
        batch_size=ROWS,
        learning_rate=RATE,
        warmup_steps=300,
        max_tokens=TOKENS,
        evaluate_every_tokens=500_000,
        seed=seed,
    )
    held_out = tokenize(texts.validation[:HELD], tokenizer, HELD_TOKENS)
    train(model, texts.train, held_out, tokenizer, out / name, recipe)


def finetune(name: str, glue: Path, out: Path) -> None:
    for task, options in TASKS.items():
        given = dict(options)
        recipe = FinetuningRecipe(epochs=EPOCHS, train_examples=given.pop("train_examples", None))
        folder = out / "finetuned" / f"{task}-{name}"
        sweep(out / name, task, folder, learning_rates=RATES, seeds=SEEDS, recipe=recipe, data=glue, name=name, **given)


# -- what came out


def report(out: Path, results: Path) -> None:
    """What has ended: the curves of pretraining, and the tables of fine-tuning."""
    results.mkdir(parents=True, exist_ok=True)
    runs = {name: out / name / "training.json" for name in MODELS}
    saved = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in runs.items() if file.is_file()}
    kept = ("seed", "tokens", "seconds", "recipe", "versions", "machine", "command", "best_validation_loss")
    curves = {
        name: {key: run[key] for key in kept}
        | {"validation": [(e["tokens"], e["validation_loss"]) for e in run["history"] if "validation_loss" in e]}
        for name, run in saved.items()
    }
    (results / "curves.json").write_text(json.dumps(curves, indent=1) + "\n", encoding="utf-8")
    lines = ["| model | tokens | hours, one thread | validation loss, nats per hidden token |", "|---|---:|---:|---:|"]
    for name, run in curves.items():
        hours, loss = run["seconds"] / 3600, run["best_validation_loss"]
        lines.append(f"| {name} | {run['tokens']:,} | {hours:.1f} | {loss:.3f} |")
    (results / "pretraining.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    plot(curves, results / "pretraining.svg")
    sweeps = sorted(file.parent for file in (out / "finetuned").glob("*/table.md"))
    if sweeps:
        compare(sweeps, results)
        print((results / "table.md").read_text(encoding="utf-8"))


def plot(curves: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(7, 4))
    looks = zip(("-", "--", ":"), ("o", "s", "^"), ("black", "0.35", "0.6"), strict=True)
    for (name, run), (line, marker, color) in zip(curves.items(), looks, strict=False):
        tokens, losses = zip(*run["validation"], strict=True)
        millions = [n / 1e6 for n in tokens]
        panel.plot(millions, losses, linestyle=line, marker=marker, color=color, markersize=3, label=name)
    panel.set(xlabel="million tokens", ylabel="validation, nats per hidden token")
    panel.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    pretraining, finetuning, reporting = (verbs.add_parser(verb) for verb in ("pretrain", "finetune", "report"))
    for verb in (pretraining, finetuning):
        verb.add_argument("model", choices=MODELS)
    pretraining.add_argument("--corpus", default="wikitext-103")
    pretraining.add_argument("--seed", type=int, default=0)
    finetuning.add_argument("--glue", type=Path, required=True)
    reporting.add_argument("--results", type=Path, default=Path("results/masked_models"))
    for verb in (pretraining, finetuning, reporting):
        verb.add_argument("--out", type=Path, default=Path("runs/masked_models"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.verb == "pretrain":
        pretrain(given.model, given.corpus, given.out, given.seed)
    elif given.verb == "finetune":
        finetune(given.model, given.glue, given.out)
    else:
        report(given.out, given.results)


if __name__ == "__main__":
    main()
