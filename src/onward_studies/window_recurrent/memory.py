"""`memory` (ours): every carrier at many sizes, untrained and trained, beside kept tokens and full context.

A document's state may have so many bytes: what is best kept in them? Stretches of documents are read window by window
with each memory at each number of slots, and only their later tokens are scored, whose past no small memory holds as a
whole. Plain windows are the ceiling of the loss, and the model's full context is the floor.

Trained memories get the same light adapters, the same tokens and the same teacher: the model with its full context. A
training draws another number of slots at each step, so that one training of a carrier serves all sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from onward import WindowRecurrenceConfig
from onward.utils.fields import FieldError

from ..engine.sizes import CountOrZero, LearningRate, by_scale, scales_of
from ..engine.study import Run, Study, StudySetting
from ..engine.texts import check_texts
from ..engine.work import Work
from .backbone import BACKBONE, DECODERS, Decoder, backbone_runs
from .memory_report import report
from .memory_rows import CONSTANT, FULL, KEPT, PLAIN, Reading, fields_of
from .memory_runs import plan, read, train

SMOLLM2 = Decoder(name="smollm2-135m")


@dataclass(frozen=True)
class MemorySizes:
    """Which `texts` are read in which `windows` with which memories, each with every number of `slots`. A memory is a
    carrier, or a carrier and its score: "selected-received". `recent`, kept tokens, is what all others are compared
    with.

    Of each text `validation_stretches` and `test_stretches` are read, or as many test stretches as `more_stretches`
    says, of `length` tokens from the first `reach` of a document; tokens from `scored_from` on are scored. Memories are
    also swapped between documents at the sizes `swapped_at`. The full context is a window of `length` tokens.

    The memories `trained`, plain windows and the full context are trained on `trained_on`, in `trained_windows`, with
    LoRA adapters of `lora_rank`, on `tokens` in steps of `rows` segments of `length` tokens. A constant is learned
    altogether, and has a rate of its own.

    `goals`: how much better than kept tokens an untrained memory is to be on the first text in the first windows, by
    its slots; `share_goal`: the percentage of what lies between kept tokens and the full context that a trained one is
    to win back, with the slots of the first goal."""

    decoder: Decoder = by_scale(DECODERS["smoke"], SMOLLM2)
    texts: tuple[str, ...] = by_scale(("books", "code"), ("books", "wikipedia", "latex", "code"))
    windows: tuple[int, ...] = by_scale((8, 16), (64, 256))
    slots: tuple[int, ...] = by_scale((4, 8), (16, 32, 64, 128, 256, 512))
    untrained: tuple[str, ...] = by_scale(
        (KEPT, "selected-attention", "matched", "spans"),
        (KEPT, "selected-received", "matched", "spans"),
    )
    swapped_at: tuple[int, ...] = by_scale((8,), (128,))
    length: int = by_scale(64, 1024)
    scored_from: int = by_scale(24, 384)
    validation_stretches: int = by_scale(2, 4, 32)
    test_stretches: int = by_scale(3, 6, 64)
    more_stretches: Mapping[str, int] = by_scale({}, {"books": 12}, {})
    reach: int = by_scale(400, 60_000)
    trained: tuple[str, ...] = (KEPT, "matched", CONSTANT)
    trained_on: tuple[str, ...] = ("books",)
    trained_windows: tuple[int, ...] = by_scale((8,), (64,))
    random_slots: tuple[int, ...] = by_scale((4, 8), (16, 512))
    tokens: int = by_scale(256, 25_600, 20_000_000)
    rows: int = by_scale(1, 1, 16)
    rate: LearningRate = by_scale(5e-4, 1.5e-3, 1e-4)
    carrier_rate: LearningRate = 1e-4
    constant_rate: LearningRate = 1e-3
    lora_rank: int = by_scale(2, 8, 16)
    teacher_share: float = 0.5
    schedule: str = "linear"
    warmup_steps: CountOrZero = by_scale(1, 5, 100)
    evaluate_every: int = by_scale(1_000, 1_000_000, 2_000_000)
    train_bytes: int | None = by_scale(20_000, 5_000_000, None)
    goals: tuple[Sequence[float], ...] = by_scale(((8, 0.0),), ((128, 0.07), (32, 0.10)))
    share_goal: float = 85.0

    def test_stretches_of(self, text: str) -> int:
        return self.more_stretches.get(text, self.test_stretches)

    def carrier_rate_of(self, memory: str) -> float:
        return self.constant_rate if memory == CONSTANT else self.carrier_rate


SCALES = scales_of(MemorySizes)
LATEX = "hub:EleutherAI/proof-pile-2:arxiv"
CORPORA = {
    "smoke": dict.fromkeys(("books", "wikipedia", "latex", "code"), "shakespeare"),
    "laptop": {"books": "pg19", "wikipedia": "wikitext-103", "latex": LATEX, "code": "installed-code"},
    "paper": {
        "books": "pg19-all",
        "wikipedia": "wikitext-103",
        "latex": LATEX,
        "code": "hub:codeparrot/codeparrot-clean#content",
    },
}


# --- which runs there are


def runs(setting: StudySetting) -> list[Run]:
    """Text by text: what is read untrained, the trainings, and what is read trained."""
    sizes: MemorySizes = setting.sizes
    _check(setting)
    found = backbone_runs(setting, sizes.decoder)
    for text in dict.fromkeys((*sizes.texts, *sizes.trained_on)):
        if text in sizes.texts:
            untrained = readings(sizes, text, sizes.windows, sizes.untrained)
            found += [_reading(setting, reading, None) for reading in untrained]
        if text in sizes.trained_on and sizes.trained:
            trained = readings(sizes, text, sizes.trained_windows, sizes.trained, trained=True)
            for seed in range(setting.seeds):
                models = {reading.training(seed): reading for reading in trained}
                found += [_training(setting, reading, seed) for reading in models.values()]
                found += [_reading(setting, reading, seed) for reading in trained]
    return found


def readings(
    sizes: MemorySizes, text: str, windows: Sequence[int], memories: Sequence[str], trained: bool = False
) -> list[Reading]:
    """The rows of the tables of a text."""
    found = [Reading(text, sizes.length, FULL, trained=trained)]
    for window in windows:
        found.append(Reading(text, window, PLAIN, trained=trained))
        found += [Reading(text, window, name, slots, trained) for name in memories for slots in sizes.slots]
    return found


def _check(setting: StudySetting) -> None:
    sizes: MemorySizes = setting.sizes
    for name in ("texts", "trained_on"):
        for text in getattr(sizes, name):
            if text not in setting.corpora:
                raise FieldError(name, text, f"choose among {', '.join(setting.corpora)}")
    if not 0 < sizes.scored_from < sizes.length:
        raise FieldError("scored_from", sizes.scored_from, f"it must be less than length={sizes.length}")
    for name in ("windows", "trained_windows"):
        for window in getattr(sizes, name):
            if sizes.length % window:
                raise FieldError(
                    name, window, f"it must divide length={sizes.length}, or full context has an advantage"
                )
    for name in ("untrained", "trained"):
        for memory in getattr(sizes, name):
            config = WindowRecurrenceConfig(**fields_of(memory), window=sizes.length)  # refuses unknown ones
            if name == "trained" and not config.takes_slots:
                raise FieldError(name, memory, "only memories of keys and values have as many slots as a step draws")


def _reading(setting: StudySetting, reading: Reading, seed: int | None) -> Run:
    sizes: MemorySizes = setting.sizes
    swaps = reading.slots in sizes.swapped_at
    alike = ("length", "scored_from", "reach", "validation_stretches")
    tests = sizes.test_stretches_of(reading.text)
    settings = {
        "text": setting.corpora[reading.text],
        "decoder": asdict(sizes.decoder),
        "window": reading.window,
        "memory": fields_of(reading.memory),
        "slots": reading.slots,
        "swapped": swaps,
        "test_stretches": tests,
        **{name: getattr(sizes, name) for name in alike},
    }
    needs: tuple[str, ...] = (BACKBONE,) if sizes.decoder.name is None else ()
    if seed is not None:
        settings["seed"], needs = seed, (reading.training(seed),)
    tokens = sizes.length * (sizes.validation_stretches + (1 + swaps) * tests)
    do = partial(read, sizes, reading, seed, swaps)
    return Run(reading.run(seed), settings, do, needs, tokens, by="first", outcome_only=True)


OF_TRAINING = (
    *("length", "random_slots", "tokens", "rows", "rate", "lora_rank", "teacher_share"),
    *("schedule", "warmup_steps", "evaluate_every", "train_bytes", "reach", "validation_stretches"),
)


def _training(setting: StudySetting, reading: Reading, seed: int) -> Run:
    sizes: MemorySizes = setting.sizes
    settings = {
        "text": setting.corpora[reading.text],
        "decoder": asdict(sizes.decoder),
        "window": reading.window,
        "memory": fields_of(reading.memory),
        "seed": seed,
        "carrier_rate": sizes.carrier_rate_of(reading.memory),
        **{name: getattr(sizes, name) for name in OF_TRAINING},
    }
    needs = (BACKBONE,) if sizes.decoder.name is None else ()
    do, planned = partial(train, sizes, reading, seed), partial(plan, sizes, reading.window)
    return Run(reading.training(seed), settings, do, needs, sizes.tokens, plan=planned)


def check(work: Work) -> None:
    if names := work.setting.sizes.trained_on:
        check_texts(work, *names)


STUDIES = [Study("memory", CORPORA, SCALES, runs, report, check)]
