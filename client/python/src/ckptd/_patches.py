"""patch() inside of patch(): which one a library is under, and what the end of a block restores."""

import threading
import weakref
from typing import Any, Callable, List, Optional


class Patches:
    """Those of one library, of which the last one is in force. Thread-safe.

    exchange: a function of (changes in force, changes to come) that makes the library so;
    None are none.
    """

    def __init__(self, exchange: Callable[[Any, Any], None]) -> None:
        self.lock = threading.RLock()
        self.in_force: Any = None
        self._exchange = exchange
        # Whose end may still come. Nothing else keeps what another patch took the place of.
        self._begun: List["weakref.ref[Patch]"] = []

    def put(self, changes: Any) -> None:
        """Has `changes` take the place of those in force."""
        with self.lock:
            self._exchange(self.in_force, changes)
            self.in_force = changes

    def begin(self, patch: "Patch", changes: Any) -> Any:
        """Puts `changes`, until the end of `patch`. Returns what was in force before."""
        with self.lock:
            before = self.in_force
            self.put(changes)
            self._begun = [ref for ref in self._begun if ref() is not None] + [weakref.ref(patch)]
            return before

    def end(self, patch: "Patch", before: Any) -> None:
        """Puts `before`, unless `patch` has ended already, or one around it has."""
        with self.lock:
            begun = [ref() for ref in self._begun]
            if patch in begun:
                self.put(before)
                del self._begun[begun.index(patch) :]

    def end_all(self) -> None:
        """Puts nothing; no end restores anything any more."""
        with self.lock:
            self.put(None)
            self._begun.clear()


class Patch:
    """What patch() did. A context manager: its end restores what was in force when it began."""

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
        """Restores what was in force when it began; does nothing when that was done before."""
        if self._patches is not None:
            self._patches.end(self, self._before)
