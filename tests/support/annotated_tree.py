"""The annotated tree of CONTRIBUTING.md, from the first line of every module's docstring: `make tree` writes it."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- tree: written by `make tree` -->\n", "<!-- end of tree -->\n"
WIDTH = 34  # of the column of names


def summary_of(file: Path) -> str:
    """The first sentence, or line, of a module's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    first = text.split("\n\n")[0].replace("\n", " ")
    return first.partition(". ")[0].removesuffix(".")


def lines_of(folder: Path, depth: int = 0) -> list[str]:
    """A line for each folder and module below `folder`; a package is described by its __init__.py."""
    lines = []
    inside = [path for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
    for path in sorted(inside, key=lambda path: (path.is_file(), path.name)):
        if path.name == "__init__.py":
            continue
        name = f"{'  ' * depth}{path.name}{'/' if path.is_dir() else ''}"
        summary = summary_of(path / "__init__.py" if path.is_dir() else path)
        lines.append(f"{name:{WIDTH}} {summary}".rstrip())
        if path.is_dir():
            lines += lines_of(path, depth + 1)
    return lines


def tree() -> str:
    return "```text\n" + "\n".join(["src/", *lines_of(ROOT / "src", 1)]) + "\n```\n"


def page_with_tree() -> str:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return before + BEGIN + tree() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page_with_tree(), encoding="utf-8")
