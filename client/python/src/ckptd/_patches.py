"""Nested patch() calls: which patch is in force, and which one the end of a block restores."""

import threading
import weakref
from typing import Any, Callable, List, Optional


class Patches:
    """Patches of one library. The last one is in force. Thread-safe.

    exchange: function of (changes in force, new changes) that changes the library. None stands for
    no changes.
    """

    def __init__(self, exchange: Callable[[Any, Any], None]) -> None:
        self.lock = threading.RLock()
        self.in_force: Any = None
        self._exchange = exchange
        # Patches that have not ended. Weak, so that nothing keeps a replaced patch alive.
        self._begun: List["weakref.ref[Patch]"] = []

    def put(self, changes: Any) -> None:
        """Replaces the changes in force by `changes`."""
        with self.lock:
            self._exchange(self.in_force, changes)
            self.in_force = changes

    def begin(self, patch: "Patch", changes: Any) -> Any:
        """Puts `changes` in force until the end of `patch`. Returns the changes before."""
        with self.lock:
            before = self.in_force
            self.put(changes)
            self._begun = [ref for ref in self._begun if ref() is not None] + [weakref.ref(patch)]
            return before

    def end(self, patch: "Patch", before: Any) -> None:
        """Restores `before`, unless `patch` or an outer patch has ended already."""
        with self.lock:
            begun = [ref() for ref in self._begun]
            if patch in begun:
                self.put(before)
                del self._begun[begun.index(patch) :]

    def end_all(self) -> None:
        """Removes all changes. Later ends restore nothing."""
        with self.lock:
            self.put(None)
            self._begun.clear()


class Patch:
    """Result of patch(). A context manager: its end restores the patch that was in force before."""

    def __init__(self, patches: Optional[Patches] = None, changes: Any = None) -> None:
        self._patches, self._changes = patches, changes
        self._before = patches.begin(self, changes) if patches else None

    def __enter__(self) -> "Patch":
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    @property
    def active(self) -> bool:
        """Whether it is in force."""
        return self._patches is not None and self._patches.in_force is self._changes

    def undo(self) -> None:
        """Restores the patch that was in force before. A second call does nothing."""
        if self._patches is not None:
            self._patches.end(self, self._before)
