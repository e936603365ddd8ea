"""Whether recurrence works with every text family in transformers: the table in docs/families.md.

`python tests/support/family_table.py > docs/families.md` writes it.
"""

from __future__ import annotations

import logging
import sys
import warnings
from contextlib import suppress
from typing import Any

import torch
from tiny_families import text_families, tiny_model
from tiny_models import VARIANTS, padded, tokens, unpadded
from torch import Tensor
from transformers import PreTrainedModel

from onward import WindowRecurrenceConfig, add_recurrence
from onward.models.window_recurrent import UnsupportedBackboneError

WINDOW, OVERLAP, LENGTH = 5, 1, 14
EDGES = [5, 9]  # where its windows end
HEADS = {"causal-lm": "as causal language models", "masked-lm": "as masked ones", "model": "bare"}
HEADING = """# Families

Which text models recurrence works with: every type in transformers {version}, tiny and random, as a causal language
model, as a masked one and bare. Made by `python tests/support/family_table.py > docs/families.md`, and tested by
`tests/models/window_recurrent/test_family_table.py`.

**works**: the probe accepts it, the first window is the backbone's, a text cut anywhere and continued gives the result
of the whole text, rows of a batch give what they give alone, the memory reaches the next window, no token sees later
ones (decoders), `generate` writes what processing the text again would choose, and gradients reach the carrier. **no**:
`add_recurrence` refuses it by name, with the reason given here. Nothing depends on a family's name: the probe tests the
live model. So layers matter more than names (a hybrid whose layers all have attention works), and types for images or
sound as well as text, which are not listed, are probed like all others.

{counts}

| type | causal LM | masked LM | bare | why not |
|---|---|---|---|---|
"""


def verdict(family: str, head: str) -> tuple[str, str]:
    """Says "works", "no" or "not made", and why. What is neither right nor refused raises an AssertionError."""
    try:
        backbone = tiny_model(family, head)
    except (ValueError, ImportError) as error:
        return "not made", _short(str(error))
    try:
        check(recurrent_of(backbone, "spans"), tiny_model(family, head), head)
    except UnsupportedBackboneError as error:
        return "no", _short(str(error).split(": ", 1)[1].split(". Families known")[0])
    with suppress(UnsupportedBackboneError):  # of vectors that enter a layer, not its attention: they ask for more
        check_cuts(recurrent_of(backbone, "paper"), tokens(2, LENGTH))
    return "works", ""


def recurrent_of(backbone: PreTrainedModel, variant: str, **fields: Any) -> Any:
    config = WindowRecurrenceConfig(window=WINDOW, overlap=OVERLAP, **VARIANTS[variant], **fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = add_recurrence(backbone, config)
        for parameter in model.carrier.parameters():
            parameter.data += 0.2 * torch.randn_like(parameter)
    return model


def check(model: Any, original: PreTrainedModel, head: str) -> None:
    ids = tokens(2, LENGTH)
    with torch.no_grad():
        whole = check_cuts(model, ids)
        _same("the first window", _read(model, ids[:, :WINDOW], []), _outputs(original(input_ids=ids[:, :WINDOW])))
        _check_memory(model, ids, whole)
        _check_batch(model)
        if head == "causal-lm":
            _check_generation(model, ids)
    output = model(ids, **({} if head == "model" else {"labels": ids}))
    (output.last_hidden_state.square().mean() if head == "model" else output.loss).backward()
    found = [p.grad for p in model.carrier.parameters() if p.grad is not None]
    assert found and all(g.isfinite().all() for g in found) and any(g.abs().max() > 0 for g in found), "gradients"


@torch.no_grad()
def check_cuts(model: Any, ids: Tensor) -> Tensor:
    """Outputs of the whole text, which cutting it must not change."""
    whole = _read(model, ids, [], use_cache=False)
    for cached in (True, False) if model.config.causal else (False,):
        cuts = [3, 5, 9, 11, 12] if model.config.causal else EDGES
        _same(f"cut at {cuts}, cache {cached}", _read(model, ids, cuts, use_cache=cached), whole)
    return whole


def _outputs(output: Any) -> Tensor:
    return output.last_hidden_state if output.get("logits") is None else output.logits


def _read(model: Any, ids: Tensor, cuts: list[int], **options: Any) -> Tensor:
    """Outputs of `ids`, processed in pieces that end at `cuts`."""
    if not model.config.causal and model.head == "masked-lm":
        options.pop("use_cache", None)
    state, parts = None, []
    for begin, end in zip([0, *cuts], [*cuts, ids.shape[1]], strict=True):
        output = model(ids[:, begin:end], state=state, **options)
        state = output.state
        parts.append(_outputs(output))
    return torch.cat(parts, dim=1)


def _check_memory(model: Any, ids: Tensor, whole: Tensor) -> None:
    for place in (1, LENGTH - 1):
        other = ids.clone()
        other[:, place] = torch.where(ids[:, place] == 3, 4, 3)
        changed = (_read(model, other, [], use_cache=False) - whole).abs().amax(-1) / whole.abs().amax()
        if place == 1:
            assert (changed[:, WINDOW:] > 1e-4).any(), "the first window does not reach the second"
        elif model.config.causal:
            assert (changed[:, :-1] < 1e-4).all(), "a token changes what stands before it"


def _check_batch(model: Any) -> None:
    """Rows of different lengths, at different places in their windows, and their continuations."""
    state, singles = None, [None, None]
    for number, lengths in enumerate(((8, 3), (1, 1), (2, 9))):
        rows = [tokens(length, seed=10 * number + r) for r, length in enumerate(lengths)]
        ids, mask = padded(rows, "left")
        output = model(ids, attention_mask=mask, state=state)
        state = output.state
        for r, (row, got) in enumerate(zip(rows, unpadded(_outputs(output), mask), strict=True)):
            single = model(row[None], state=singles[r])
            singles[r] = single.state
            _same(f"row {r} of a batch", got, _outputs(single)[0])


def _check_generation(model: Any, ids: Tensor) -> None:
    """Without the ids of padding and end: some families count positions from the padding id."""
    barred = {"suppress_tokens": [0, 1, 2], "forced_eos_token_id": None, "forced_bos_token_id": None}
    made = model.generate(ids[:1], max_new_tokens=8, do_sample=False, **barred)
    assert made.shape[1] == LENGTH + 8, "generation ends early"
    again = model(made, use_cache=False).logits[0, LENGTH - 1 : -1, 3:].argmax(-1) + 3
    assert torch.equal(made[0, LENGTH:], again), "generation is not what reading again chooses"


def _same(what: str, actual: Tensor, expected: Tensor) -> None:
    difference = (actual - expected).abs().max() / expected.abs().max()
    assert difference < 1e-4, f"{what} differs by {difference:.2g}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 150 else f"{text[:150]}..."


def rows() -> dict[str, dict[str, tuple[str, str]]]:
    return {family: {head: verdict(family, head) for head in heads} for family, heads in text_families().items()}


def row(family: str, verdicts: dict[str, tuple[str, str]]) -> str:
    cells = [verdicts[head][0] if head in verdicts else "" for head in HEADS]
    reasons = dict.fromkeys(why for _, why in verdicts.values() if why)
    return f"| {family} | {' | '.join(cells)} | {'; '.join(reasons).replace('|', '/')} |"


def table(found: dict[str, dict[str, tuple[str, str]]]) -> str:
    import transformers

    counts = []
    for head, name in HEADS.items():
        verdicts = [v[head][0] for v in found.values() if head in v]
        counts.append(f"{verdicts.count('works')} of {len(verdicts)} {name}")
    heading = HEADING.format(version=transformers.__version__, counts=f"{', '.join(counts)} work.")
    return heading + "\n".join(row(family, verdicts) for family, verdicts in found.items())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    chosen = sys.argv[1:]
    if chosen:
        for family in chosen:
            print(row(family, {head: verdict(family, head) for head in text_families()[family]}))
    else:
        print(table(rows()))
