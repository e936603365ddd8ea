"""`gates`: Table 1 of "Block-Recurrent Transformers": every row, on four texts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from matplotlib.figure import Figure

from onward import BlockRecurrentForCausalLM
from onward.models.block_recurrent import PRESETS
from onward.utils.fields import FieldError, refuse_others

from ..engine.figures import mean_in_row, name_rows
from ..engine.intervals import HOLDS, cell, over
from ..engine.outcomes import Outcomes
from ..engine.reporting import NOT_TESTED, NOT_TOLD, Claim, Compared, Report, Table, judged
from ..engine.sizes import by_scale, scales_of
from ..engine.study import Outcome, Run, Study, StudySetting
from ..engine.texts import check_texts
from ..engine.work import Work
from .notes import BITS, OVER_SEEDS, about_trainings, controls_table
from .rows import BASELINE, RECURRENT, BlockRow, FewerLayers, small
from .runs import block_outcomes, block_runs

# Relative step time, and bits per token on PG19 bytes, PG19 tokens, arXiv and GitHub.
PAPER: dict[str, tuple[float | None, ...]] = {
    "XL:512": (0.88, 1.01, 3.62, 1.45, 1.28),
    "XL:1024": (1.20, 0.997, 3.59, 1.37, None),
    "XL:2048": (2.11, 0.990, 3.58, 1.31, None),
    "Slide:12L": (0.93, 0.989, 3.60, 1.43, None),
    "Slide:13L": (1.00, 0.989, 3.57, 1.42, 1.19),
    "Rec:lstm:dual": (1.06, 0.985, 3.56, 1.26, 1.07),
    "Rec:lstm:single": (1.05, 0.962, 3.55, 1.29, 1.05),
    "Rec:lstm:skip": (1.00, 0.969, 3.56, 1.31, None),
    "Rec:fixed:dual": (1.01, 0.957, 3.54, 1.27, 1.03),
    "Rec:fixed:single": (1.02, 0.966, 3.58, 1.25, None),
    "Rec:fixed:skip": (0.99, 0.952, 3.53, 1.24, 1.03),
    "Feedback:lstm:single": (1.40, 0.977, 3.50, 1.22, 1.05),
    "Feedback:fixed:skip": (1.35, 0.935, 3.49, 1.24, 1.11),
    "Memorizing:32k": (None, 0.950, 3.50, 1.24, None),
}
ROWS = [BlockRow(name) for name in PRESETS if name in PAPER]
TIMES = "blocks-step-time"


@dataclass(frozen=True)
class Text:
    """A corpus, as tokens or bytes, and the column of the paper's table beside it."""

    corpus: str
    column: int
    as_bytes: bool = False

    @property
    def bits(self) -> str:
        return f"bits per {'byte' if self.as_bytes else 'token'}"

    def told(self, row: str) -> float | None:
        return PAPER[row][self.column]


TEXTS = {
    "books": Text("books", 2),
    "books, bytes": Text("books", 1, as_bytes=True),
    "latex": Text("latex", 3),
    "code": Text("code", 4),
}


# On bytes the rows that claims are about; on code the rows that the paper has figures of.
ROWS_ON_BYTES = ("XL:512", "XL:2048", "Slide:12L", BASELINE, "Rec:lstm:skip", RECURRENT, "Feedback:fixed:skip")
ROWS_ON_CODE = tuple(row for row in PAPER if TEXTS["code"].told(row) is not None)
CODE_OF_PAPER = {
    "rates": (0.25,),
    "tokens_per_step": 8 * 131_072,
    "tokens": 250_000 * 8 * 131_072,
    "held": 2_000,  # files, of the twentieth of all that is held out
}


@dataclass(frozen=True)
class GateSizes(FewerLayers):
    """`rows` are trained on `texts`; `of_texts`: other sizes for one of them. `timed_rounds`: how many steps of every
    row are timed, in turns."""

    changes: Mapping[str, Any] = by_scale(small(32, 2, 8), small(128, 4, 32), {})
    rows: tuple[str, ...] = tuple(PAPER)
    texts: tuple[str, ...] = by_scale(("books", "books, bytes"), tuple(TEXTS))
    of_texts: Mapping[str, Mapping[str, Any]] = by_scale(
        {"books, bytes": {"rows": (BASELINE, RECURRENT)}},
        {"books, bytes": {"rows": ROWS_ON_BYTES}, "code": {"rows": ROWS_ON_CODE}},
        {"latex": {"rates": (0.5,)}, "code": CODE_OF_PAPER},
    )
    timed_rounds: int = by_scale(2, 20)

    def of(self, text: str) -> GateSizes:
        known = {"vocabulary": None} if TEXTS[text].as_bytes else {}
        changes = self.of_texts.get(text, {})
        refuse_others(GateSizes, [f.name for f in fields(GateSizes)], changes)
        return replace(self, **{**known, **changes})


SCALES = scales_of(GateSizes)
CORPORA = {
    "smoke": dict.fromkeys(("books", "latex", "code"), "shakespeare"),
    "laptop": {"books": "pg19", "latex": "hub:EleutherAI/proof-pile-2:arxiv", "code": "installed-code"},
    "paper": {
        "books": "pg19-all",
        "latex": "hub:EleutherAI/proof-pile-2:arxiv",
        "code": "hub:codeparrot/codeparrot-clean#content",
    },
}


def runs(setting: StudySetting) -> list[Run]:
    sizes: GateSizes = setting.sizes
    _refuse_unknown("texts", sizes.texts, TEXTS)
    _refuse_unknown("of_texts", tuple(sizes.of_texts), TEXTS)
    found = []
    for text in sizes.texts:
        own = sizes.of(text)
        _refuse_unknown("rows", own.rows, PAPER)
        rows = [row for row in ROWS if row.name in own.rows]
        found += block_runs(replace(setting, sizes=own), TEXTS[text].corpus, rows)
    shaping = ("changes", "vocabulary", "tokens_per_step", "timed_rounds")
    settings = {name: getattr(sizes, name) for name in shaping}
    return [*found, Run(TIMES, settings, partial(time_steps, sizes), size=sizes.tokens, by="first")]


def _refuse_unknown(name: str, given: Sequence[str], known: Mapping[str, Any]) -> None:
    for one in given:
        if one not in known:
            raise FieldError(name, given, f"there is no {one!r}; choose of {', '.join(map(repr, known))}")


def time_steps(sizes: GateSizes, work: Work) -> Outcome:
    """The median processor time of a training step of every row, of equally many tokens; rows take turns."""
    vocabulary = sizes.vocabulary or 256
    tokens = min(sizes.tokens_per_step, LONGEST_TIMED_STEP)
    steps = {row.name: _step(row.config(sizes, vocab_size=vocabulary), tokens) for row in ROWS}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(sizes.timed_rounds + 1):
        for name, step in steps.items():
            started = time.process_time()
            step()
            if number:  # the first is warming up
                seconds[name].append(time.process_time() - started)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    relative = {name: seconds / medians[BASELINE] for name, seconds in medians.items()}
    return {"processor_seconds": medians, "relative": relative}


LONGEST_TIMED_STEP = 8_192  # tokens


def _step(config: Any, tokens: int) -> Any:
    """A closure that does one step, with states and memories as full as they are far into a document."""
    torch.manual_seed(0)
    model = BlockRecurrentForCausalLM(config).train()
    rows = max(1, tokens // config.segment_length)
    ids = torch.randint(config.vocab_size, (rows, config.segment_length))
    carried: list[Any] = [None]
    with torch.no_grad():
        for _ in range(-(-config.memory_size // config.segment_length)):
            carried[0] = model(ids, state=carried[0], logits_to_keep=1).state

    def step() -> None:
        model.zero_grad(set_to_none=True)
        out = model(ids, labels=ids, state=carried[0])
        out.loss.backward()
        carried[0] = out.state.detach()

    return step


# --- what they come to


def report(setting: StudySetting, outcomes: Mapping[str, Outcome]) -> Report:
    found = {text: _of_text(setting, outcomes, text) for text in setting.sizes.texts}
    times = outcomes.get(TIMES, {}).get("relative", {})
    rows = []
    for row in ROWS:
        bits = {text: of_text.of(row, BITS) for text, of_text in found.items()}
        if any(bits.values()):
            cells = [row.name, f"{times[row.name]:.2f}" if row.name in times else "", _told(PAPER[row.name][0])]
            rows.append(cells)
            for text in found:
                cells += [cell(bits[text], 3), _told(TEXTS[text].told(row.name))]
    claims = [claim for text, of_text in found.items() for claim in _claims(text, of_text)]
    columns = ["model", "step time", "paper"]
    for text in found:
        columns += [f"{TEXTS[text].corpus}, {TEXTS[text].bits}", "paper"]
    lost, about_lost = controls_table(found, ROWS)
    held = sum(claim.verdict == HOLDS for claim in claims)
    return Report(
        "Gates, windows and memories: Table 1",
        f"{held} of {len(claims)} claims hold at this scale." if claims else "Too little has run to say anything.",
        [Table("Table 1", columns, rows), *lost],
        {"bits": plot(found)} if rows else {},
        claims,
        (
            OVER_SEEDS,
            "Step time: processor time of a training step of equally many tokens, in float32, relative to Slide:13L.",
            *about_trainings(found, ROWS, outcomes),
            *about_lost,
            "Rows keep their proportion to the base model; the paper's columns are of 12 layers and other texts, for "
            "the shape of the thing.",
        ),
    )


def _of_text(setting: StudySetting, outcomes: Mapping[str, Outcome], text: str) -> Outcomes:
    return block_outcomes(replace(setting, sizes=setting.sizes.of(text)), outcomes, TEXTS[text].corpus)


def _told(number: float | None) -> str:
    return "" if number is None else f"{number:g}"


def _claims(text: str, found: Outcomes) -> list[Claim]:
    feedback = ("Feedback is better still", "Feedback:fixed:skip", RECURRENT)
    if text == "code":
        feedback = ("Feedback is worse", RECURRENT, "Feedback:fixed:skip")
    better_and_worse = (
        ("Recurrence is better than one more layer", RECURRENT, BASELINE),
        ("Recurrence is better than a window four times as long", RECURRENT, "XL:2048"),
        ("The fixed gate is better than the LSTM's, with skip", RECURRENT, "Rec:lstm:skip"),
        *([feedback] if text != "latex" else []),  # there the paper saw no difference
        ("Gradients through the window help: Slide against XL", "Slide:12L", "XL:512"),
    )
    compared: list[Compared] = []
    for claim, better, worse in better_and_worse:
        told = [TEXTS[text].told(name) for name in (worse, better)]
        saw = NOT_TOLD if None in told else f"{told[0]:g} -> {told[1]:g}"
        compared.append((f"{claim} ({text})", saw, found.of(BlockRow(worse), BITS), found.of(BlockRow(better), BITS)))
    swapped, own = (found.of(BlockRow(RECURRENT), path) for path in (f"{BITS}_swapped", BITS))
    about = f"Its states are about the document: another's are worse (ours, {text})"
    return judged([*compared, (about, NOT_TESTED, swapped, own)], TEXTS[text].bits)


def plot(found: Mapping[str, Outcomes]) -> Figure:
    """How much better than Slide:13L every row is, a panel for each text."""
    figure = Figure(figsize=(3 + 2.2 * len(found), 4.2), layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
    for panel, (text, of_text) in zip(panels, found.items(), strict=True):
        base = of_text.of(BlockRow(BASELINE), BITS)
        for place, row in enumerate(ROWS):
            marker = "o" if row.name.startswith(("Rec", "Feed")) else "s"
            look: dict[str, Any] = {"capsize": 2, "linewidth": 0.8, "markersize": 4, "marker": marker}
            mean_in_row(panel, place, over(base, of_text.of(row, BITS)), **look)
        panel.axvline(0, color="0.6", linewidth=0.8, linestyle=":")
        panel.set_title(f"{TEXTS[text].corpus}, {TEXTS[text].bits.removeprefix('bits ')}")
    figure.supxlabel("bits better than Slide:13L", fontsize="medium")
    name_rows(panels[0], [row.name for row in ROWS])
    return figure


def check(work: Work) -> None:
    """Also checks corpora that a user gave for texts which this scale leaves out."""
    places = work.setting.corpora
    given = [name for name in places if places[name] != CORPORA[work.setting.scale][name]]
    check_texts(work, *dict.fromkeys([*(TEXTS[text].corpus for text in work.setting.sizes.texts), *given]))


STUDIES = [Study("gates", CORPORA, SCALES, runs, report, check)]
