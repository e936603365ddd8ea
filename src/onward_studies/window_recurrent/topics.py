"""`topics` and `continuations`: section 5.3 of "Adding Recurrence to Pretrained Transformers", on books.

The models are those of Table 2, without overlap. Both begin a window with the one token that follows a context. The
recurrent model has a memory of that context, the plain one has nothing. What they write, always the likeliest token, is
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

from ..engine.figures import mean_in_row, name_rows, one_panel
from ..engine.intervals import ABOUT_INTERVALS, cell
from ..engine.outcomes import Outcomes
from ..engine.reporting import NOT_TESTED, Report, Table, judged, summary_of
from ..engine.sizes import CountOrZero, by_scale, scales_of
from ..engine.study import Outcome, Run, Study, StudySetting
from ..engine.texts import check_texts
from ..engine.trainings import not_done
from ..engine.work import Work
from .backbone import CORPORA
from .runs import run_name, training_texts, window_runs
from .topic_model import TopicModel, divergences, require_scikit_learn, sign_test
from .variants import OVER_SEEDS, WindowSizes, about_recurrent, baseline, recurrent

CORPUS = "books"
PAPER = {"recurrent": "0.5331", "plain": "0.5951"}
CONTINUED_BY = ("recurrent", "plain", "swapped")


@dataclass(frozen=True)
class TopicSizes(WindowSizes):
    """`contexts` of `context_windows` windows are taken from validation documents, evenly, and continued by `written`
    tokens. Topics are those of `topic_books` of the corpus "topics", or if there is none, of the training texts."""

    topics: int = by_scale(3, 20)
    topic_books: int = 5000
    contexts: int = by_scale(6, 1000, 8000)
    context_windows: int = by_scale(2, 4, 1)
    written: int = by_scale(5, 30)
    at_once: int = by_scale(4, 64)
    shown: CountOrZero = by_scale(2, 12)


TOPICS = "topics"
OWN_CORPORA = {**CORPORA, "paper": {**CORPORA["paper"], TOPICS: "pg19-all"}}
SCALES = scales_of(TopicSizes)


def runs(setting: StudySetting) -> list[Run]:
    sizes: TopicSizes = setting.sizes
    models = [baseline(sizes), recurrent(sizes, sizes.window)]
    found = window_runs(setting, CORPUS, models)
    own = [f.name for f in fields(TopicSizes) if f.name not in {g.name for g in fields(WindowSizes)}]
    for seed in range(setting.seeds):
        needs = tuple(run_name(sizes, CORPUS, model, seed) for model in models)
        settings = {name: getattr(sizes, name) for name in own if name not in ("at_once", "shown")}
        settings |= {"corpus": setting.corpora[CORPUS], "models": needs, "train_bytes": sizes.train_bytes}
        if TOPICS in setting.corpora:
            settings |= {TOPICS: setting.corpora[TOPICS]}
        else:
            del settings["topic_books"]
        do, size = partial(_write, sizes, needs, seed), sizes.contexts * sizes.written
        found.append(Run(f"topics-seed{seed}", settings, do, needs, size, by="first"))
    return found


def _write(sizes: TopicSizes, needs: Sequence[str], seed: int, work: Work) -> Outcome:
    if any(work.outcome_of(name)["validation_loss"] is None for name in needs):
        return not_done("a model", seed=seed)
    plain, ours = (load_whole(WindowRecurrentForCausalLM, str(work.model_of(name))).eval() for name in needs)
    tokenizer = load_tokenizer(str(work.model_of(needs[1])))
    contexts = contexts_of(sizes, [d.ids.long() for d in tokenize(work.corpus(CORPUS).validation, tokenizer)])
    written: dict[str, list[str]] = {name: [] for name in CONTINUED_BY}
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
    every = max(1, len(texts) // max(1, sizes.shown))
    samples = [
        {"context": texts[i], "divergence": float(found["recurrent"][i]), **{n: written[n][i] for n in CONTINUED_BY}}
        for i in range(0, len(texts), every)
    ]
    return {
        "seed": seed,
        "tokens": sizes.written * len(CONTINUED_BY) * len(texts),
        "divergence": mean,
        "wordless": {name: float((model.known_words(texts) == 0).mean()) for name, texts in written.items()},
        "sign_test": tests,
        "samples": samples[: sizes.shown],
        "contexts": len(texts),
        "said": f"divergence {mean['recurrent']:.4f}, of plain windows {mean['plain']:.4f}",
    }


def texts_with_topics(sizes: TopicSizes, work: Work) -> Sequence[Document]:
    if TOPICS in work.setting.corpora:
        return work.corpus(TOPICS).train[: sizes.topic_books]
    return training_texts(sizes, CORPUS, work)


def contexts_of(sizes: TopicSizes, documents: Sequence[Tensor]) -> Tensor:
    """[contexts, tokens + 1]: as many from each document, evenly; the last token is what follows the context."""
    length = sizes.context_windows * sizes.window + 1
    long_enough = [ids for ids in documents if len(ids) >= length]
    if not long_enough:
        raise ValueError(f"no validation document has the {length} tokens of a context: give longer ones")
    each = -(-sizes.contexts // len(long_enough))
    found = []
    for ids in long_enough:
        starts = torch.linspace(0, len(ids) - length, each).long().unique()
        found += [ids[start : start + length] for start in starts.tolist()]
    # Neighbours swap memories, so they should be of different documents.
    order = [found[i] for offset in range(each) for i in range(offset, len(found), each)]
    return torch.stack(order[: sizes.contexts])


@torch.no_grad()
def continued(plain: Any, ours: Any, contexts: Tensor, tokens: int) -> dict[str, Tensor]:
    """How each model continues a batch of contexts [B, n + 1]: [B, tokens]."""
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


# --- what they come to


def _ended(setting: StudySetting, outcomes: Mapping[str, Outcome]) -> Outcomes:
    ended = {name: outcome for name, outcome in outcomes.items() if "divergence" in outcome}
    return Outcomes(setting, ended, "{}-seed{}".format)


def report_topics(setting: StudySetting, outcomes: Mapping[str, Outcome]) -> Report:
    ended = _ended(setting, outcomes)
    found = {name: ended.of("topics", f"divergence/{name}") for name in CONTINUED_BY}
    rows = []
    for name in CONTINUED_BY:
        lower, wordless = (
            {seed: 100 * share for seed, share in ended.of("topics", path).items()}
            for path in (f"sign_test/{name}/share", f"wordless/{name}")
        )
        chance = ended.of("topics", f"sign_test/{name}/p").values()
        papers = "60" if name == "plain" else ""
        shares = [cell(lower, 1), papers, f"{max(chance):.2g}" if chance else "", cell(wordless, 1)]
        rows.append([name, cell(found[name], 4), PAPER.get(name, ""), *shares])
    closer = f"{PAPER['plain']} -> {PAPER['recurrent']}"
    compared = [
        ("Continuations of the recurrent model stay closer to the topic than plain ones", closer, "plain"),
        ("It is this context's memory: another's is further from the topic (ours)", NOT_TESTED, "swapped"),
    ]
    claims = judged(((claim, saw, found[o], found["recurrent"]) for claim, saw, o in compared), "bits closer")
    done = bool(found["recurrent"])
    return Report(
        "Topics of continuations",
        summary_of(claims),
        [Table("Jensen-Shannon divergence between context and continuation", COLUMNS, rows)] if done else [],
        {"divergence": plot(found)} if done else {},
        claims,
        (
            f"{setting.sizes.contexts} contexts of {setting.sizes.context_windows * setting.sizes.window} tokens; "
            f"{setting.sizes.written} tokens, always the likeliest; LDA with {setting.sizes.topics} topics.",
            "Lower: in how many contexts, of those that differ, the recurrent model was closer than this one; the "
            "likelihood of that by chance is the largest over seeds (sign test, two-sided).",
            "Wordless: how many continuations have no word that topics are told by, and so no topic.",
            about_recurrent(setting.sizes),
            f"{ABOUT_INTERVALS}. {OVER_SEEDS}",
        ),
    )


SHARES = ("recurrent lower, %", "the paper's", "by chance", "wordless, %")
COLUMNS = ("model", "divergence, bits", "the paper's", *SHARES)


def plot(found: Mapping[str, Mapping[int, float]]) -> Figure:
    figure, panel = one_panel(5, 2.6, "divergence between context and continuation (bits)")
    for row, values in enumerate(found.values()):
        mean_in_row(panel, row, values, marker="o", markersize=5)
    name_rows(panel, list(found))
    return figure


def report_continuations(setting: StudySetting, outcomes: Mapping[str, Outcome]) -> Report:
    samples = _ended(setting, outcomes).first("topics", "samples") or []
    rows = [
        [
            _shortened(sample["context"]),
            *(_one_line(sample[name]) for name in CONTINUED_BY),
            f"{sample['divergence']:.2f}",
        ]
        for sample in samples
    ]
    columns = ("context, its end", *CONTINUED_BY, "divergence")
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
    check_texts(work)


STUDIES = [
    Study("topics", OWN_CORPORA, SCALES, runs, report_topics, check),
    Study("continuations", OWN_CORPORA, SCALES, runs, report_continuations, check),
]
