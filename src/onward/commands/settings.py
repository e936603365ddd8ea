"""`--set FIELD=VALUE`: fields of a configuration, as written in Python; words need no quotes."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a word",
    "bool": "True or False",
    "list": "a list such as [4,10]",
    "None": "None",
}
MEANINGLESS = ("model_type", "num_labels", "id2label", "label2id", "problem_type", "architectures")


def parse_settings(texts: Sequence[str], config: type) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, written = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise ValueError(f"--set {text}: write it as FIELD=VALUE, for example --set hidden_size=256")
        if name in settings:
            raise ValueError(f"--set {text}: {name} is set twice")
        if name in ("dtype", "torch_dtype"):
            raise ValueError(f"--set {text}: models are trained in float32, and {name} would be ignored; leave it out")
        if name in MEANINGLESS:
            raise ValueError(f"--set {text}: {name} means nothing for a model that is trained here; leave it out")
        settings[name] = parse_value(text, written.strip())
        check_type(text, name, settings[name], config)
    return settings


def parse_value(text: str, written: str) -> Any:
    try:
        return ast.literal_eval(written)
    except (ValueError, SyntaxError):
        if re.fullmatch(r"[A-Za-z_./~][\w./:~-]*", written):  # names of models have more than letters
            return written
    raise ValueError(f"--set {text}: {written!r} is neither a number, True, False, None, a list nor a word")


def check_type(text: str, name: str, value: Any, config: type) -> None:
    """Unknown names are left to the configuration, which suggests what was meant."""
    declared = {f.name: f.type.__name__ if isinstance(f.type, type) else str(f.type) for f in fields(config)}
    allowed = [kind.strip() for kind in declared.get(name, "").split("|")]
    given = "None" if value is None else type(value).__name__
    wanted = [KINDS[kind] for kind in allowed if kind in KINDS]
    if wanted and given not in allowed and not (given == "int" and "float" in allowed):
        raise ValueError(f"--set {text}: {name} is {' or '.join(wanted)}, not {value!r}")
