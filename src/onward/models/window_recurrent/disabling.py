"""Switching recurrence off: calls then go to the backbone itself, in the thread or task that asked for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .saving import SavesWhatWasAdded
from .seam import signature_of, taking
from .state import WindowState

# The models whose recurrence this thread, or task, has switched off.
_without_recurrence: ContextVar[frozenset[int]] = ContextVar("without_recurrence", default=frozenset())


def unless_disabled(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A model's forward, or a call of its backbone alone while recurrence is disabled."""

    @functools.wraps(forward)  # Trainer inspects the signature
    def either(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._disabled:
            return forward(self, *args, **kwargs)
        call = signature_of(forward).bind(self, *args, **kwargs).arguments
        call.pop("self")
        return self._backbone_alone(**call.pop("kwargs", {}), **call)

    return either


class CanBeDisabled(SavesWhatWasAdded):
    """A model whose recurrence can be switched off."""

    @contextmanager
    def recurrence_disabled(self) -> Iterator[None]:
        """Calls go straight to the backbone, bit for bit, in this thread only."""
        before = _without_recurrence.get()
        _without_recurrence.set(before | {id(self)})
        try:
            with taking(None):  # in the middle of a call, too
                yield
        finally:
            _without_recurrence.set(before)

    @property
    def _disabled(self) -> bool:
        return id(self) in _without_recurrence.get()

    def _backbone_alone(
        self,
        *,
        state: WindowState | None = None,
        starts_document: Any = None,
        prefix_length: Any = None,
        num_items_in_batch: Any = None,
        lesson: Any = None,
        return_dict: bool | None = None,
        **given: Any,
    ) -> Any:
        """A call of the backbone itself, while recurrence is disabled."""
        for name, value in (("state", state), ("lesson", lesson)):
            if value is not None:
                raise ValueError(f"a {name} means nothing while recurrence is disabled")
        given = {name: value for name, value in given.items() if value is not None}
        if num_items_in_batch is None or self.head_loss is None:
            if num_items_in_batch is not None and given.keys() & {"labels", "shift_labels"}:
                given["num_items_in_batch"] = num_items_in_batch
            return self.backbone(**given, **({} if return_dict is None else {"return_dict": return_dict}))
        labels = {name: given.pop(name, None) for name in self.head_loss.labels}
        output = self.backbone(**given, return_dict=True)
        return self.returned(self.with_loss(output, num_items_in_batch, **labels), return_dict)
