"""One window at a time in a backbone, whatever the number of threads that call it."""

from __future__ import annotations

from threading import Lock, RLock
from weakref import WeakKeyDictionary

from torch import nn

_locks: WeakKeyDictionary[nn.Module, RLock] = WeakKeyDictionary()  # outside of the module, which could not be copied
_making = Lock()


def lock_of(base: nn.Module) -> RLock:
    """Held while anything in the backbone stands otherwise than it was made."""
    with _making:
        return _locks.setdefault(base, RLock())
