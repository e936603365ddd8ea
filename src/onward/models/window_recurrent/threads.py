"""One window at a time in a backbone, whatever the number of threads that call it."""

from __future__ import annotations

from threading import Lock, RLock
from typing import Any
from weakref import ref

from transformers import PreTrainedModel

_locks: dict[int, tuple[ref[Any], RLock]] = {}  # outside of the model, which could not be copied
_making = Lock()


def lock_of(base: PreTrainedModel) -> RLock:
    """Held while anything in the backbone stands otherwise than it was made. What is switched is its configuration,
    which two backbones may share, so that they share the lock, too."""
    config, name = base.config, id(base.config)
    with _making:
        if name not in _locks or _locks[name][0]() is not config:
            _locks[name] = (ref(config, lambda gone: _forget(name, gone)), RLock())
        return _locks[name][1]


def _forget(name: int, gone: ref[Any]) -> None:
    if name in _locks and _locks[name][0] is gone:
        del _locks[name]
