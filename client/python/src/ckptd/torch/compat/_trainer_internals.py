"""Private names of the Trainer of transformers."""

import contextlib
from typing import Any, Iterator

from . import _native_fallback

MODULE = "transformers.trainer"
# Methods of Trainer: of (folder, model), and of (folder).
LOAD_MODEL, LOAD_OPTIMIZER_AND_SCHEDULER = "_load_from_checkpoint", "_load_optimizer_and_scheduler"
OPTIMIZER, SCHEDULER = "optimizer.pt", "scheduler.pt"


def warn_of(trainer: Any, keys: Any) -> None:
    """The Trainer's warnings of missing_keys and unexpected_keys."""
    trainer._issue_warnings_after_load(keys)


class _Filled:
    """Stands for an optimizer that has its states already."""

    def load_state_dict(self, _: Any) -> None:
        """Drops what it is given."""


@contextlib.contextmanager
def without_optimizer(trainer: Any) -> Iterator[None]:
    """Inside, the Trainer's method reads no states: the scheduler's file stands for the optimizer's."""
    optimizer, trainer.optimizer = trainer.optimizer, _Filled()
    try:
        with _native_fallback.in_place(MODULE, "OPTIMIZER_NAME", SCHEDULER):
            yield
    finally:
        trainer.optimizer = optimizer
