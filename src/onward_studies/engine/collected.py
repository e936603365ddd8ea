"""RESULTS.md, from the folders of studies: `python -m onward_studies.engine.collected results RESULTS.md`.

Each folder is a copy of OUT/SCALE/STUDY, and may hold a `notes.md` about claims that failed. Their report.html files,
which are not in git, are written again too.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onward.utils.files import write_text
from onward.utils.safe_json import field_of, read_json

from .. import ABOUT
from .intervals import FAILS, HOLDS, UNSEEN
from .page import RESULTS, write_page
from .reporting import Claim, Table, claims_table

VERDICTS = (HOLDS, FAILS, UNSEEN)
PAGE_HEAD = f"""# Results

What the papers claim, and what we saw, study by study. These are small models trained for minutes: see each study's own
notes for what that leaves open. A claim **{HOLDS}** if the 95 % interval of the paired differences over seeds is on its
side of 0, **{FAILS}** if on the other side, and is otherwise **{UNSEEN}**. This page is made by `make results` of the
folders in [results](results), which hold tables, figures, curves, and every run's command, versions, seed and machine.
How models are compared is told in [docs/studies.md](docs/studies.md).
"""


def studies_in(folder: Path) -> list[str]:
    """In the order of `onward study`."""
    return [name for name in ABOUT if (folder / name / RESULTS).is_file()]


def collect(folder: Path, page: Path) -> str:
    """The text of `page`, whose links lead to `folder`."""
    found = {name: _results(folder / name / RESULTS) for name in studies_in(folder)}
    if not found:
        raise FileNotFoundError(f"{folder} holds no study: copy OUT/SCALE/STUDY there, with its {RESULTS}")
    rows = [[f"[{name}](#{name})", *_counts(saved), saved["runs"], _hours(saved)] for name, saved in found.items()]
    overview = Table("All studies", ("study", *VERDICTS, "runs", "hours of one core"), rows)
    sections = [_section(name, saved, folder / name, page) for name, saved in found.items()]
    return "\n".join([PAGE_HEAD, overview.markdown(), *sections])


def _results(file: Path) -> dict[str, Any]:
    found = read_json(file, "the results of a study")
    kinds = {"runs": str, "scale": str, "seeds": int, "summary": str, "claims": list, "outcomes": dict}
    for name, kind in kinds.items():
        field_of(found, file, name, kind)
    return found


def _counts(saved: Mapping[str, Any]) -> list[str]:
    counts = Counter(claim["verdict"] for claim in saved["claims"])
    return [str(counts[verdict] or "") for verdict in VERDICTS]


def _hours(saved: Mapping[str, Any]) -> str:
    outcomes = saved["outcomes"].values()
    return f"{sum(o['seconds'] * o['circumstances']['machine']['threads'] for o in outcomes) / 3600:.1f}"


def _section(name: str, saved: Mapping[str, Any], folder: Path, page: Path) -> str:
    where = Path(os.path.relpath(folder, page.parent)).as_posix()
    claims = [Claim(**claim) for claim in saved["claims"]]
    judged = claims_table(claims).lines() if claims else f"{saved['summary']}\n"
    pictures = "".join(f"![{picture.stem}]({where}/{picture.name})\n" for picture in sorted(folder.glob("*.svg")))
    notes = folder / "notes.md"
    said = [notes.read_text(encoding="utf-8").strip() + "\n"] if notes.is_file() else []
    told = f"{saved['scale']} scale, {saved['seeds']} seeds, {saved['runs']}: [tables]({where}/table.md).\n"
    parts = [f"## {name}\n", f"{ABOUT[name]}.\n", judged, *said, pictures, told]
    return "\n".join(part for part in parts if part)


def main(results: Path, page: Path) -> None:
    write_text(page, collect(results, page))
    for name in studies_in(results):
        write_page(results / name)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
