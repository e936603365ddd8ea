"""How SQuAD's official script compares answers: lower case, without punctuation, articles and further spaces.

Both versions are scored as 2.0's script does it; 1.1's differs only for answers that are nothing but an article.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(answer: str) -> str:
    without_articles = re.sub(r"\b(a|an|the)\b", " ", answer.lower().translate(PUNCTUATION))
    return " ".join(without_articles.split())


def exact_match(answer: str, right: str) -> float:
    return float(normalize(answer) == normalize(right))


def f1(answer: str, right: str) -> float:
    """Of the words that both have. No answer is right only where there is none."""
    given, wanted = normalize(answer).split(), normalize(right).split()
    if not given or not wanted:
        return float(given == wanted)
    shared = (Counter(given) & Counter(wanted)).total()
    return 2 * shared / (len(given) + len(wanted))


def best(metric: Callable[[str, str], float], answer: str, rights: Sequence[str]) -> float:
    """Compared with the nearest of several right answers; with none of them, "" is right."""
    return max(metric(answer, right) for right in [text for text in rights if normalize(text)] or [""])
