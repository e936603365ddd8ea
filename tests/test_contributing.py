"""CONTRIBUTING.md is true: its tree is the tree, and its tables name files and symbols that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import annotated_tree
import pytest

ROOT = annotated_tree.ROOT
PAGE = annotated_tree.PAGE.read_text(encoding="utf-8")
SYMBOLS = re.findall(r"`([\w./]+\.py)::(\w+)`", PAGE)
PATHS = re.findall(r"`((?:src|tests|docs|benchmarks)/[\w./]+)`", PAGE)
NAMED = re.findall(r"`@?(\w+)[^`]*`[^|]*\| `(src/[\w/]+\.py)` \|", PAGE)


def defined_in(file: Path) -> set[str]:
    """The names that a module defines at its top level."""
    found: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def test_the_tree_is_current():
    assert annotated_tree.page_with_tree() == PAGE, "run `make tree`"


def test_every_module_says_what_it_does_in_a_short_line():
    long = [line for line in annotated_tree.tree().splitlines() if len(line) > 145]
    silent = [line for line in annotated_tree.tree().splitlines() if re.fullmatch(r"\s+[\w/.]+", line)]
    assert long == [] and silent == []


@pytest.mark.parametrize(("file", "symbol"), SYMBOLS)
def test_equations_are_where_the_page_says(file, symbol):
    assert symbol in defined_in((ROOT / "src" / "onward" / file).resolve())


@pytest.mark.parametrize("path", sorted(set(PATHS)))
def test_paths_exist(path):
    assert (ROOT / path).exists()


@pytest.mark.parametrize(("name", "file"), NAMED)
def test_what_is_to_be_written_has_its_place(name, file):
    assert name in defined_in(ROOT / file) or (ROOT / file).read_text(encoding="utf-8").count(name)
