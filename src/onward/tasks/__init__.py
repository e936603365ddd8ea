"""Questions whose answer is far: facts hidden in texts of any length, made by code, scored by their words.

    haystack = Haystack(load_corpus("shakespeare").test, tokenizer)
    question = far_question("passkey", haystack, tokens=64_000, depth=0.3, seed=1)
    answer = ...  # of a model that has read question.text, to question.question
    question.score(answer)  # 0 to 1

| task | what is hidden |
|---|---|
| `passkey` | a number of five digits |
| `needle`, `needles-keys`, `needles-values` | the number of a key; among other keys; all numbers of a key |
| `variables` | names that have a number through four hops |
| `one-fact`, `two-facts`, `three-facts` | who went where with what, BABILong-style |
"""

from . import needles, places, variables
from .haystack import Haystack
from .question import FarQuestion, far_question
from .task import TASKS, Hidden, task

__all__ = ["TASKS", "FarQuestion", "Haystack", "Hidden", "far_question", "task"]

del needles, places, variables  # imported for the tasks in them
