"""The studies of window recurrence: the smallest scale from beginning to end, and what made-up readings come to."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from families import recurrent as recurrent_model
from safetensors.torch import load_file
from study_command import run

from onward.evaluation import plain
from onward.ops.windows import segment_length
from onward_studies import STUDIES
from onward_studies.engine import trainings
from onward_studies.engine.intervals import FAILS, HOLDS, UNSEEN, Interval
from onward_studies.engine.work import Work
from onward_studies.window_recurrent import backbone, carriers, overlap, topics, window_size
from onward_studies.window_recurrent import runs as windows
from onward_studies.window_recurrent.runs import run_name
from onward_studies.window_recurrent.variants import baseline, constant, recurrent


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All runs of Table 2, at the smallest scale."""
    folder = tmp_path_factory.mktemp("windows")
    said = run(f"study backbone --scale smoke --out {folder}")
    assert "| Llama's shape |" in said
    left = re.search(r"figures are in (\S+)", said)
    assert left and (Path(left[1]) / "report.html").is_file()
    said = run(f"study overlap-books --scale smoke --seeds 1 --out {folder}")
    for row in ("| plain | 0 |", "| plain | 8 |", "| constant | 0 |", "| recurrent | 4 |", "| swapped | 4 |"):
        assert row in said
    return folder


@pytest.mark.parametrize(("instruction", "has"), [("avx512_bf16", True), ("amx_bf16", True), ("avx512_f", False)])
def test_bfloat16_needs_instructions_for_it(instruction: str, has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"avx2": True, "avx512_bf16": False, instruction: True})
    assert trainings.has_bf16() == has
    monkeypatch.delattr("torch.cpu.get_capabilities")  # as in older torch
    assert not trainings.has_bf16()
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)  # such as Apple's
    assert not trainings.has_bf16()


@pytest.mark.parametrize(
    ("chosen", "hardware", "used"),
    [("", True, True), ("--precision float32", True, False), ("--precision bfloat16", False, True)],
)
def test_trainings_are_in_bfloat16_where_there_is_hardware_for_it_or_as_is_chosen(
    chosen: str, hardware: bool, used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward_studies.engine.trainings.has_bf16", lambda: hardware)
    run(f"study backbone --scale smoke --out {tmp_path} {chosen}")
    folder = tmp_path / "smoke" / "runs" / "backbone"
    assert json.loads((folder / "model" / "run.json").read_text())["recipe.bf16"] == used
    outcome = json.loads((folder / "outcome.json").read_text())
    assert outcome["bf16"] == used and math.isfinite(outcome["validation_loss"])


def test_overlaps(place: Path) -> None:
    saved = json.loads((place / "smoke" / "overlap-books" / "results.json").read_text())["outcomes"]
    plain, ours = (saved[f"books-{name}-window24-seed0"] for name in ("plain", "recurrent"))
    assert set(plain["read"]["test"]) == {"true", "overlap 4", "overlap 8"}
    assert set(ours["read"]["validation"]) == {"true", "swapped"} and ours["learning_rate"] in (1e-3, 3e-3)
    assert ours["parameters"] > plain["parameters"] and plain["flops"]["8"] == pytest.approx(1.5 * plain["flops"]["0"])
    counted = plain["counted_flops"]
    assert counted["0"] < counted["8"] < 1.5 * counted["0"], "there is no head for what is read again"
    assert counted["0"] < ours["counted_flops"]["0"]
    # The best rate is the one whose trial had the lowest validation loss.
    trials = {o["learning_rate"]: o["validation_loss"] for n, o in saved.items() if "rate-recurrent" in n}
    assert ours["learning_rate"] == min(trials, key=trials.__getitem__)


def test_window_sizes_have_runs_of_the_overlaps(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []
    real = windows.train_once

    def train_once(work: Any, *given: Any) -> Any:
        trained.append(work.folder.name)
        return real(work, *given)

    monkeypatch.setattr(windows, "train_once", train_once)
    said = run(f"study pareto --scale smoke --seeds 1 --out {place}")
    assert "| recurrent, overlap 4 | 24 |" in said and "| plain, overlap 4 | 16 |" in said and "| yes |" in said
    assert trained == ["books-plain-window16-seed0", "books-recurrent-window16-seed0"]
    said = run(f"study window-size --scale smoke --seeds 1 --out {place}")
    assert "| 16 | " in said and "| 24 | " in said and len(trained) == 2


def test_carriers(place: Path) -> None:
    said = run(f"study carriers --scale smoke --seeds 1 --out {place}")
    sizes = STUDIES["carriers"].sizes["smoke"]
    for name in (*sizes.carriers, "plain windows", "longest context", "constant for fading history"):
        assert f"| {name} | " in said
    saved = json.loads((place / "smoke" / "carriers" / "results.json").read_text())["outcomes"]
    ours = saved["books-history-window24-seed0"]["read"]["test"]
    row = next(line for line in said.splitlines() if line.startswith("| history | 7 |"))
    assert f"| {ours['swapped']['loss'] - ours['true']['loss']:.4f} |" in row
    assert "overlap 32" in saved["books-full-window64-seed0"]["read"]["test"]
    assert any(name.startswith("books-rate-full-") for name in saved), "the longest context has a rate of its own"


def test_carriers_of_a_model_that_stays_as_it_is(place: Path) -> None:
    said = run(f"study pretrained --scale smoke --seeds 2 --out {place}")
    assert "| spans | 4 |" in said and "| constant for spans | 4 |" in said and "| history |" not in said
    saved = json.loads((place / "smoke" / "pretrained" / "results.json").read_text())["outcomes"]
    assert not any("rate-plain" in name or "rate-full" in name for name in saved), "what is not trained has no rate"
    tried = {name.split("-rate-")[1].rsplit("-", 1)[0] for name in saved if "-rate-" in name}
    constants = {"constant", "constant-fading-history"}
    assert tried == {"pooled-paper", "pooled", "recurrent", "fading-history"} | constants, "all others have their own"
    names = [f"pretrained-books-plain-window24-seed{seed}" for seed in (0, 1)]
    first, second = (saved[name] for name in names)
    assert first["tokens"] == 0 and (first["name"], second["name"]) == tuple(names) and second["seed"] == 1
    assert second["read"] == first["read"] and second["settings"]["seed"] == 1
    models = place / "smoke" / "runs"
    backbone = load_file(models / "backbone" / "model" / "backbone" / "model.safetensors")
    trained = load_file(models / "pretrained-books-pooled-window24-seed1" / "model" / "model.safetensors")
    kept = {name.removeprefix("backbone."): tensor for name, tensor in trained.items() if name.startswith("backbone.")}
    assert set(backbone) <= set(kept) and all(torch.equal(kept[name], backbone[name]) for name in backbone)


def losses_of_carriers(
    losses: dict[str, float], seeds: tuple[int, ...] = (0, 1), on_validation: Mapping[str, float] = MappingProxyType({})
) -> dict[str, Any]:
    """By what tables call them; swapped memories are 0.125 worse, and validation losses as `on_validation` says. Seeds
    differ by 0.1 in all."""
    outcomes: dict[str, Any] = {}
    sizes = STUDIES["carriers"].sizes["smoke"]
    for name, variant in carriers.variants(sizes).items():
        for seed in seeds:
            loss = losses.get(name, 3.0) + 0.1 * seed
            read = {"true": loss, "swapped": loss + 0.125}
            read |= {"overlap 32": loss, "overlap 8": loss - 0.5, "overlap 4": loss}
            curves = {"by_position": [loss], "by_window": [loss]}
            found, held = (
                {name: {"loss": number + more, "word_perplexity": number, **curves} for name, number in read.items()}
                for more in (0, on_validation.get(name, 0))
            )
            outcomes[run_name(sizes, "books", variant, seed)] = {
                "read": {"test": found, "validation": held},
                "counted_flops": {
                    str(o): (1.25e6 if name in sizes.carriers else 1e6) * variant.window / (variant.window - o)
                    for o in (0, *variant.others)
                },
                "parameters_added": 7,
            }
    return outcomes


def test_what_carriers_come_to() -> None:
    setting = STUDIES["carriers"].setting("smoke", seeds=2)
    losses = {"longest context": 2.0, "fading history": 2.25, "spans": 2.5, "constant for fading history": 2.75}
    outcomes = losses_of_carriers(losses)
    found = STUDIES["carriers"].report(setting, outcomes)
    rows = {line.split(" | ")[0].strip("| "): line for line in found.markdown().splitlines() if line.startswith("| ")}
    assert rows["fading history"].endswith("| 0.7500 ± 0.0000 | 75.0 ± 0.0 | 0.1250 ± 0.0000 |")
    assert "| 2e+06 |" in rows["longest context"], "half of its window is read again"
    claims = {claim.claim: (claim.we_saw, claim.verdict) for claim in found.claims}
    assert claims["A carrier wins back half of what the longest context gains"] == (
        "fading history recovers 75.0 ± 0.0 %",
        HOLDS,
    )
    assert claims["Fading history is better than a constant in its place"][1] == HOLDS
    assert claims["It carries twice the content of the paper's module"][1] == FAILS
    assert "| 1.5e+06 |" in rows["plain windows, 8 read again"], "a third of its window is read again"
    assert rows["plain windows, 8 read again"].endswith("| 0.5000 ± 0.0000 | 50.0 ± 0.0 |  |")
    assert claims["It is better than plain windows that overlap, at no more FLOPs"] == (
        "0.2500 ± 0.0000 nats per token better than plain windows, 8 read again, at 1.20 of its FLOPs",
        HOLDS,
    )
    less = STUDIES["carriers"].report(setting, losses_of_carriers({"longest context": 2.0, "spans": 2.75}))
    assert less.claims[0].verdict == FAILS
    chosen = STUDIES["carriers"].report(setting, losses_of_carriers(losses, on_validation={"fading history": 1.0}))
    assert chosen.claims[0].we_saw == "spans recovers 50.0 ± 0.0 %", "the best on validation, not on test"


@pytest.mark.parametrize("longest", [3.0, 3.5])
def test_no_share_of_nothing(longest: float) -> None:
    """A carrier that is worse than plain windows recovers nothing of a context that is worse, too."""
    losses = {"longest context": longest} | dict.fromkeys(STUDIES["carriers"].sizes["smoke"].carriers, 3.25)
    found = STUDIES["carriers"].report(STUDIES["carriers"].setting("smoke", seeds=2), losses_of_carriers(losses))
    assert found.claims[0].verdict == UNSEEN and "gains nothing for sure" in found.claims[0].we_saw


def test_steps_have_as_many_tokens_for_all_windows() -> None:
    laptop = STUDIES["carriers"].sizes["laptop"]
    base = laptop.rows * laptop.windows_per_segment * laptop.window
    for variant in [*carriers.variants(laptop).values(), *window_size.variants(STUDIES["pareto"].sizes["laptop"])]:
        rows, count = windows.step_of(laptop, variant)
        assert rows * segment_length(count, variant.window, variant.overlap) == pytest.approx(base, rel=0.06)
    paper = STUDIES["overlap-books"].sizes["paper"]
    assert windows.step_of(paper, recurrent(paper, 300, 50)) == (8, 20), "as the paper has it"
    paper, base = STUDIES["carriers"].sizes["paper"], 8 * 20 * 300
    for variant in [*carriers.variants(paper).values(), *window_size.variants(STUDIES["pareto"].sizes["paper"])]:
        rows, count = windows.step_of(paper, variant)
        assert rows * segment_length(count, variant.window, variant.overlap) == pytest.approx(base, rel=0.1)


def test_the_papers_figures_stand_beside_the_same_part_of_a_window() -> None:
    sizes = STUDIES["overlap-books"].setting("paper", changes={"overlaps": (0, 30), "more_overlaps": (70,)}).sizes
    assert [overlap.place_in_paper(sizes, o) for o in (0, 30, 70, 150)] == [0, 3, None, 7]
    laptop = STUDIES["overlap-books"].sizes["laptop"]
    places = [overlap.place_in_paper(laptop, o) for o in (*laptop.overlaps, *laptop.more_overlaps)]
    assert places == list(range(9))
    with pytest.raises(ValueError, match="they begin with 0"):
        study = STUDIES["overlap-books"]
        study.runs(study.setting("smoke", changes={"overlaps": (4,)}))


def test_pairs_stay_pairs_where_a_seed_is_missing() -> None:
    study = STUDIES["window-size"]
    setting = study.setting("smoke", seeds=3)
    gaps = {16: (0.1, 0.5, 0.3), 24: (0.05, 0.45, 0.25)}  # by window and seed: always 0.05 apart
    outcomes: dict[str, Any] = {}
    for variant in window_size.variants(setting.sizes):
        for seed in range(3):
            loss = 3.0 - (gaps[variant.window][seed] if variant.label == "recurrent" else 0)
            read = {"true": {"loss": loss, "word_perplexity": loss}}
            outcomes[run_name(setting.sizes, "books", variant, seed)] = {"read": {"test": read}, "flops": {"0": 1.0}}
    del outcomes[run_name(setting.sizes, "books", recurrent(setting.sizes, 16), 0)]
    (claim,) = window_size.report_sizes(setting, outcomes).claims
    assert claim.we_saw.startswith("0.0500 ± 0.0000") and claim.verdict == HOLDS


def test_the_frontier_is_judged_by_paired_differences() -> None:
    def point(label: str, flops: float, *losses: float) -> window_size.Point:
        return window_size.Point(label, 1, 0, flops, Interval.of(losses), dict(enumerate(losses)))

    plain = point("plain, overlap 0", 1.0, 3.0, 3.2)
    assert window_size.judge([plain, point("recurrent, overlap 0", 1.0, 2.9, 3.1)]) == HOLDS
    assert window_size.judge([plain, point("recurrent, overlap 0", 1.0, 3.1, 3.3)]) == FAILS
    assert window_size.judge([plain, point("recurrent, overlap 0", 1.0, 2.9, 3.4)]) == UNSEEN
    one_seed = [point("plain, overlap 0", 1.0, 3.0), point("recurrent, overlap 0", 1.0, 2.0)]
    assert window_size.judge(one_seed) == UNSEEN and window_size.judge([plain]) == UNSEEN
    # All must be on it, and recurrent ones beat each other, too; with nothing as cheap there is nothing to compare.
    better, worse = point("recurrent, overlap 0", 1.1, 2.8, 3.0), point("recurrent, overlap 4", 1.2, 2.9, 3.1)
    assert window_size.judge([plain, better, worse]) == FAILS
    assert window_size.judge([plain, better, point("recurrent, overlap 4", 1.2, 2.7, 3.1)]) == UNSEEN
    cheapest = point("recurrent, overlap 0", 0.9, 9.0, 9.0)
    assert window_size.judge([plain, cheapest]) == window_size.judge([cheapest]) == UNSEEN
    assert window_size.judge([plain, cheapest, better]) == HOLDS


def test_topics_and_continuations(place: Path) -> None:
    assert "| swapped | " in run(f"study topics --scale smoke --seeds 1 --out {place}")
    said = run(f"study continuations --scale smoke --seeds 1 --out {place}")
    assert "| context, its end | recurrent | plain | swapped | divergence |" in said
    saved = json.loads((place / "smoke" / "topics" / "results.json").read_text())["outcomes"]["topics-seed0"]
    assert saved["contexts"] == 6 and len(saved["samples"]) == 2
    assert 0 <= saved["divergence"]["recurrent"] <= 1


def test_contexts_are_taken_evenly_and_from_all_documents() -> None:
    sizes = STUDIES["topics"].setting("smoke", changes={"contexts": 4}).sizes
    documents = [torch.arange(100), torch.arange(1000, 1200), torch.arange(30)]
    found = topics.contexts_of(sizes, documents)
    assert found.shape == (4, 49) and found[:, 0].tolist() == [0, 1000, 51, 1151]
    with pytest.raises(ValueError, match="no validation document has the 49 tokens"):
        topics.contexts_of(sizes, documents[2:])


def test_only_the_memory_differs() -> None:
    model = recurrent_model("gpt2", "spans", window=6)
    contexts = torch.randint(1, 60, (3, 13))
    found = topics.continued(plain(model, 6), model, contexts, 4)
    alone = [topics.continued(plain(model, 6), model, contexts[[i]], 4) for i in range(3)]
    for i in range(3):
        assert torch.equal(found["recurrent"][i], alone[i]["recurrent"][0])
        assert torch.equal(found["plain"][i], alone[i]["plain"][0])
        assert torch.equal(alone[i]["swapped"], alone[i]["recurrent"]), "its own memory, where there is no other"
    # What swaps reads the next context, and then what followed its own.
    swapped = torch.cat([contexts[[1, 2, 0], :-1], contexts[:, -1:]], dim=1)
    assert torch.equal(topics.continued(plain(model, 6), model, swapped, 4)["recurrent"], found["swapped"])
    assert not torch.equal(found["swapped"], found["recurrent"])
    # The likeliest token at every step, by reading it all at once.
    ids = torch.cat([contexts, found["recurrent"]], dim=1)
    assert torch.equal(model(ids).logits[:, 12:-1].argmax(-1), found["recurrent"])


def test_what_topics_come_to() -> None:
    setting = STUDIES["topics"].setting("smoke", seeds=2)
    sign = {"share": 0.75, "p": 0.01}
    outcomes = {
        f"topics-seed{seed}": {
            "divergence": {"recurrent": 0.5 + 0.1 * seed, "plain": 0.6 + 0.1 * seed, "swapped": 0.4 + 0.1 * seed},
            "wordless": dict.fromkeys(topics.CONTINUED_BY, 0.0),
            "sign_test": {"plain": sign, "swapped": sign},
        }
        for seed in (0, 1)
    }
    found = topics.report_topics(setting, outcomes)
    assert [claim.verdict for claim in found.claims] == [HOLDS, FAILS]
    assert found.claims[0].we_saw == "0.1000 ± 0.0000 bits closer"


def test_topics_are_those_of_five_thousand_books_at_the_papers_scale(tmp_path: Path) -> None:
    study = STUDIES["topics"]
    for place, count in (("few", 6), ("many", 9)):
        (tmp_path / place).mkdir()
        for number in range(count):
            (tmp_path / place / f"{number}.txt").write_text(f"{place} {number}")
    places = {"books": str(tmp_path / "few"), "wikipedia": "shakespeare", "topics": str(tmp_path / "many")}
    assert study.corpora["paper"]["topics"] == "pg19-all" and study.sizes["paper"].topic_books == 5000
    setting = study.setting("paper", seeds=1, corpora=places, changes={"topic_books": 3})
    work = Work(tmp_path / "out", setting, study.runs(setting))
    assert [text.text for text in topics.texts_with_topics(setting.sizes, work)] == ["many 0", "many 1", "many 2"]
    studies = (STUDIES["overlap-books"], study)
    shared, own = ({run.name: run.settings for run in some.runs(some.setting("paper"))} for some in studies)
    both = shared.keys() & own.keys()
    assert len(both) > 6 and all(shared[name] == own[name] for name in both), "models are those of Table 2"


def test_a_backbone_is_not_trained_further_on_its_own_books(tmp_path: Path) -> None:
    (tmp_path / "books").mkdir()
    for number in range(20):
        (tmp_path / "books" / f"{number:02}.txt").write_text(f"book {number}")
    study = STUDIES["overlap-books"]
    setting = study.setting("smoke", corpora={"books": str(tmp_path / "books")})
    work = Work(tmp_path / "out", setting, study.runs(setting))
    further = {document.name for document in windows.training_texts(setting.sizes, "books", work)}
    pretrained = {document.name for document in backbone._texts(setting.sizes.decoder, work)}
    assert len(further) == 9 and further.isdisjoint(pretrained)


def test_an_infinite_perplexity_is_in_no_mean() -> None:
    setting = STUDIES["overlap-books"].setting("smoke", seeds=2)
    outcomes = readings({})
    exploded = outcomes[run_name(setting.sizes, "books", recurrent(setting.sizes, 24), 1)]
    exploded["read"]["test"]["true"] = {"loss": 900.0, "word_perplexity": None}
    table = overlap.report("books", setting, outcomes).markdown()
    assert "| recurrent | 0 | 3.00 | 3.00 |" in table


def test_the_frontier_has_what_nothing_beats() -> None:
    scores = {"a": (1.0, 9.0), "b": (2.0, 8.0), "c": (2.0, 8.5), "d": (3.0, 8.0), "e": (4.0, 7.0)}
    found = [
        window_size.Point(name, 1, 0, flops, Interval.of([perplexity])) for name, (flops, perplexity) in scores.items()
    ]
    assert [point.label for point in window_size.frontier(found) if point.on_frontier] == ["a", "b", "e"]


def readings(losses: dict[str, float], corpus: str = "books", scale: str = "smoke") -> dict[str, Any]:
    """Two seeds, which differ by 0.1 in all."""
    sizes = STUDIES[f"overlap-{corpus}"].setting(scale).sizes
    base = baseline(sizes)
    outcomes: dict[str, Any] = {}
    for seed in (0, 1):
        for variant, reads in (
            (base, ["true", *(f"overlap {o}" for o in base.others)]),
            (recurrent(sizes, sizes.window), ["true", "swapped"]),
            (recurrent(sizes, sizes.window, 4), ["true", "swapped"]),
            (constant(sizes, sizes.window), ["true"]),
        ):
            found = {name: losses.get(f"{variant.label} {name}", 3.0) + 0.1 * seed for name in reads}
            read = {name: {"loss": loss, "word_perplexity": loss} for name, loss in found.items()}
            flops = {
                kind: dict.fromkeys(map(str, (variant.overlap, *variant.others)), count)
                for kind, count in (("flops", 1e6), ("counted_flops", 2e6))
            }
            outcomes[run_name(sizes, corpus, variant, seed)] = {"read": {"test": read, "validation": read}, **flops}
    return outcomes


def test_what_readings_come_to() -> None:
    setting = STUDIES["overlap-books"].setting("smoke", seeds=2)
    found = overlap.report("books", setting, readings({"recurrent true": 2.9, "plain overlap 4": 2.8}))
    assert "| recurrent | 0 | 2.95 ± 0.64 | 2.95 ± 0.64 | 1e+06 | 2e+06 | 155.27 | 133.02 |" in found.markdown()
    verdicts = {claim.claim: (claim.verdict, claim.we_saw) for claim in found.claims}
    assert verdicts["Recurrence lowers perplexity at equal windows, without overlap"] == (
        HOLDS,
        "0.1000 ± 0.0000 nats per token better",
    )
    assert verdicts["Recurrence without overlap is better than plain windows with an overlap of 4"][0] == FAILS
    one_seed = STUDIES["overlap-books"].setting("smoke", seeds=1)
    assert {claim.verdict for claim in overlap.report("books", one_seed, readings({})).claims} == {UNSEEN}
    assert "Too little" in overlap.report("books", setting, {}).summary
    alone = readings({})
    for outcome in alone.values():
        outcome["read"]["test"].pop("swapped", None)
    found = overlap.report("books", setting, alone)
    assert "another document's" not in found.markdown() and "Nothing is swapped: that takes two" in found.markdown()
    assert any(claim.claim.startswith("It is more than adaptation") for claim in found.claims)


@pytest.mark.parametrize(
    ("corpus", "claim", "saw"),
    [("books", "an overlap of 6", "134.30 -> 133.02"), ("wikipedia", "an overlap of 6 (ours)", "27.96 -> 29.01")],
)
def test_what_the_paper_saw_is_of_its_tables(corpus: str, claim: str, saw: str) -> None:
    setting = STUDIES[f"overlap-{corpus}"].setting("laptop", seeds=2)
    found = overlap.report(corpus, setting, readings({}, corpus, "laptop"))
    assert f"Recurrence without overlap is better than plain windows with {claim} | {saw} |" in found.markdown()
