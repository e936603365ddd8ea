"""`topics` and `continuations`: section 5.3 of "Adding Recurrence to Pretrained Transformers", on books.

The models are those of Table 2, without overlap. Both begin a window with the one token that follows a context. The
recurrent one has a memory of that context, the plain one has nothing; what they write, always the likeliest token, is
compared with the context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from onward.data import Document
from onward.data.tokens import tokenize
from onward.data.vocabularies import load_tokenizer
from onward.models.pretrained import load_whole
from onward.models.window_recurrent import WindowRecurrentForCausalLM

from ..engine.intervals import Interval, cell, over, verdict
from ..engine.reporting import Claim, Report, Table, summary_of
from ..engine.study import Outcome, Run, Setting, Study, Work
from ..engine.training_runs import check_texts
from .backbone import CORPORA
from .overlap import baseline
from .runs import OVER_SEEDS, WindowSizes, about_recurrent, recurrent, run_name, training_texts, window_runs
from .runs import SCALES as WINDOW_SCALES
from .topic_model import TopicModel, divergences, require_scikit_learn, sign_test

CORPUS = "books"
PAPER = {"recurrent": 0.5331, "plain": 0.5951}
READ = ("recurrent", "plain", "swapped")


@dataclass(frozen=True)
class Sizes(WindowSizes):
    """`contexts` of `context_windows` windows are taken from validation documents, evenly; `written` tokens follow.
    Topics are those of `topic_books` of the corpus "topics", or where there is none, of the training texts."""

    topics: int = 20
    topic_books: int = 5000
    contexts: int = 8000
    context_windows: int = 1
    written: int = 30
    at_once: int = 64
    shown: int = 12


def _with(scale: str, **more: Any) -> Sizes:
    return Sizes(**vars(WINDOW_SCALES[scale]) | more)


TOPICS = "topics"
OWN_CORPORA = {**CORPORA, "paper": {**CORPORA["paper"], TOPICS: "pg19-all"}}
SCALES = {
    "smoke": _with("smoke", topics=3, contexts=6, context_windows=2, written=5, at_once=4, shown=2),
    "laptop": _with("laptop", contexts=1000, context_windows=4),
    "paper": Sizes(),
}


def runs(setting: Setting) -> list[Run]:
    sizes: Sizes = setting.sizes
    models = [baseline(sizes), recurrent(sizes, sizes.window)]
    found = window_runs(setting, CORPUS, models)
    own = [f.name for f in fields(Sizes) if f.name not in {g.name for g in fields(WindowSizes)}]
    for seed in range(setting.seeds):
        needs = tuple(run_name(sizes, CORPUS, model, seed) for model in models)
        settings = {name: getattr(sizes, name) for name in own if name not in ("at_once", "shown")}
        settings |= {"corpus": setting.corpora[CORPUS], "models": needs, "train_bytes": sizes.train_bytes}
        if TOPICS in setting.corpora:
            settings |= {TOPICS: setting.corpora[TOPICS]}
        else:
            del settings["topic_books"]
        size = sizes.contexts * sizes.written
        found.append(Run(f"topics-seed{seed}", settings, partial(_write, sizes, needs, seed), needs, size, by="first"))
    return found


def _write(sizes: Sizes, needs: Sequence[str], seed: int, work: Work) -> Outcome:
    if any(work.outcome_of(name)["validation_loss"] is None for name in needs):
        return {"seed": seed, "ended": "a model ended with NaN", "said": "not done: a model ended with NaN"}
    plain, ours = (load_whole(WindowRecurrentForCausalLM, str(work.model_of(name))).eval() for name in needs)
    tokenizer = load_tokenizer(str(work.model_of(needs[1])))
    contexts = contexts_of(sizes, [d.ids.long() for d in tokenize(work.corpus(CORPUS).validation, tokenizer)])
    written: dict[str, list[str]] = {name: [] for name in READ}
    for start in range(0, len(contexts), sizes.at_once):
        batch = contexts[start : start + sizes.at_once]
        for name, ids in continued(plain, ours, batch, sizes.written).items():
            written[name] += tokenizer.batch_decode(ids, clean_up_tokenization_spaces=False)
    texts = tokenizer.batch_decode(contexts, clean_up_tokenization_spaces=False)
    model = work.once(TOPICS, lambda: TopicModel([d.text for d in texts_with_topics(sizes, work)], sizes.topics))
    of_contexts = model.mixtures(texts)
    found = {name: divergences(of_contexts, model.mixtures(continuations)) for name, continuations in written.items()}
    mean = {name: float(values.mean()) for name, values in found.items()}
    tests = {name: vars(sign_test(found["recurrent"], found[name])) for name in ("plain", "swapped")}
    samples = [
        {"context": texts[i], "divergence": float(found["recurrent"][i])} | {name: written[name][i] for name in READ}
        for i in range(0, len(texts), max(1, len(texts) // sizes.shown))
    ]
    return {
        "seed": seed,
        "tokens": sizes.written * len(READ) * len(texts),
        "divergence": mean,
        "wordless": {name: float((model.known_words(texts) == 0).mean()) for name, texts in written.items()},
        "sign_test": tests,
        "samples": samples[: sizes.shown],
        "contexts": len(texts),
        "said": f"divergence {mean['recurrent']:.4f}, of plain windows {mean['plain']:.4f}",
    }


def texts_with_topics(sizes: Sizes, work: Work) -> Sequence[Document]:
    if TOPICS in work.setting.corpora:
        return work.corpus(TOPICS).train[: sizes.topic_books]
    return training_texts(sizes, CORPUS, work)


def contexts_of(sizes: Sizes, documents: Sequence[Tensor]) -> Tensor:
    """[contexts, tokens + 1]: from each document as many, evenly; the last token is what follows the context."""
    length = sizes.context_windows * sizes.window + 1
    long_enough = [ids for ids in documents if len(ids) >= length]
    if not long_enough:
        raise ValueError(f"no validation document has the {length} tokens of a context: give longer ones")
    each = -(-sizes.contexts // len(long_enough))
    found = []
    for ids in long_enough:
        starts = torch.linspace(0, len(ids) - length, each).long().unique()
        found += [ids[start : start + length] for start in starts.tolist()]
    # Neighbours swap memories, and should be of different documents.
    order = [found[i] for offset in range(each) for i in range(offset, len(found), each)]
    return torch.stack(order[: sizes.contexts])


@torch.no_grad()
def continued(plain: Any, ours: Any, contexts: Tensor, tokens: int) -> dict[str, Tensor]:
    """What each writes after a batch of contexts [B, n + 1]: [B, tokens]."""
    context, following = contexts[:, :-1], contexts[:, -1:]
    state = ours(context, logits_to_keep=1).state
    others = [*range(1, len(contexts)), 0]
    return {
        "recurrent": _likeliest(ours, following, state, tokens),
        "plain": _likeliest(plain, following, None, tokens),
        "swapped": _likeliest(ours, following, state.swap_memories(others), tokens),
    }


def _likeliest(model: Any, ids: Tensor, state: Any, tokens: int) -> Tensor:
    found = []
    for _ in range(tokens):
        out = model(ids, state=state, logits_to_keep=1)
        ids, state = out.logits[:, -1:].argmax(-1), out.state
        found.append(ids)
    return torch.cat(found, dim=1)


# --- what they come to -----------------------------------------------------------------------------


def report_topics(setting: Setting, outcomes: Mapping[str, Outcome]) -> Report:
    ended = _ended(setting, outcomes)
    found = {name: {seed: o["divergence"][name] for seed, o in ended.items()} for name in READ}
    rows = []
    for name in READ:
        lower = {seed: 100 * o["sign_test"][name]["share"] for seed, o in ended.items() if name in o["sign_test"]}
        worst = [o["sign_test"][name]["p"] for o in ended.values() if name in o["sign_test"]]
        told = f"{PAPER[name]:.4f}" if name in PAPER else ""
        chance = f"{max(worst):.2g}" if worst else ""
        wordless = {seed: 100 * o["wordless"][name] for seed, o in ended.items()}
        shares = [cell(lower, 1), "60" if name == "plain" else "", chance, cell(wordless, 1)]
        rows.append([name, cell(found[name], 4), told, *shares])
    claims = []
    for claim, saw, other in (
        ("Continuations of the recurrent model stay closer to the topic than plain ones", "0.5951 -> 0.5331", "plain"),
        ("It is this context's memory: another's is further from the topic (ours)", "not tested", "swapped"),
    ):
        gain = over(found[other], found["recurrent"])
        if gain is not None:
            claims.append(Claim(claim, saw, f"{gain.text(4)} bits closer", verdict(gain)))
    return Report(
        "Topics of continuations",
        summary_of(claims),
        [Table("Jensen-Shannon divergence between context and continuation", COLUMNS, rows)] if ended else [],
        {"divergence": plot(found)} if ended else {},
        claims,
        (
            f"{setting.sizes.contexts} contexts of {setting.sizes.context_windows * setting.sizes.window} tokens; "
            f"{setting.sizes.written} tokens, always the likeliest; LDA with {setting.sizes.topics} topics.",
            "Lower: in how many contexts, of those that differ, the recurrent model was closer than this one; the "
            "likelihood of that by chance is the largest over seeds (sign test, two-sided).",
            "Wordless: how many continuations have no word that topics are told by, and so no topic.",
            about_recurrent(setting.sizes),
            f"± is half a 95 % interval over seeds (Student). {OVER_SEEDS}",
        ),
    )


COLUMNS = (
    "model",
    "divergence, bits",
    "the paper's",
    "recurrent lower, %",
    "the paper's",
    "by chance",
    "wordless, %",
)


def _ended(setting: Setting, outcomes: Mapping[str, Outcome]) -> dict[int, Outcome]:
    names = {seed: f"topics-seed{seed}" for seed in range(setting.seeds)}
    return {seed: outcomes[name] for seed, name in names.items() if "divergence" in outcomes.get(name, {})}


def plot(found: Mapping[str, Mapping[int, float]]) -> Figure:
    figure = Figure(figsize=(5, 2.6), layout="constrained")
    panel = figure.subplots()
    for place, (_, values) in enumerate(found.items()):
        interval = Interval.of(list(values.values()))
        panel.errorbar(interval.mean, place, xerr=interval.half or 0, capsize=3, color="0.0", marker="o", markersize=5)
    panel.set_yticks(range(len(found)), list(found))
    panel.invert_yaxis()
    panel.set_xlabel("divergence between context and continuation (bits)")
    return figure


def report_continuations(setting: Setting, outcomes: Mapping[str, Outcome]) -> Report:
    ended = _ended(setting, outcomes)
    samples = next(iter(ended.values()))["samples"] if ended else []
    rows = [
        [_shortened(sample["context"]), *(_one_line(sample[name]) for name in READ), f"{sample['divergence']:.2f}"]
        for sample in samples
    ]
    columns = ("context, its end", *READ, "divergence")
    return Report(
        "Continuations",
        f"{len(rows)} contexts, taken evenly from the validation documents and not chosen, as they come."
        if rows
        else "Nothing has been written yet.",
        [Table("Contexts and what follows", columns, rows)] if rows else [],
        notes=("Always the likeliest token, which leads to repetition. swapped: with the memory of another context.",),
    )


SHOWN_CHARACTERS = 240


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _shortened(text: str) -> str:
    line = _one_line(text)
    return line if len(line) <= SHOWN_CHARACTERS else f"... {line[-SHOWN_CHARACTERS:]}"


def check(work: Work) -> None:
    require_scikit_learn()
    check_texts(work, *work.setting.corpora)


STUDIES = [
    Study(
        "topics",
        OWN_CORPORA,
        SCALES,
        runs,
        report_topics,
        check,
    ),
    Study(
        "continuations",
        OWN_CORPORA,
        SCALES,
        runs,
        report_continuations,
        check,
    ),
]
