"""Tests on a live backbone whether recurrence works in it, and whether it is causal.

Nothing follows from a family's name. The backbone processes a few tokens in several ways that must agree: what
attention receives, layer by layer, is compared with what was put in front of it; a decoder must not see the future; a
window that was left open must continue as if it had not been; a text whose first half is remembered whole must go on as
if it were one text. Backbones that disagree are refused.

Compared up to a tolerance, and by the row that agrees best: a fault shows in every row, but a rounding that changes a
router's choice of experts only in one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...ops import windows
from .cache import held_by
from .configuration_window_recurrent import WindowRecurrenceConfig
from .heads import as_from_base, head_on
from .planning import Windows
from .seam import (
    PREFIX,
    SUPPORTED,
    Call,
    backbone_layers,
    first_position,
    install,
    layer_numbers,
    remove,
    takes_positions,
    taking,
)
from .state import Held, OpenWindow
from .step import Front, WindowStep
from .turning import CannotTurn, turnings_of
from .vector_step import ELSEWHERE, VectorStep, hook_sites

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
    shapes: list[list[int]]  # by layer: key-value heads, features of a key, of a value


class _No(Exception):  # noqa: N818 - not an error yet: the reason why a backbone is refused
    pass


def _refuse(model: PreTrainedModel, why: str) -> UnsupportedBackboneError:
    family = model.config.model_type
    return UnsupportedBackboneError(
        f"recurrence cannot be added to {type(model).__name__} of the family {family!r}: {why}. "
        f"Families known to work: {WORKING_FAMILIES}."
    )


@torch.no_grad()
def probe(model: PreTrainedModel, config: WindowRecurrenceConfig) -> Probe:
    """Runs the backbone on a few tokens, with and without a memory as the configuration says. A backbone that is
    refused is left as it was."""
    layers = checked_layers(model)
    wanted = () if config.carrier == "none" else config.insertion_layers
    training = model.training
    model.eval()
    try:
        with ExitStack() as undo:
            found = _Probing(model, layers, wanted, config.space).run(undo)
            undo.pop_all()  # what was done to the backbone stays
        return found
    except _No as no:
        raise _refuse(model, str(no)) from no.__cause__
    finally:
        model.train(training)


def checked_layers(model: PreTrainedModel) -> nn.ModuleList:
    """A backbone's layers; refuses backbones that cannot work, without running them."""
    base = cast(PreTrainedModel, model.base_model)
    config = base.config.get_text_config()
    implementation = config._attn_implementation
    if implementation.removeprefix(PREFIX) not in SUPPORTED:
        loading = " or ".join(map(repr, SUPPORTED))
        raise _refuse(model, f"it was loaded with attn_implementation={implementation!r}; load it with {loading}")
    if any(parameter.is_meta for parameter in base.parameters()):
        raise ValueError(
            "recurrence cannot be added to a model on the meta device, which has no values to look at: load its "
            "weights first"
        )
    if config.is_encoder_decoder:
        raise _refuse(model, "it is an encoder-decoder, and windows are for encoders or decoders")
    for name in ("num_hidden_layers", "hidden_size", "vocab_size"):
        if not isinstance(getattr(config, name, None), int):
            raise _refuse(model, f"its configuration has no {name}")
    try:
        return backbone_layers(base)
    except ValueError as error:
        raise _refuse(model, str(error)) from None


def positions_of(base: PreTrainedModel) -> int | None:
    """The number of positions of the backbone; None if unlimited or unknown."""
    longest = getattr(base.config.get_text_config(), "max_position_embeddings", None)
    return longest - first_position(base) if isinstance(longest, int) and longest > 0 else None


@dataclass(frozen=True)
class Received:
    """What attention received in one call."""

    layer: int
    key: Tensor  # [B, H, n, D]
    value: Tensor
    visible: Tensor  # [B or 1, 1, t, n] bool


@dataclass(frozen=True)
class _Noted(Call):
    """A call of attention that notes what is attended to in the end."""

    calls: list[Received] = field(default_factory=list)

    def own(self) -> tuple[Tensor, Tensor | None]:
        self._note(self.key, self.value, self.mask)
        return super().own()

    def attended(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        self._note(key, value, mask, query)
        return super().attended(query, key, value, mask)

    def _note(self, key: Tensor, value: Tensor, mask: Tensor | None, query: Tensor | None = None) -> None:
        query = self.query if query is None else query
        visible = replace(self, query=query, key=key, mask=mask).visible()
        visible = visible.expand(-1, -1, query.shape[2], key.shape[2])[:, :, -self.query.shape[2] :]
        self.calls.append(Received(self.layer, key, value, visible))


class _Watching(WindowStep):
    """Notes what attention receives, with given keys and values in front."""

    def __init__(self, calls: list[Received], fronts: dict[int, Front], *parts: Any):
        super().__init__(*parts)
        self.calls, self.fronts = calls, fronts

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        return super().attend(_noted(call, self.calls))

    def front(self, call: Call) -> Front | None:
        return self.fronts.get(call.layer)


class _WatchingVectors(VectorStep):
    """Notes what attention receives, with given vectors at layers."""

    def __init__(self, calls: list[Received], *parts: Any):
        super().__init__(*parts)
        self.calls = calls

    def attend(self, call: Call) -> tuple[Tensor, Tensor | None]:
        return super().attend(_noted(call, self.calls))


def _noted(call: Call, calls: list[Received]) -> Call:
    return _Noted(**{f.name: getattr(call, f.name) for f in fields(Call)}, calls=calls)


@dataclass(frozen=True)
class Vectors:
    """Hidden vectors at layers."""

    by_layer: dict[int, Tensor]  # [B, V, k]
    positions: list[float]
    visible: Tensor | None = None  # [B, V] bool


class _Probing:
    def __init__(self, model: PreTrainedModel, layers: nn.ModuleList, wanted: tuple[int, ...], space: str | None):
        self.model, self.layers, self.wanted, self.space = model, layers, wanted, space
        self.base = cast(PreTrainedModel, model.base_model)
        self.config = self.base.config.get_text_config()

    def run(self, undo: ExitStack) -> Probe:
        """Installs the seam, too; `undo` is told how to undo it."""
        self._draw_tokens()
        own = self._own_output()
        if self.base.config._attn_implementation in SUPPORTED:
            undo.callback(remove, self.base)
        install(self.base)
        self._trying("the seam fails", lambda: self._check_calls(self._read(self.ids)[1]))
        if self.space is not None:
            for hook in hook_sites(self.base):
                undo.callback(hook.remove)
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

    def _step(self, ids: Tensor, front: Any, held: Held | None) -> Any:
        """A run of some tokens of a window: `front` is vectors by layer, in the spaces that take them, or `Front`s."""
        calls: list[Received] = []
        rows, width = ids.shape
        cached = held[0][0].shape[2] if held else 0
        read = windows.Read(cached=cached, again=0, new=width, closes=False)
        index = torch.arange(cached, cached + width, device=ids.device)[None]
        keep = torch.ones(rows, width, dtype=torch.bool, device=ids.device)
        run = Windows([[read]] * rows, ids, index, keep, [0] * rows, ragged=False)
        opened = OpenWindow(ids, (cached,) * rows, (cached,) * rows, held, inserted=self._inserted if cached else None)
        state = SimpleNamespace(has_memory=(True,) * rows, open=opened)
        reader = SimpleNamespace(base=self.base, numbers=layer_numbers(self.base))
        carrier: Any = SimpleNamespace(space=self.space, count=VECTORS)
        if not isinstance(front, Vectors):
            return _Watching(calls, front or {}, reader, carrier, state, run, (), True)
        carrier.positions, carrier.vectors = lambda: front.positions, lambda memory: front.by_layer
        carrier.visible = lambda memory: front.visible
        return _WatchingVectors(calls, reader, carrier, state, run, (), True)

    def _read(self, ids: Tensor, front: Any = None, held: Held | None = None, **given: Any) -> tuple[Tensor, Any]:
        """The output of the base, and the step, which has noted its `calls`."""
        if front is None and self.space is not None:
            front = Vectors({}, [])
        step = self._step(ids, front, held)
        if held is not None:
            given |= {"use_cache": True, "past_key_values": step.cache}
        with taking(step):
            output = self.base(input_ids=ids, return_dict=True, **given)
        return output.last_hidden_state, step

    def _compare(self, own: Any) -> Probe:
        plain, seen = self._read(self.ids)
        if self._differ(plain, own.last_hidden_state):
            raise _No("its attention gives another output through the seam")
        causal = not any(_sees_later(call.visible) for call in seen.calls)
        if self.space is not None:
            self._check_keys_and_values(seen)
        elif self.wanted:
            self._check_slots(plain, seen)
        self._check_front(plain, causal)
        self._check_head(own)
        shapes = {call.layer: [call.key.shape[1], call.key.shape[3], call.value.shape[3]] for call in seen.calls}
        numbers = tuple(range(1, len(self.layers) + 1))
        return Probe(causal=causal, layers=numbers, shapes=[shapes[number] for number in numbers])

    def _check_calls(self, seen: Any) -> None:
        """Every layer must call attention once: one that does not may carry something in other ways."""
        counts = Counter(call.layer for call in seen.calls)
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

    def _check_slots(self, plain: Tensor, seen: Any) -> None:
        """The second half of a text must be what it is in the whole text, when all keys and values of the first half
        are in front of it, turned to the places before it."""
        try:
            turnings = turnings_of(self.base)
        except CannotTurn as why:
            raise _No(
                f"{why}; a memory of keys and values is not possible, use carrier='pooled' or 'spans' instead"
            ) from None
        half = self.ids.shape[1] // 2
        if half == 0 or not takes_positions(self.base):
            return
        turns = any(turning.turns for turning in turnings)
        fronts = {}
        for call, turning in zip(sorted(seen.calls, key=lambda call: call.layer), turnings, strict=True):
            back = torch.full((half,), -half if turns else 0, device=self.ids.device)
            table = turning.table(back, call.key)
            key = turning.turn(call.key[:, :, :half], table)
            fronts[call.layer] = Front(key, call.value[:, :, :half], None, as_tokens=True)
        # Learned positions are not those of a window of its own: they must be told.
        places = torch.arange(self.ids.shape[1] - half, device=self.ids.device) + (0 if turns else half)
        given = {"position_ids": (places + first_position(self.base)).expand(len(self.ids), -1)}
        second, _ = self._read(self.ids[:, half:], fronts, **given)
        if self._differ(second, plain[:, half:]):
            raise _No("a text whose first half is remembered whole does not go on as if it were one text")

    def _check_keys_and_values(self, seen: Any) -> None:
        """A token's own vector, inserted at the token's position, must give the key and value of the token."""
        count = min(VECTORS, self.ids.shape[1])
        for number, hidden in enumerate(seen.hidden, 1):
            if hidden.shape != (*self.ids.shape, self.config.hidden_size):
                shape = tuple(hidden.shape)
                raise _No(f"layer {number} takes in {shape}, not one vector of {self.config.hidden_size} per token")
        vectors = {layer: seen.hidden[layer - 1][:, :count] for layer in self.wanted}
        again = Vectors(vectors, [float(place) for place in range(count)])
        _, used = self._read(self.ids, again)
        for before, after in zip(seen.calls, used.calls, strict=True):
            if before.layer in self.wanted:
                self._check_received(before, after, used.inserted.get(before.layer), count)

    def _check_received(
        self, before: Received, after: Received, made: tuple[Tensor, Tensor] | None, count: int
    ) -> None:
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

    # -- something in front

    def _fronts(self, plain: Tensor, visible: Tensor | None = None) -> Any:
        """Random vectors, or keys and values."""
        scale = plain.float().std().clamp(min=1e-3)
        if self.space is not None:
            shape = (ROWS, VECTORS, self.config.hidden_size)
            vectors = {layer: self._drawn(shape, plain) * scale for layer in self.wanted}
            return Vectors(vectors, [float(v - VECTORS) for v in range(VECTORS)], visible)
        _, seen = self._read(self.ids)
        fronts = {}
        for call in seen.calls:
            if call.layer in self.wanted:
                key, value = (
                    self._drawn((ROWS, x.shape[1], VECTORS, x.shape[3]), x) * x.float().std().clamp(min=1e-3)
                    for x in (call.key, call.value)
                )
                fronts[call.layer] = Front(key, value, visible)
        return fronts

    def _drawn(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return torch.randn(shape, generator=self.chance).to(self.base.device, like.dtype)

    def _check_front(self, plain: Tensor, causal: bool) -> None:
        hidden = torch.zeros(ROWS, VECTORS, dtype=torch.bool, device=self.base.device)
        unseen, _ = self._read(self.ids, self._fronts(plain, hidden))
        if self._differ(unseen, plain):
            raise _No("inserted vectors that no token may see change its outputs")
        front = self._fronts(plain)
        changed, used = self._read(self.ids, front)
        if self.wanted and torch.equal(plain, changed):
            raise _No(f"vectors inserted at layers {self.wanted} change nothing")
        if not causal:
            return
        rounding = self._rounding(front, changed)
        for before, inserted, allowed in ((plain, None, torch.zeros_like(rounding)), (changed, front, rounding)):
            after, _ = self._read(self.other, inserted)
            if self._differ(after[:, :-1], before[:, :-1], allowed):
                raise _No("its attention is causal, and yet a token changes outputs of tokens before it")
        failed = "a window cannot be left open: its cache fails"
        self._trying(failed, lambda: self._check_cache(front, changed, rounding))

    def _rounding(self, front: Any, changed: Tensor) -> Tensor:
        """How far the outputs of each row may differ by rounding, [B]. Random vectors at thirty layers of a pretrained
        model turn the last bit of one of them into a difference a thousand times as large."""
        eps = torch.finfo(changed.dtype).eps

        def shaken(x: Tensor) -> Tensor:
            return x * (1 + eps * self._drawn(tuple(x.shape), x))

        if isinstance(front, Vectors):
            front = replace(front, by_layer={layer: shaken(x) for layer, x in front.by_layer.items()})
        else:
            front = {n: replace(f, keys=shaken(f.keys), values=shaken(f.values)) for n, f in front.items()}
        again, _ = self._read(self.ids, front)
        return 4 * (again - changed).flatten(1).double().abs().amax(1)

    def _check_cache(self, front: Any, whole: Tensor, rounding: Tensor) -> None:
        """A window in two parts, as in generation, must give the output of the whole window."""
        half = self.ids.shape[1] // 2
        if half == 0:
            return
        first, used = self._read(self.ids[:, :half], front, held=())
        held = held_by(used.cache, {})
        if not held or any(not isinstance(x, Tensor) or x.shape[2] != half for pair in held for x in pair):
            raise _No("its cache does not hold a key and a value per token")
        if self.space is None and self.wanted and max(self.wanted) > len(held):
            raise _No(f"layer {len(held) + 1} makes its keys and values {ELSEWHERE}")
        self._inserted = dict(used.inserted)
        given: dict[str, Any] = {}
        if takes_positions(self.base):
            places = torch.arange(half, self.ids.shape[1], device=self.ids.device) + first_position(self.base)
            given["position_ids"] = places.expand(len(self.ids), -1)
        second, _ = self._read(self.ids[:, half:], front, held, **given)
        if self._differ(torch.cat([first, second], dim=1), whole, rounding):
            raise _No("a window that is left open and continued gives another output than the whole window")

    def _check_head(self, own: Any) -> None:
        """A head must give the same output on the base's hidden states alone."""
        if self.model is self.base:
            return
        expected = self.model(input_ids=self.ids, return_dict=True)
        names = ("last_hidden_state", "pooler_output")
        alone = as_from_base(type(own), **{name: own[name] for name in names if own.get(name) is not None})
        found = head_on(self.model, alone, input_ids=self.ids)
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
