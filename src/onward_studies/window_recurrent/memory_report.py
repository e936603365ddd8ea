"""What the study `memory` comes to: tables, a choice on validation texts, claims and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from ..engine.intervals import UNSEEN, Interval, cell, differences, verdict
from ..engine.reporting import Claim, Report, Table, summary_of
from ..engine.study import Outcome, StudySetting
from .memory_rows import CONSTANT, FULL, KEPT, PLAIN, Measured, Reading

if TYPE_CHECKING:
    from .memory import MemorySizes


def report(setting: StudySetting, outcomes: Mapping[str, Outcome]) -> Report:
    sizes: MemorySizes = setting.sizes
    found = Measured(setting, outcomes)
    tables: list[Table] = []
    figures: dict[str, Figure] = {}
    for trained, texts, windows, memories in (
        (False, sizes.texts, sizes.windows, sizes.untrained),
        (True, sizes.trained_on, sizes.trained_windows, sizes.trained),
    ):
        kind = "trained" if trained else "untrained"
        for window in windows:
            for text in texts:
                rows = rows_of(sizes, text, window, memories, trained)
                tables.append(table(f"{kind.capitalize()}: {text}, windows of {window}", found, rows))
            figure = plot(sizes, found, texts, window, memories, trained)
            figures |= {f"{kind}_window{window}": figure} if figure is not None else {}
    claims = claims_of(sizes, found)
    choice = choice_table(sizes, found)
    title = "Memories by their bytes"
    return Report(title, summary_of(claims), [choice, *tables], figures, claims, notes(sizes))


def rows_of(sizes: MemorySizes, text: str, window: int, memories: Sequence[str], trained: bool) -> list[Reading]:
    """From the floor and the ceiling to the memories."""
    full, plain = Reading(text, sizes.length, FULL, trained=trained), Reading(text, window, PLAIN, trained=trained)
    return [full, plain, *(Reading(text, window, name, slots, trained) for name in memories for slots in sizes.slots)]


def table(title: str, found: Measured, rows: Sequence[Reading]) -> Table:
    return Table.of(title, [_cells(found, row) for row in rows if found.losses(row)])


def _cells(found: Measured, row: Reading) -> dict[str, str]:
    size, flops, speed = (found.facts(row, name) for name in ("state_bytes", "counted_flops", "tokens_per_second"))
    return {
        "memory": row.memory,
        "slots": str(row.slots or ""),
        "state, KB": f"{(size or 0) / 1000:,.0f}",
        "FLOPs/token": f"{flops:.3g}",
        "tokens/s": f"{speed:,.0f}",
        "validation loss": f"{fmean(found.losses(row, 'validation').values()):.3f}",
        "test loss": f"{fmean(found.losses(row).values()):.3f}",
        "gain over kept tokens": cell(found.gain(row), 3),
        "won back, %": cell(found.won_back(row), 0),
        "lost when swapped": cell(found.content(row), 3),
    }


# --- the choice


def on_validation(sizes: MemorySizes, found: Measured, trained: bool = False) -> dict[str, dict[str, float]]:
    """By memory and text, its mean validation gain over kept tokens: of all windows and sizes that every memory has
    been read with."""
    memories = [name for name in (sizes.trained if trained else sizes.untrained) if name not in (KEPT, CONSTANT)]
    gains: dict[str, dict[str, float]] = {name: {} for name in memories}
    for text in sizes.trained_on if trained else sizes.texts:
        of_text: dict[str, list[float]] = {name: [] for name in memories}
        for window in sizes.trained_windows if trained else sizes.windows:
            for slots in sizes.slots:
                rows = {name: Reading(text, window, name, slots, trained) for name in memories}
                here = {name: found.gain(row, "validation") for name, row in rows.items()}
                if all(here.values()):
                    for name, gain in here.items():
                        of_text[name].append(fmean(gain.values()))
        for name, means in of_text.items():
            gains[name] |= {text: fmean(means)} if means else {}
    return gains


def chosen(sizes: MemorySizes, found: Measured, trained: bool = False) -> str | None:
    """The memory that gains most on validation texts; all texts count alike."""
    gains = {name: fmean(by_text.values()) for name, by_text in on_validation(sizes, found, trained).items() if by_text}
    return max(gains, key=gains.__getitem__, default=None)


def choice_table(sizes: MemorySizes, found: Measured) -> Table:
    gains = on_validation(sizes, found)
    texts = [text for text in sizes.texts if any(text in by_text for by_text in gains.values())]
    best = chosen(sizes, found)
    rows = [
        {
            "untrained memory": name,
            **{text: f"{by_text[text]:.3f}" for text in texts},
            "all": f"{fmean(by_text.values()):.3f}",
            "": "chosen" if name == best else "",
        }
        for name, by_text in gains.items()
        if by_text
    ]
    return Table.of("The choice: mean gain over kept tokens on validation texts, nats per token", rows)


# --- claims

OURS = "a goal of ours"


def claims_of(sizes: MemorySizes, found: Measured) -> list[Claim]:
    """About the memories chosen on validation, as they are on the test texts."""
    claims = []
    if (memory := chosen(sizes, found)) is not None:
        text, window = sizes.texts[0], sizes.windows[0]
        where = f"{text}, windows of {window}"
        for slots, goal in sizes.goals:
            gain = found.gain(Reading(text, window, memory, int(slots)))
            claim = f"Untrained, {int(slots)} slots are at least {goal:.2f} nats better than kept tokens ({where})"
            claims += _claim(claim, gain, goal, f"{memory}: {cell(gain, 3)} nats per token")
        swapped = [slots for slots in sizes.swapped_at if slots in sizes.slots]
        content = found.content(Reading(text, window, memory, swapped[0])) if swapped else {}
        claim = f"Untrained, what counts is the content: another document's memory is worse ({where})"
        claims += _claim(claim, content, 0, f"{memory}: {cell(content, 3)} nats per token")
    return claims + _claims_of_trained(sizes, found)


def _claims_of_trained(sizes: MemorySizes, found: Measured) -> list[Claim]:
    memory = chosen(sizes, found, trained=True)
    if memory is None:
        return []
    window, slots = sizes.trained_windows[0], int(sizes.goals[0][0]) if sizes.goals else sizes.slots[0]
    row = Reading(sizes.trained_on[0], window, memory, slots, trained=True)
    constant = Reading(row.text, window, CONSTANT, slots, trained=True)
    where, share = f"{row.text}, windows of {window}, {slots} slots", found.won_back(row)
    better = differences(found.losses(constant), found.losses(row))
    goal = (
        f"wins back {sizes.share_goal:.0f} % of what lies between kept tokens with the same training and full context"
    )
    won_back = _claim(f"Trained, it {goal} ({where})", share, sizes.share_goal, f"{memory}: {cell(share, 1)} %")
    if found.gain(row) and not share:
        won_back = [Claim(f"Trained, it {goal} ({where})", OURS, "nothing for sure lies between them", UNSEEN)]
    claim = f"Trained, it is better than a constant in its place ({where})"
    return [*won_back, *_claim(claim, better, 0, f"{memory}: {cell(better, 3)} nats per token")]


def _claim(claim: str, values: Mapping[int, float], goal: float, seen: str) -> list[Claim]:
    """That the values are above the goal; nothing if there are none yet."""
    if not values:
        return []
    return [Claim(claim, OURS, seen, verdict(Interval.of([value - goal for value in values.values()])))]


# --- notes


def notes(sizes: MemorySizes) -> list[str]:
    return [
        f"Texts are read in stretches of {sizes.length} tokens, {sizes.validation_stretches} of the validation "
        f"documents of each text, and of the test documents {_all_told(sizes)}; as many from each document. Only "
        f"tokens from {sizes.scored_from} on are scored: before them there is little to remember, and all memories "
        "would look alike. Losses are in nats per token.",
        "± is half a 95 % interval (Student) of paired differences: over test documents if nothing is trained, over "
        "seeds if something is. Stretches of one document count as one value.",
        "Kept tokens are `recent`: the document's first token and the last ones before the window, which cost nothing "
        "to choose. The full context is the same model with everything before a token; plain windows remember nothing.",
        "Gains compare equal numbers of slots. All memories of keys and values then have the same bytes, and the same "
        "as kept tokens. A slot of `spans` is a hidden vector of each layer, which has other bytes (more, with "
        "SmolLM2): the figures show losses over bytes.",
        "State: a document's memory in float32, in which all is measured; half of it in bfloat16. The keys and values "
        "of the window itself come on top, for all memories alike. Of the full context they are all there is.",
        "Won back: the gain in percent of what lies between kept tokens in as many slots and the full context; empty "
        "where the interval of that includes 0.",
        "The memory that claims are about is chosen on validation texts: by its mean gain over all texts, windows and "
        "sizes. Test texts choose nothing.",
        "FLOPs are all matrix products of a window with a memory, carrier and language model head included. Tokens/s "
        "are of the machine and what else ran on it, several stretches at a time.",
        f"Trained: LoRA adapters of rank {sizes.lora_rank} and what carriers learn, on {sizes.tokens:,} tokens, the "
        "same for all; the loss is that of the next token and, for a share of "
        f"{sizes.teacher_share:g}, the divergence from the model with its full context as it was before. Each step "
        f"draws a number of slots from {sizes.random_slots[0]} to {sizes.random_slots[-1]}, so that a memory is "
        "trained once for all sizes. A constant learns the most slots, and uses the last where there are fewer.",
    ]


def _all_told(sizes: MemorySizes) -> str:
    texts = dict.fromkeys((*sizes.texts, *sizes.trained_on))
    return ", ".join(f"{sizes.test_stretches_of(text)} ({text})" for text in texts)


# --- figures

LOOKS: tuple[dict[str, Any], ...] = (
    {"color": "#000000", "linestyle": "-", "marker": "o"},
    {"color": "#d55e00", "linestyle": "--", "marker": "s"},
    {"color": "#0072b2", "linestyle": "-.", "marker": "^"},
    {"color": "#56b4e9", "linestyle": ":", "marker": "v"},
    {"color": "#009e73", "linestyle": "-", "marker": "D"},
    {"color": "#cc79a7", "linestyle": "--", "marker": "x"},
    {"color": "#999999", "linestyle": "-.", "marker": "+"},
)
"""Colours that the colour-blind can tell apart; in black and white lines and marks differ, too."""


def plot(
    sizes: MemorySizes, found: Measured, texts: Sequence[str], window: int, memories: Sequence[str], trained: bool
) -> Figure | None:
    """The test loss over the bytes of a document's state, a line for each memory and a panel for each text."""
    shown = [text for text in texts if any(map(found.losses, rows_of(sizes, text, window, memories, trained)))]
    if not shown:
        return None
    across = min(2, len(shown))
    down = -(-len(shown) // across)
    figure = Figure(figsize=(2.2 + 3.6 * across, 0.4 + 3.0 * down), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).flat
    for panel, text in zip(panels, shown, strict=False):
        _draw(panel, found, rows_of(sizes, text, window, memories, trained))
        panel.set_title(f"{text}, windows of {window}", fontsize="medium")
        panel.set_xlabel("state of a document (KB)")
        panel.set_ylabel("test loss (nats per token)")
    for panel in list(panels)[len(shown) :]:
        panel.set_visible(False)
    lines = {line.get_label(): line for panel in figure.axes for line in panel.get_lines()}
    figure.legend(handles=list(lines.values()), loc="outside right upper", frameon=False)
    return figure


def _draw(panel: Any, found: Measured, rows: Sequence[Reading]) -> None:
    panel.set_xscale("log")
    for name, look in ((PLAIN, {"linestyle": ":"}), (FULL, {"linestyle": "--"})):
        for row in rows:
            if row.memory == name and (losses := found.losses(row)):
                panel.axhline(fmean(losses.values()), color="0.5", linewidth=1, label=name, **look)
    memories = dict.fromkeys(row.memory for row in rows if row.slots is not None)
    for number, name in enumerate(memories):
        of_memory = [row for row in rows if row.memory == name and found.losses(row)]
        points = sorted((found.facts(row, "state_bytes") or 0, fmean(found.losses(row).values())) for row in of_memory)
        look = LOOKS[number % len(LOOKS)]
        if points:
            label = "recent (kept tokens)" if name == KEPT else name
            at, heights = [size / 1000 for size, _ in points], [loss for _, loss in points]
            panel.plot(at, heights, label=label, linewidth=1, markersize=4, **look)
            if number == 0:
                panel.set_xticks(at, [f"{size:,.0f}" for size in at])
                panel.minorticks_off()
