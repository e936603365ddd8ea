"""A question in every form that `onward.data.question_files` knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from onward.data.questions import Question

HOTPOT: dict[str, Any] = {
    "_id": "5a8b",
    "question": "Who wrote the play about a Moor? ",
    "answer": "William Shakespeare",
    "type": "bridge",
    "context": [
        ["Moors", ["Moors were not William Shakespeare."]],
        ["Othello", ["Othello is a Moor.", " William Shakespeare wrote of him."]],
        ["Empty", []],
        ["Globe", ["The Globe was a theatre."]],
    ],
    "supporting_facts": [["Othello", 0], ["Globe", 0]],
}
LINE: dict[str, Any] = {
    "question_id": "77",
    "question_text": "Is the sea long?",
    "answers_objects": [{"number": "", "spans": ["yes"]}],
    "contexts": [
        {"title": "A", "paragraph_text": "The sea is wide.", "is_supporting": False},
        {"title": "B", "paragraph_text": "The sea is long.", "is_supporting": True},
    ],
}
FLAT: dict[str, Any] = {
    "context": "Rain falls in July and June.",
    "question": "When does it fall?",
    "answer": "July and June",
}
ABOUT_PASSAGE: dict[str, Any] = {"question": "is the sea long", "passage": "The sea is long.", "answer": True}
ABOUT_ARTICLE: dict[str, Any] = {
    "annotation_id": 9180,
    "query": "is the sea wide",
    "classification": "False",
    "docids": ["wiki_12"],
    "evidences": [[{"docid": "wiki_12", "start_token": 0, "end_token": 4, "text": "The sea is long"}]],
    "query_type": None,
}
TEXTS = {"wiki_12": "The sea is long.\nIt is deep .", "wiki_13": "Land ."}
FROM_HOTPOT = Question(
    "5a8b",
    "Who wrote the play about a Moor?",
    (
        "Moors were not William Shakespeare.",
        "Othello is a Moor. William Shakespeare wrote of him.",
        "The Globe was a theatre.",
    ),
    "William Shakespeare",
    (1, 2),
)


def saved(folder: Path, content: Any, name: str = "questions.json") -> Path:
    lines = content if name.endswith("jsonl") else [content]
    (folder / name).write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    return folder / name
