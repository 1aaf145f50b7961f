"""Cases in which one rank's load_into fails before it takes part, and others wait for it."""

import contextlib
import tempfile
import time

import ckptd
import ckptd.torch
import pytest
import torch
import torch.distributed as dist
from ckptd.torch import _agree, _parts
from fake_daemon import FakeDaemon
from torch import nn

IN_TIME = 20.0  # seconds; nobody waits for the end of TIMEOUT
TIMEOUT = 60


class Job:
    """One case: a checkpoint, and on each rank a daemon of its own. On rank 0 it waits for rank 1."""

    def __init__(self, bench, daemon):
        self.rank, self.daemon = bench.rank, daemon
        self.path = bench.save(nn.Linear(4, 5).state_dict())
        if self.rank == 0:
            daemon.stay_loading, daemon.waiting, daemon.watch_silence = True, [1], 0.05

    def load(self, model=None, **options):
        model = nn.Linear(4, 5) if model is None else model
        return ckptd.torch.load_into(model, self.path, address=self.daemon.path, timeout=TIMEOUT, **options)

    def load_until_looked(self, times):
        """On rank 0: rank 1 takes part once progress was told so often."""
        looks = []

        def looked():
            looks.append(1)
            if len(looks) == times:
                self.daemon.stay_loading = False

        with looking(looked):
            self.load()
        assert len(looks) >= times, looks


@contextlib.contextmanager
def looking(then):
    """Calls then() whenever a rank that waits has looked at what the others say, and gone on."""
    look = _parts.Part.look

    def looked(part, progress):
        look(part, progress)
        then()

    _parts.Part.look = looked
    try:
        yield
    finally:
        _parts.Part.look = look


@contextlib.contextmanager
def job(bench):
    with tempfile.TemporaryDirectory() as folder, FakeDaemon(folder, bench.rank, bench.world) as daemon:
        began, before = time.monotonic(), (_parts._STANDS, _parts._LOOK_EACH)
        _parts._STANDS = _parts._LOOK_EACH = 0.0
        try:
            yield Job(bench, daemon)
        finally:
            _parts._STANDS, _parts._LOOK_EACH = before
        assert time.monotonic() - began < IN_TIME
        dist.barrier()


def unfit():
    model = nn.Linear(4, 5)
    model.register_buffer("odd", torch.zeros(3, dtype=torch.complex128))
    return model


def a_failure_before_a_rank_asks_is_heard_with_its_number_and_reason(bench):
    with job(bench) as made:
        with pytest.raises(ckptd.Unimplemented) as error:
            made.load(unfit() if made.rank == 1 else None)
    assert error.value.reason == "DTYPE_UNSUPPORTED"
    assert error.value.message.startswith("filling odd" if bench.rank else "rank 1: filling odd"), error.value
    assert bench.rank or error.value.facts["rank"] == "1"


def an_error_that_is_not_ours_is_heard_as_one_of_ours(bench):
    with job(bench) as made:
        with pytest.raises(TypeError if made.rank else ckptd.FailedPrecondition) as error:
            made.load("no module" if made.rank else None)
    if bench.rank == 0:
        assert error.value.reason == "RANK_FAILED" and error.value.facts == {"rank": "1"}
        assert "rank 1 takes no part, it has failed itself: TypeError: filling a model" in str(error.value)


def one_that_waits_already_hears_a_failure_of_another_number(bench):
    looked = dist.PrefixStore("looked", dist.distributed_c10d._get_default_store())
    with job(bench) as made:
        if made.rank == 0:
            with looking(lambda: looked.set("once", b"1")), pytest.raises(ckptd.Unimplemented, match="rank 1: "):
                made.load()
        else:
            made.load()  # one more than rank 0 has made
            looked.wait(["once"])
            with pytest.raises(ckptd.Unimplemented):
                made.load(unfit())


def a_rank_that_calls_again_takes_its_failure_back(bench):
    with job(bench) as made:
        if made.rank == 1:
            with pytest.raises(ckptd.Unimplemented):
                made.load(unfit())
            made.load()
        dist.barrier()
        if made.rank == 0:
            made.load_until_looked(4)


def what_failed_on_all_ranks_does_not_fail_their_next_call(bench):
    with job(bench) as made:
        with pytest.raises(ckptd.Unimplemented):
            made.load(unfit())
        dist.barrier()
        if made.rank == 0:
            made.load_until_looked(4)
        dist.barrier()


def a_failure_of_another_source_is_not_heard(bench):
    with job(bench) as made:
        if made.rank == 1:
            with pytest.raises(ckptd.NotFound):
                ckptd.torch.load_into(nn.Linear(4, 5), made.path + "2", address=made.daemon.path)
        dist.barrier()
        if made.rank == 0:
            made.load_until_looked(4)


def a_rank_whose_process_ends_is_named(bench):  # the last one: its process counts as ended now
    with job(bench) as made:
        if made.rank == 1:
            _agree._on_exit()
        else:
            with pytest.raises(ckptd.Aborted, match="rank 1: its process has ended") as error:
                made.load()
            assert error.value.reason == "RANK_LOST"


CASES = {
    2: [
        a_failure_before_a_rank_asks_is_heard_with_its_number_and_reason,
        an_error_that_is_not_ours_is_heard_as_one_of_ours,
        one_that_waits_already_hears_a_failure_of_another_number,
        a_rank_that_calls_again_takes_its_failure_back,
        what_failed_on_all_ranks_does_not_fail_their_next_call,
        a_failure_of_another_source_is_not_heard,
        a_rank_whose_process_ends_is_named,
    ]
}
