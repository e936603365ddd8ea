"""Every form that a task's data comes in, and what is wrong with files."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from onward.finetuning import TASKS, DataError
from onward.finetuning import data as reading
from onward.finetuning.data import TaskData, read
from onward.utils.hub import HubUnreachable


def put(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
    return folder


def both(folder: Path, train: str, dev: str, ending: str = "tsv") -> Path:
    return put(folder, {f"train.{ending}": train, f"dev.{ending}": dev})


# --- GLUE's own files


@pytest.mark.parametrize("inside", ["", "cola_public/raw/", "cola/cola_public/raw/", "CoLA/"])
def test_cola_without_a_header_and_with_both_validation_files(tmp_path: Path, inside: str) -> None:
    files = {
        "in_domain_train.tsv": 'gj04\t1\t\tHe said "no.\ngj04\t0\t*\tHim said\u2028no".\n',
        "in_domain_dev.tsv": "gj04\t1\t\tOne.\n",
        "out_of_domain_dev.tsv": "clc95\t0\t*\tTwo one.",  # no line's end at the end
    }
    put(tmp_path, {inside + name: text for name, text in files.items()})
    found = read(TASKS["cola"], tmp_path)
    assert found.train == [{"sentence": 'He said "no.', "label": 1}, {"sentence": 'Him said\u2028no".', "label": 0}]
    assert found.evaluation == {"validation": [{"sentence": "One.", "label": 1}, {"sentence": "Two one.", "label": 0}]}


def test_cola_as_glue_names_it(tmp_path: Path) -> None:
    found = read(TASKS["cola"], both(tmp_path, "gj04\t1\t\tOne.\n", "gj04\t0\t*\tTwo.\n"))
    assert (found.train[0]["label"], found.evaluation["validation"][0]["sentence"]) == (1, "Two.")


def test_rte_has_labels_in_words(tmp_path: Path) -> None:
    header = "index\tsentence1\tsentence2\tlabel\r\n"
    rows = '0\tA "b\tC\tnot_entailment\r\n1\tD\t"E\tentailment\r\n'
    found = read(TASKS["rte"], both(tmp_path, header + rows, header + rows))
    assert found.train == [
        {"sentence1": 'A "b', "sentence2": "C", "label": 1},
        {"sentence1": "D", "sentence2": '"E', "label": 0},
    ]


def test_a_test_split_without_labels_is_refused(tmp_path: Path) -> None:
    put(tmp_path, {"train.tsv": "sentence1\tsentence2\tlabel\na\tb\t1\n", "test.tsv": "sentence1\tsentence2\na\tb\n"})
    with pytest.raises(DataError, match=r"test.tsv has no column 'label'"):
        read(TASKS["rte"], tmp_path, split="test")


def test_a_test_split_with_labels_is_scored_on(tmp_path: Path) -> None:
    put(tmp_path, {f"{split}.tsv": f"sentence\tlabel\n{split} \t1\n" for split in ("train", "dev", "test")})
    assert read(TASKS["sst2"], tmp_path, split="test").evaluation == {"test": [{"sentence": "test ", "label": 1}]}


def test_stsb_of_its_own_home_is_tab_separated_csv(tmp_path: Path) -> None:
    row = 'main\tMSRvid\t2012test\t0001\t{}\tA "plane, is\tAn, air plane'
    text = "\n".join([row.format("5.000"), row.format("3.80") + "\tsource one\tsource two"])
    found = read(TASKS["stsb"], put(tmp_path, {"sts-train.csv": text, "sts-dev.csv": text, "sts-test.csv": text}))
    assert [example["label"] for example in found.train] == [5.0, 3.8]
    assert found.train[1] == {"sentence1": 'A "plane, is', "sentence2": "An, air plane", "label": 3.8}


def test_stsb_as_glue_has_it(tmp_path: Path) -> None:
    header = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
    row = header + "0\tg\tf\ty\to\ts\t\tA\tB\t2.5\n"
    found = read(TASKS["stsb"], both(tmp_path, row, row))
    assert found.train == [{"sentence1": "A", "sentence2": "B", "label": 2.5}]


@pytest.mark.parametrize("names", [("train.tsv", "dev.tsv"), ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt")])
def test_mrpc(tmp_path: Path, names: tuple[str, str]) -> None:
    text = '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tOne "x\tTwo\n0\t7\t8\tThree\tFour\n'
    found = read(TASKS["mrpc"], put(tmp_path, dict.fromkeys(names, text)))
    assert found.train[0] == {"sentence1": 'One "x', "sentence2": "Two", "label": 1}


def test_qqp_whose_broken_lines_are_counted(tmp_path: Path) -> None:
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    text = f"{header}1\t2\t3\tA?\tB?\t0\nrest of a line\n4\t5\t6\tC?\tC?\t1\n"
    found = read(TASKS["qqp"], both(tmp_path, text, text))
    assert [example["label"] for example in found.train] == [0, 1]
    assert found.dropped == 2


def test_mnli_matched_and_mismatched(tmp_path: Path) -> None:
    header = "index\tgenre\tsentence1\tsentence2\tlabel1\tgold_label\n"
    names = {"train": "neutral", "dev_matched": "entailment", "dev_mismatched": "contradiction"}
    put(tmp_path, {f"MNLI/{n}.tsv": f"{header}0\tfiction\tA\tB\tneutral\t{label}\n" for n, label in names.items()})
    found = read(TASKS["mnli"], tmp_path)
    assert found.train == [{"premise": "A", "hypothesis": "B", "label": 1}]
    assert {split: rows[0]["label"] for split, rows in found.evaluation.items()} == {
        "validation_matched": 0,
        "validation_mismatched": 2,
    }


def test_qnli(tmp_path: Path) -> None:
    text = "index\tquestion\tsentence\tlabel\n0\tWho?\tHe.\tnot_entailment\n"
    assert read(TASKS["qnli"], both(tmp_path, text, text)).train == [
        {"question": "Who?", "sentence": "He.", "label": 1}
    ]


# --- with the Hub's names of columns

ROWS = [{"sentence": 'He said, "no', "label": 0}, {"sentence": "two\nlines", "label": 1}, {"sentence": "x", "label": 1}]


def write_as(ending: str, path: Path) -> None:
    if ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif ending == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["label", "sentence"])
            writer.writeheader()
            writer.writerows(ROWS)
    else:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_the_hubs_rows_in_files(tmp_path: Path, ending: str) -> None:
    for split in ("train", "validation"):
        write_as(ending, tmp_path / f"{split}.{ending}")
    assert read(TASKS["sst2"], tmp_path) == TaskData(ROWS, {"validation": ROWS})


def test_the_hubs_parquet_in_pieces(tmp_path: Path) -> None:
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"):
        write_as("parquet", tmp_path / f"{name}.parquet")
    found = read(TASKS["sst2"], tmp_path)
    assert (found.train, found.evaluation) == (ROWS * 2, {"validation": ROWS})


def test_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load(name: str, config: str | None) -> dict[str, Any]:
        asked.append((name, config))
        return {"train": ROWS, "validation": ROWS[:2], "test": [{"sentence": "?", "label": -1}]}

    monkeypatch.setattr(reading, "load_hub_data_set", load)
    assert read(TASKS["sst2"]) == TaskData(ROWS, {"validation": ROWS[:2]})
    assert asked == [("nyu-mll/glue", "sst2")]
    with pytest.raises(DataError, match="test, row 1: label -1 means that the label is not public"):
        read(TASKS["sst2"], split="test")


def test_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, config: str | None) -> dict[str, Any]:
        raise HubUnreachable("no")

    monkeypatch.setattr(reading, "load_hub_data_set", load)
    with pytest.raises(HubUnreachable, match=r"data of cola \(nyu-mll/glue\).*give a folder .* as data"):
        read(TASKS["cola"])


def test_of_one_file_the_last_tenth_is_held_out_and_no_text_is_in_both_parts(tmp_path: Path) -> None:
    rows = [{"sentence1": f"premise {i // 2}", "sentence2": str(i), "label": i % 2} for i in range(40)]
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read(TASKS["rte"], tmp_path / "all.jsonl")
    assert (found.train, found.evaluation["validation"]) == (rows[:36], rows[36:])


# --- subsets


def test_a_subset_is_always_the_same_and_fewer_are_among_more() -> None:
    whole = TaskData([{"sentence": str(i), "label": 0} for i in range(100)], {"validation": ROWS})
    few, more = whole.with_at_most(10), whole.with_at_most(30)
    assert few == whole.with_at_most(10)
    assert len(few.train) == 10 and few.evaluation == whole.evaluation
    assert all(row in more.train for row in few.train)
    assert few.train != whole.train[:10]
    assert whole.with_at_most(1000) is whole
    assert len({data.fingerprint for data in (few, more, whole)}) == 3


# --- what is wrong with files


def test_a_folder_without_the_tasks_files_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no train files of cola: looked for in_domain_train.tsv, or train.tsv.*CoLA"):
        read(TASKS["cola"], tmp_path)
    with pytest.raises(DataError, match="no file or folder"):
        read(TASKS["cola"], tmp_path / "nowhere")
    put(tmp_path, {"train.tsv": "sentence\tlabel\na\t1\n"})
    with pytest.raises(DataError, match=r"no validation files of sst2: looked for validation.tsv.*dev.tsv"):
        read(TASKS["sst2"], tmp_path)


@pytest.mark.parametrize(
    ("task", "text", "message"),
    [
        ("sst2", "", r"train.tsv is empty"),
        ("sst2", "sentence\tlabel\n", r"train.tsv: no examples of sst2, 0 left out"),
        ("sst2", "sentence\tlabel\na\t1\n\nb\n", r"train.tsv, line 4: 1 columns, but sst2 has at least 2"),
        ("cola", "gj04\t1\t\tOne.\ngj04\t1\tTwo.\n", r"train.tsv, line 2: 3 columns, but cola has at least 4"),
        ("sst2", "sentence\tlabel\na\t2\n", r"line 2: label '2' is not known: sst2 has negative, positive, or 0 to 1"),
        ("rte", "sentence1\tsentence2\tlabel\na\tb\tmaybe\n", r"line 2: label 'maybe' is not known"),
        ("stsb", "sentence1\tsentence2\tscore\na\tb\thigh\n", r"label 'high' is not known: stsb has numbers"),
        ("rte", "sentence1\tlabel\na\t1\n", r"no column 'sentence2', only 'sentence1', 'label'"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, task: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(TASKS[task], both(tmp_path, text, text))


def test_json_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train.jsonl, line 2: not valid JSON"):
        read(TASKS["sst2"], both(tmp_path, '{"sentence": "a", "label": 1}\n{"sentence": \n', "", "jsonl"))
    with pytest.raises(DataError, match=r"line 1: 'sentence' is None, not text"):
        read(TASKS["sst2"], both(tmp_path, '{"text": "a", "label": 1}\n', "", "jsonl"))
    with pytest.raises(DataError, match=r"line 1: no label"):
        read(TASKS["sst2"], both(tmp_path, '{"sentence": "a"}\n', "", "jsonl"))
