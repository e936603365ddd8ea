"""Tests on a live backbone whether recurrence works in it, and whether it is causal.

Nothing follows from a family's name. The backbone processes a few tokens in several ways that must agree: the input of
attention, layer by layer, is compared with what was inserted; a decoder must not see the future; a window that was
left open must continue as if it had not been. Backbones that disagree are refused.

Compared up to a tolerance, and by the row that agrees best: a fault shows in every row, but a rounding that changes a
router's choice of experts only in one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from .heads import answering, remember_kind
from .insertion import ELSEWHERE, SUPPORTED, Call, Insertion, backbone_layers, first_position, inserting, lock_of

WORKING_FAMILIES = (
    "gpt2, llama, mistral, qwen3, gemma3, mixtral, bert, roberta, modernbert and many more (docs/families.md)"
)
ROWS, LENGTH, VECTORS = 4, 6, 3


class UnsupportedBackboneError(ValueError):
    """The backbone's attention cannot be given extra keys and values."""


@dataclass(frozen=True)
class Probe:
    causal: bool
    layers: tuple[int, ...]  # whose attention went through the seam, counted from 1


class _No(Exception):  # noqa: N818 - not an error yet: the reason why a backbone is refused
    pass


def _refuse(model: PreTrainedModel, why: str) -> UnsupportedBackboneError:
    family = model.config.model_type
    return UnsupportedBackboneError(
        f"recurrence cannot be added to {type(model).__name__} of the family {family!r}: {why}. "
        f"Families known to work: {WORKING_FAMILIES}."
    )


@torch.no_grad()
def probe(model: PreTrainedModel, wanted: tuple[int, ...], space: str = "layer") -> Probe:
    """Runs the backbone on a few tokens, with and without vectors at the wanted layers."""
    layers = checked_layers(model)
    base = cast(PreTrainedModel, model.base_model)
    with lock_of(base):
        training = model.training
        model.eval()
        try:
            return _Probing(model, base, layers, wanted, space).run()
        except _No as no:
            raise _refuse(model, str(no)) from no.__cause__
        finally:
            model.train(training)


def checked_layers(model: PreTrainedModel) -> nn.ModuleList:
    """A backbone's layers; refuses backbones that cannot work, without running them."""
    base = cast(PreTrainedModel, model.base_model)
    config = base.config.get_text_config()
    implementation = config._attn_implementation
    if implementation not in SUPPORTED:
        loading = " or ".join(map(repr, SUPPORTED))
        raise _refuse(model, f"it was loaded with attn_implementation={implementation!r}; load it with {loading}")
    if config.is_encoder_decoder:
        raise _refuse(model, "it is an encoder-decoder, and windows are for encoders or decoders")
    for name in ("num_hidden_layers", "hidden_size", "vocab_size"):
        if not isinstance(getattr(config, name, None), int):
            raise _refuse(model, f"its configuration has no {name}")
    try:
        return backbone_layers(base, config.num_hidden_layers)
    except ValueError as error:
        raise _refuse(model, str(error)) from None


def positions_of(base: PreTrainedModel) -> int | None:
    """The number of positions of the backbone; None if unlimited or unknown."""
    longest = getattr(base.config.get_text_config(), "max_position_embeddings", None)
    return longest - first_position(base) if isinstance(longest, int) and longest > 0 else None


class _Probing:
    def __init__(
        self,
        model: PreTrainedModel,
        base: PreTrainedModel,
        layers: nn.ModuleList,
        wanted: tuple[int, ...],
        space: str,
    ):
        self.model, self.base, self.layers, self.wanted, self.space = model, base, layers, wanted, space
        self.config = base.config.get_text_config()

    def run(self) -> Probe:
        self._draw_tokens()
        own = self._own_output()
        return self._trying("the seam fails", lambda: self._compare(own))

    def _trying(self, failure: str, run: Callable[[], Any]) -> Any:
        """Any error of a family's code is a reason to refuse it, except a lack of memory."""
        try:
            return run()
        except (_No, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            said = " ".join(str(error).split()) or "no message"
            raise _No(f"{failure} with {type(error).__name__}: {said}") from error

    def _draw_tokens(self) -> None:
        config = self.config
        special: set[Any] = {0, 1, 2}
        for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
            value = getattr(config, name, None)
            special |= set(value if isinstance(value, list) else [value])
        plain = [token for token in range(min(config.vocab_size, 100)) if token not in special]
        plain = plain if len(plain) > 1 else list(range(config.vocab_size))
        length = min(LENGTH, positions_of(self.base) or LENGTH)
        chance = torch.Generator().manual_seed(0)  # leaves the global random state alone
        drawn = torch.randint(len(plain), (ROWS, length), generator=chance)
        other = drawn.clone()
        other[:, -1] = (drawn[:, -1] + 1) % len(plain)
        self.chance, table = chance, torch.tensor(plain)
        self.ids, self.other = table[drawn].to(self.base.device), table[other].to(self.base.device)

    def _own_output(self) -> Any:
        """The backbone's output without recurrence."""
        output = self._trying(
            "it does not work on token ids alone: it fails", lambda: self.base(input_ids=self.ids, return_dict=True)
        )
        hidden = getattr(output, "last_hidden_state", None)
        if not isinstance(hidden, Tensor) or hidden.shape[:2] != self.ids.shape:
            raise _No("it does not return one vector per token (last_hidden_state)")
        return output

    # -- outputs that must agree

    def _read(self, ids: Tensor, insertion: Insertion | None = None, **given: Any) -> tuple[Tensor, Insertion]:
        insertion = Insertion(space=self.space) if insertion is None else insertion
        insertion.calls = []
        with inserting(self.base, self.layers, insertion):
            output = self.base(input_ids=ids, return_dict=True, **given)
        return output.last_hidden_state, insertion

    def _insertion(self, vectors: dict[int, Tensor], **fields: Any) -> Insertion:
        positions = fields.pop("positions", [float(v - VECTORS) for v in range(VECTORS)])
        return Insertion(vectors, positions, space=self.space, **fields)

    def _compare(self, own: Any) -> Probe:
        self._check_calls(self._read(self.ids, Insertion())[1])
        plain, seen = self._read(self.ids)
        if self._differ(plain, own.last_hidden_state):
            raise _No("its attention gives another output through the seam")
        self._check_keys_and_values(seen)
        causal = not any(_sees_later(call.visible) for call in cast(list[Call], seen.calls))
        self._check_vectors(plain, causal)
        self._check_head(own)
        return Probe(causal=causal, layers=tuple(range(1, len(self.layers) + 1)))

    def _check_calls(self, seen: Insertion) -> None:
        """Every layer must call attention once: one that does not may carry something in other ways."""
        counts = Counter(call.layer for call in cast(list[Call], seen.calls))
        if not counts:
            raise _No("its attention does not go through the seam")
        numbers = range(1, len(self.layers) + 1)
        if missing := [number for number in numbers if not counts[number]]:
            kind = type(self.layers[missing[0] - 1]).__name__
            raise _No(
                f"layer {missing[0]} ({kind}) does not go through the seam: without attention, as in hybrids, or "
                "with one of its own, what it carries from token to token would be lost between windows"
            )
        if more := [number for number in numbers if counts[number] > 1]:
            raise _No(f"layer {more[0]} calls attention {counts[more[0]]} times, and only once can be told apart")
        if counts.keys() - set(numbers):
            raise _No("it has attention outside of its layers")

    def _check_keys_and_values(self, seen: Insertion) -> None:
        """A token's own vector, inserted at the token's position, must give the key and value of the token."""
        count = min(VECTORS, self.ids.shape[1])
        for number, hidden in enumerate(seen.hidden, 1):
            if hidden.shape != (*self.ids.shape, self.config.hidden_size):
                shape = tuple(hidden.shape)
                raise _No(f"layer {number} takes in {shape}, not one vector of {self.config.hidden_size} per token")
        vectors = {layer: seen.hidden[layer - 1][:, :count] for layer in self.wanted}
        again = self._insertion(vectors, positions=[float(place) for place in range(count)])
        _, used = self._read(self.ids, again)
        for before, after in zip(cast(list[Call], seen.calls), cast(list[Call], used.calls), strict=True):
            if before.layer in self.wanted:
                self._check_received(before, after, used.inserted.get(before.layer), count)

    def _check_received(self, before: Call, after: Call, made: tuple[Tensor, Tensor] | None, count: int) -> None:
        """Attention must get the keys and values of the vectors in front of those it got before, and see them all."""
        layer, length = before.layer, before.key.shape[2]
        if made is None:
            raise _No(f"layer {layer} makes no key and value of a vector")
        for what, own in (("keys", made[0]), ("values", made[1])):
            had, got = (before.key, after.key) if what == "keys" else (before.value, after.value)
            if self._differ(own, had[:, :, :count]):
                raise _No(f"layer {layer} makes its {what} {ELSEWHERE}")
            front, others = got[:, :, :count], got[:, :, count:]
            if others.shape[2] != length or not torch.equal(front, own.expand_as(front)):
                raise _No(f"attention at layer {layer} receives other {what} than those inserted")
        sees = _alike(after.visible[..., count:], before.visible)
        if not after.visible[..., :count].all() or not torch.equal(*sees):
            raise _No(f"attention at layer {layer} sees more or less than what was inserted and what it saw before")

    def _check_vectors(self, plain: Tensor, causal: bool) -> None:
        scale = plain.float().std().clamp(min=1e-3)
        shape = (ROWS, VECTORS, self.config.hidden_size)
        vectors = {
            layer: torch.randn(shape, generator=self.chance).to(self.base.device, plain.dtype) * scale
            for layer in self.wanted
        }
        hidden = torch.zeros(ROWS, VECTORS, dtype=torch.bool, device=self.base.device)
        unseen, _ = self._read(self.ids, self._insertion(dict(vectors), visible=hidden))
        if self._differ(unseen, plain):
            raise _No("inserted vectors that no token may see change its outputs")
        changed, used = self._read(self.ids, self._insertion(dict(vectors)))
        if torch.equal(plain, changed):
            raise _No(f"vectors inserted at layers {self.wanted} change nothing")
        if not causal:
            return
        rounding = self._rounding(vectors, changed)
        insertion = self._insertion(dict(vectors))
        for before, inserted, allowed in ((plain, None, torch.zeros_like(rounding)), (changed, insertion, rounding)):
            after, _ = self._read(self.other, inserted)
            if self._differ(after[:, :-1], before[:, :-1], allowed):
                raise _No("its attention is causal, and yet a token changes outputs of tokens before it")
        failed = "a window cannot be left open: its cache fails"
        self._trying(failed, lambda: self._check_cache(vectors, changed, rounding))

    def _rounding(self, vectors: dict[int, Tensor], changed: Tensor) -> Tensor:
        """How far the outputs of each row may differ by rounding, [B]. Random vectors at thirty layers of a pretrained
        model turn the last bit of one of them into a difference a thousand times as large."""
        eps = torch.finfo(changed.dtype).eps
        shaken = {
            layer: vector * (1 + eps * torch.randn(vector.shape, generator=self.chance).to(vector))
            for layer, vector in vectors.items()
        }
        again, _ = self._read(self.ids, self._insertion(shaken))
        return 4 * (again - changed).flatten(1).double().abs().amax(1)

    def _check_cache(self, vectors: dict[int, Tensor], whole: Tensor, rounding: Tensor) -> None:
        """A window in two parts, as in generation, must give the output of the whole window."""
        half, cache = self.ids.shape[1] // 2, DynamicCache()
        given = {"use_cache": True, "past_key_values": cache}
        first, used = self._read(self.ids[:, :half], self._insertion(dict(vectors)), **given)
        held = [tuple(getattr(layer, name, None) for name in ("keys", "values")) for layer in cache.layers]
        if not held or any(not isinstance(t, Tensor) or t.shape[2] != half for pair in held for t in pair):
            raise _No("its cache does not hold a key and a value per token")
        second, _ = self._read(self.ids[:, half:], self._insertion({}, inserted=dict(used.inserted)), **given)
        if self._differ(torch.cat([first, second], dim=1), whole, rounding):
            raise _No("a window that is left open and continued gives another output than the whole window")

    def _check_head(self, own: Any) -> None:
        """A head must give the same output on the base's hidden states alone."""
        if self.model is self.base:
            return
        remember_kind(self.base, own)
        expected = self.model(input_ids=self.ids, return_dict=True)
        fields = ("last_hidden_state", "pooler_output")
        alone = type(own)(**{name: own[name] for name in fields if own.get(name) is not None})
        with answering(self.base, alone):
            found = self.model(input_ids=self.ids, return_dict=True)
        for name, value in expected.items():
            if isinstance(value, Tensor) and "logits" in name and self._differ(found[name], value):
                raise _No(f"its head does not get {name} from the hidden states alone")

    def _differ(self, a: Tensor, b: Tensor, rounding: Tensor | None = None) -> bool:
        """Whether every row of [B, ...] differs by more than `rounding` [B], of which a hundredth counts at most."""
        a, b = a.expand_as(b).flatten(1).double(), b.flatten(1).double()
        finfo = torch.finfo(self.base.dtype if self.base.dtype.is_floating_point else torch.float32)
        scale = b.abs().amax(1).clamp(min=1e-6)
        least = max(1e-4, 16 * finfo.eps)
        tolerance = (rounding / scale).clamp(least, max(least, 1e-2)) if rounding is not None else least
        return not bool(((a - b).abs().amax(1) <= tolerance * scale).any())


def _sees_later(visible: Tensor) -> bool:
    rows, columns = visible.shape[-2:]
    return bool(visible.triu(columns - rows + 1).any())


def _alike(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    shape = torch.broadcast_shapes(a.shape, b.shape)
    return a.expand(shape), b.expand(shape)
