"""Reading text of any length in windows: what all window-recurrent models share.

Rows of a batch may have different lengths and be at different places in their windows. A call is planned first, as a
list of windows for each row; then the backbone runs, on the windows that are open, and on the ones that follow. A
memory of keys and values lets many windows of a row run at once; otherwise they run one after another.

Shapes: B rows, N columns of input, R windows of each row in a run, M = B R, w columns of a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_outputs import ModelOutput

from ...ops.windows import IDLE, Read, plan
from ...utils.memory import give_memory_back
from ..fingerprints import Origin
from .assembling import Output, Ran, assembled
from .carriers import Carrier, Tensors, VectorCarrier
from .configuration_window_recurrent import WindowRecurrenceConfig
from .leaving import state_after
from .planning import Tape, Windows, both_with_types, pack, real_columns, with_prefix
from .request import Request
from .seam import backbone_layers, first_position, layer_numbers, takes_positions, taking
from .slot_step import SlotStep
from .slots import Slots
from .state import OpenWindow, WindowState, check_fits
from .step import WindowStep
from .turning import Turning
from .vector_step import VectorStep


class HiddenStates:
    """What is kept of each run of the backbone: its last hidden states. A head that makes something else of them, run
    by run, has a class of its own."""

    def of(self, output: Any, run: Windows) -> Output:
        """output: of the base, [M, w, ..]; for the shapes that may be kept see `Ran`."""
        return {"last_hidden_state": output.last_hidden_state}


@dataclass(frozen=True)
class Reading:
    """What came of a call."""

    kept: Output  # of all runs, at the places of the input's tokens
    state: WindowState
    kind: type[ModelOutput]  # of the base's outputs, which its head expects

    @property
    def hidden_states(self) -> Any:
        """Of all layers, if requested."""
        return tuple(self.kept[name] for name in self.kept if name.startswith("hidden.")) or None


@dataclass(frozen=True)
class Reader:
    """Runs a backbone over windows, with a carrier between them. Holds no state of its own."""

    base: PreTrainedModel
    carrier: Carrier
    config: WindowRecurrenceConfig
    name: str  # of its states
    origin: Origin  # of its states
    turnings: Sequence[Turning]  # by layer
    training: bool
    checkpointing: bool  # windows are run again for their gradients
    hidden_states: bool | None  # of all layers, where a call does not say whether it wants them

    # -- a call

    @torch.compiler.disable  # a loop that depends on the state; a backbone that was compiled itself stays compiled
    def read(self, request: Request, wanted: HiddenStates) -> Reading:
        """Reads the tokens of a request, continuing from its state."""
        tokens = request.tokens(self.config)
        state, tokens = both_with_types(self._continued(request.state, tokens), tokens)
        columns = real_columns(request.attention_mask, tokens.shape[:2])
        packed, lengths = pack(tokens, columns)
        if not any(lengths):
            raise ValueError("there are no tokens: attention_mask is 0 everywhere")
        if request.starts_document is not None:
            state = state.reset(request.starts_document)
        state = with_prefix(state, packed, lengths, request.prefixes, self.window, self.overlap)
        plans = self._plans(state, lengths)
        use_cache = self._uses_cache(request)
        if not takes_positions(self.base) and any(reads != plans[0] for reads in plans):
            # Rows at different places of a cached window need positions; without them windows are processed again.
            opened, use_cache = state.open, False
            state = replace(state, open=OpenWindow(opened.ids, opened.fill, cached=(0,) * len(plans)))
            plans = self._plans(state, lengths)

        ran: list[Ran] = []
        tape = Tape.of(state, packed, self.window)
        cursor = [tape.middle] * len(lengths)
        number, total = 0, max(map(len, plans))
        while number < total:
            if self.config.truncate_after and number and number % self.config.truncate_after == 0:
                state = state.detach()
            stop = min(total, number + self._rounds_at_once(state, number))
            reads = [[*row[number:stop], *[IDLE] * (stop - max(number, len(row)))] for row in plans]
            stays_open = any(number < len(row) <= stop and not row[-1].closes for row in plans)
            holds = use_cache and (stays_open or any(state.open.cached))
            run, state = self._run_windows(request, state, tape.cut(cursor, reads), wanted, holds)
            ran.append(run)
            cursor = [at + sum(read.new for read in row) for at, row in zip(cursor, reads, strict=True)]
            number = stop
        return Reading(assembled(ran, tokens.shape[1], columns, request.revise), state, ran[0].kind)

    def _continued(self, state: WindowState | None, tokens: Tensor) -> WindowState:
        if state is None:
            return self.fresh(tokens)
        check_fits(state, tokens, self)
        return replace(state, weights=self.origin)

    def _uses_cache(self, request: Request) -> bool:
        asked = request.use_cache
        return self.causal and bool(not (self.training or torch.is_grad_enabled()) if asked is None else asked)

    def _plans(self, state: WindowState, lengths: list[int]) -> list[list[Read]]:
        """The windows of each row."""
        return [
            plan(
                length,
                self.window,
                self.overlap,
                opened=state.open.fill[row],
                cached=state.open.cached[row],
                prefix=state.prefix_of(row),
                leave_open=self.causal,
            )
            for row, length in enumerate(lengths)
        ]

    def _rounds_at_once(self, state: WindowState, number: int) -> int:
        """How many windows of each row may run at once: one that is open runs by itself."""
        if self.carrier.takes_vectors or any(state.open.cached):
            return 1
        most = max(1, self.config.tokens_at_once // (self.window * state.batch_size))
        truncate_after = self.config.truncate_after
        return most if not truncate_after else min(most, truncate_after - number % truncate_after)

    # -- one run of the backbone

    def _run_windows(
        self, request: Request, state: WindowState, windows: Windows, wanted: HiddenStates, holds: bool
    ) -> tuple[Ran, WindowState]:
        """`holds`: what windows that stay open need is kept in the state."""
        if self.checkpointing and torch.is_grad_enabled() and not holds:  # what is held cannot be made again
            # torch repeats the random numbers of the devices that it finds among these.
            tensors = (state.memory, windows.tokens)
            ran, memory = checkpoint(self._run_anew, tensors, request, state, windows, wanted, use_reentrant=False)
            return ran, state_after(state, windows, memory, self.overlap)
        step = self._step(state, windows, holds)
        ran = self._run_backbone(request, step, wanted)
        return ran, state_after(state, windows, step.memory(), self.overlap, step if holds else None)

    def _run_anew(
        self, tensors: Any, request: Request, state: WindowState, windows: Windows, wanted: HiddenStates
    ) -> tuple[Ran, Tensors]:
        """A run that leaves nothing but the memory; once more for its gradients."""
        step = self._step(state, windows, holds=False)
        return self._run_backbone(request, step, wanted), step.memory()

    def _step(self, state: WindowState, windows: Windows, holds: bool) -> WindowStep:
        kind: type[WindowStep] = SlotStep if self.carrier.takes_slots else WindowStep
        if self.carrier.takes_vectors:
            kind = VectorStep
        return kind(self, self.carrier, state, windows, state.memory, holds)

    def _run_backbone(self, request: Request, step: WindowStep, wanted: HiddenStates) -> Ran:
        """Runs the backbone; its attention asks the step what there is to attend to."""
        if self.checkpointing:
            give_memory_back(self.base.device)  # of the windows before, in both directions
        with taking(step):
            output = self.base(**self._given(request, step))
            kept = wanted.of(output, step.run)
        for layer, hidden in enumerate(output.hidden_states or ()):
            kept[f"hidden.{layer}"] = hidden
        step.finish()
        return Ran(step.run, kept, type(output))

    def _given(self, request: Request, step: WindowStep) -> dict[str, Any]:
        """The arguments of the backbone's base."""
        windows, asked = step.run, request.output_hidden_states
        given: dict[str, Any] = {"input_ids": windows.ids, "return_dict": True}
        given["output_hidden_states"] = self.hidden_states if asked is None else asked
        if request.token_type_ids is not None:
            given["token_type_ids"] = windows.types
        if self.causal:  # an encoder keeps no cache, and some do not accept the argument
            given["use_cache"] = step.cache is not None
        if step.cache is not None:
            given["past_key_values"] = step.cache
        return given | self._mask_and_positions(step.state.open, windows) if windows.ragged else given

    def _mask_and_positions(self, opened: OpenWindow, windows: Windows) -> dict[str, Tensor]:
        keep = windows.keep
        if opened.cache is not None:
            slots = opened.cache[0][0].shape[2]
            held = torch.tensor(opened.cached, device=keep.device)[:, None]
            keep = torch.cat([torch.arange(slots, device=keep.device)[None] >= slots - held, keep], dim=1)
        elif self.causal:
            return {}  # padding is at the right, where no token sees it
        told = {"attention_mask": keep.long()}
        # Without a cache every row begins at the left, and the backbone's own positions are right.
        if opened.cache is not None and takes_positions(self.base):
            told["position_ids"] = windows.index + first_position(self.base)
        return told

    # -- states

    def fresh(self, ids: Tensor) -> WindowState:
        """The state at the start of a document."""
        batch = ids.shape[0]
        return WindowState(
            model=self.name,
            memory=self.empty(batch),
            has_memory=(False,) * batch,
            open=OpenWindow(ids=ids[:, :0], fill=(0,) * batch, cached=(0,) * batch),
            weights=self.origin,
        )

    def empty(self, rows: int) -> Tensors:
        """The memory before there is one."""
        like = next(self.base.parameters())
        if self.carrier.takes_slots:
            count, shapes = self.carrier.count, self.config.slot_shapes
            chosen = [shapes[layer - 1] for layer in self.carrier.layers]
            return tuple(t for heads, key, value in chosen for t in Slots.empty(rows, heads, count, key, value, like))
        return cast(VectorCarrier, self.carrier).empty(rows, like) if self.carrier.takes_vectors else ()

    # -- what steps ask

    @property
    def window(self) -> int:
        return self.config.window

    @property
    def overlap(self) -> int:
        return self.config.overlap

    @property
    def pooled(self) -> int:
        """How many first positions of a window are carried as vectors."""
        return self.window if self.config.pooled_positions == "all" else self.window - self.overlap

    @property
    def causal(self) -> bool:
        return bool(self.config.causal)

    @property
    def layers(self) -> nn.ModuleList:
        return backbone_layers(self.base)

    @property
    def numbers(self) -> dict[nn.Module, int]:
        return layer_numbers(self.base)
