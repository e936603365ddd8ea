"""Which room imports which: `make rooms` prints it, and test_rooms.py refuses what goes upward.

Read from the source with `ast`, so that imports inside functions count, and nothing has to be imported.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
LEVELS = (
    ("utils",),
    ("ops",),
    ("data",),
    ("models", "tasks", "onward"),  # `onward` itself only gathers the models' public names
    ("training", "evaluation"),
    ("finetuning", "inspection"),
    ("commands",),
    ("cli",),
)
"""From the lowest to the highest. A room imports only rooms below its level, not those beside it."""


def modules(source: Path = SOURCE) -> dict[str, Path]:
    """Every module below `source` by its dotted name."""
    found = {}
    for file in sorted(source.rglob("*.py")):
        parts = file.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports_of(name: str, file: Path, known: dict[str, Path]) -> Iterator[tuple[str, int]]:
    """The modules of `src` that a module imports anywhere in it, with their lines."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
            source = ".".join(part for part in (base, node.module) if part)
            for alias in node.names:
                whole = f"{source}.{alias.name}"
                if whole in known or source in known:
                    yield whole if whole in known else source, node.lineno


def room_of(module: str) -> str:
    """`utils` of `onward.utils.files`; other packages are rooms of their own."""
    parts = module.split(".")
    return parts[1] if parts[0] == "onward" and len(parts) > 1 else parts[0]


def level_of(room: str) -> int | None:
    return next((number for number, rooms in enumerate(LEVELS) if room in rooms), None)


def edges(source: Path = SOURCE) -> Iterator[tuple[str, str, int]]:
    """(module, imported module, line), where the two are in different rooms."""
    known = modules(source)
    for name, file in known.items():
        for other, line in imports_of(name, file, known):
            if room_of(name) != room_of(other):
                yield name, other, line


def upward(source: Path = SOURCE) -> list[str]:
    """Every import that goes against LEVELS, or from the library into the studies."""
    found = []
    for name, other, line in edges(source):
        here, there = level_of(room_of(name)), level_of(room_of(other))
        if not name.startswith("onward."):
            continue  # studies and the entry point may import anything
        if here is None or there is None or there >= here:
            found.append(f"{name}, line {line}, imports {other}")
    return found


def main() -> None:
    counted: dict[str, Counter[str]] = {}
    for name, other, _ in edges():
        counted.setdefault(room_of(name), Counter())[room_of(other)] += 1
    order = [room for rooms in LEVELS for room in rooms]
    for room in sorted(counted, key=lambda room: order.index(room) if room in order else len(order)):
        listed = ", ".join(f"{other} ({count})" for other, count in counted[room].most_common())
        print(f"{room:16} -> {listed}")


if __name__ == "__main__":
    main()
