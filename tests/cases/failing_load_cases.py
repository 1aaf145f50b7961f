"""Cases in which one rank fails in load_into: the others hear of it long before their deadline, and the next load works.

Each case ends with a good load of the same file by all ranks.
"""

import contextlib
import os
import re
import signal
import threading
import time

import ckptd
import ckptd._participant
import ckptd.torch
import torch.distributed as dist
from fsdp_bench import Net, init_buffers, numbers, on_meta
from spread_bench import PATIENCE
from torch.distributed.fsdp import fully_shard

FAILING = 1


class Case:
    """One file; what each rank heard is compared with what the failing one raised."""

    def __init__(self, bench):
        self.bench, self.rank = bench, bench.rank
        self.state = numbers(Net())
        self.path = bench.save(self.state)
        self.failing = self.rank == FAILING

    def model(self):
        model = on_meta(Net)
        fully_shard(model)
        return model

    def load(self, model=None, path=None, **options):
        options.setdefault("timeout", 60)
        return self.bench.load(self.model() if model is None else model, path or self.path, **options)

    def raised(self, *arguments, within=PATIENCE, **options):
        """The error of a load on this rank, which must come in time."""
        began = time.monotonic()
        try:
            self.load(*arguments, **options)
        except BaseException as error:
            seconds = time.monotonic() - began
            assert seconds < within, f"it took {seconds:.1f} s: {error}"
            return error
        raise AssertionError("it loads")

    def ends_well(self, **options):
        """All ranks load, in their own time."""
        dist.barrier()
        began = time.monotonic()
        for _ in range(2):  # the second is resident
            self.load(**options)
        assert time.monotonic() - began < PATIENCE
        dist.barrier()

    def file(self, name):
        return os.path.join(self.bench.folder, f"{self.bench.case}-{name}")

    def wait_for(self, condition, what):
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end, f"waited in vain for {what}"
            time.sleep(0.01)

    def wait_for_file(self, name):
        self.wait_for(lambda: os.path.exists(self.file(name)), name)

    def say(self, name):
        open(self.file(name), "w").close()

    def waits(self, rank):
        """Whether that rank's client waits for others."""
        with ckptd.connect(self.bench.address.replace(f"rank-{self.rank}", f"rank-{rank}")) as client:
            return any(
                c.state == "LOADING" and c.source == self.path and c.progress.waiting_ranks for c in client.list()
            )


def heard(error, kind, reason, *words):
    assert type(error) is kind and error.reason == reason, repr(error)
    for word in (f"rank {FAILING}: ", *words):
        assert word in error.message, error.message
    assert error.message.count(f"rank {FAILING}: ") == 1, error.message
    assert error.facts["rank"] == str(FAILING), error.facts


def a_model_is_refused_before_anything_is_asked_for(bench):
    case = Case(bench)
    error = case.raised(mode="shared" if case.failing else "private")
    if case.failing:
        assert "are trainable" in error.message and "rank" not in error.facts
    else:
        heard(error, ckptd.InvalidArgument, "INVALID_REQUEST", "filling a model with mode='shared'", "are trainable")
    case.ends_well()


def something_else_than_a_model_is_given(bench):
    case = Case(bench)
    error = case.raised(case.path if case.failing else None)
    if case.failing:
        assert type(error) is TypeError
    else:
        heard(error, ckptd.Aborted, "RANK_FAILED", f"loading {case.path}", "it raised TypeError", "pass the model first")
    case.ends_well()


def a_rank_is_interrupted_while_it_waits(bench):
    case = Case(bench)
    if case.rank == bench.world - 1:
        case.wait_for_file("was interrupted")  # and comes too late
    if case.failing:

        signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell ignores it

        def interrupt():
            case.wait_for(lambda: case.waits(0) and case.waits(FAILING), "both to wait")
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
    error = case.raised()
    if case.failing:
        assert type(error) is KeyboardInterrupt
        case.say("was interrupted")
    else:
        heard(error, ckptd.Aborted, "RANK_FAILED", "its process", "was interrupted (KeyboardInterrupt)")
    case.ends_well()


def a_rank_waits_for_a_shorter_time(bench):
    case = Case(bench)
    if case.rank == bench.world - 1:
        case.wait_for_file("gave up")
    if case.failing:
        case.wait_for(lambda: case.waits(0), "rank 0 to wait")
    error = case.raised(timeout=5 if case.failing else 60)
    if case.failing:
        assert type(error) is ckptd.DeadlineExceeded and "after 5 s" in error.message
        case.say("gave up")
    else:
        heard(error, ckptd.DeadlineExceeded, "DEADLINE", "not done after 5 s, still waiting for rank 2")
    case.ends_well()


def a_hook_raises_after_all_have_placed(bench):
    case = Case(bench)

    def init(model, names):
        if case.failing:
            case.wait_for_file("rank 0 waits")
            raise ValueError("a mistake of the hook")
        return init_buffers(model, names)

    with saying_that_it_waits(case):
        error = case.raised(init_buffers=init, barrier=True)
    if case.failing:
        assert type(error) is ValueError
    else:
        heard(error, ckptd.Aborted, "RANK_FAILED", "it raised ValueError: a mistake of the hook")
    case.ends_well(barrier=True)


@contextlib.contextmanager
def saying_that_it_waits(case):
    of = ckptd._participant.Participant
    before = of._await_all

    def await_all(self):
        case.say(f"rank {case.rank} waits")
        before(self)

    of._await_all = await_all
    try:
        yield
    finally:
        of._await_all = before


def a_barrier_returns_when_all_have_placed(bench):
    case = Case(bench)

    def init(model, names):
        if case.failing:
            case.wait_for_file("rank 0 waits")
            case.say("rank 1 has placed")
        return init_buffers(model, names)

    for _ in range(2):
        with saying_that_it_waits(case):
            case.load(init_buffers=init, barrier=True)
        assert os.path.exists(case.file("rank 1 has placed"))
        dist.barrier()
        if case.failing:
            os.remove(case.file("rank 1 has placed"))
            os.remove(case.file("rank 0 waits"))
        dist.barrier()
    case.ends_well()


def a_barrier_that_one_rank_does_not_reach_names_it(bench):
    case = Case(bench)
    case.ends_well()
    if case.failing:
        case.wait_for_file("rank 0 gave up")
    else:
        error = case.raised(timeout=5, barrier=True)
        assert type(error) is ckptd.DeadlineExceeded, repr(error)
        assert re.search("before ranks? .*1 had placed.*barrier=True", error.message), error.message
        case.say(f"rank {case.rank} gave up")
    case.ends_well(barrier=True)


def ranks_name_different_files(bench):
    case = Case(bench)
    other = bench.save(case.state)
    mine, elsewhere = (other, f"rank 0 loads {case.path}") if case.failing else (case.path, f"rank 1 loads {other}")
    error = case.raised(None, mine)
    # Who waits hears it of the load; the first of them may be heard of by the others.
    assert type(error) is ckptd.FailedPrecondition and error.reason == "LOAD_CONFLICT", repr(error)
    assert f"loading {mine}: the ranks do not make the same load, {elsewhere}" in error.message, error.message
    case.ends_well()


def one_rank_names_a_file_that_is_not_there(bench):
    case = Case(bench)
    error = case.raised(None, case.path + ".not" if case.failing else case.path)
    if case.failing:
        assert type(error) is ckptd.NotFound
    else:
        heard(error, ckptd.NotFound, "SOURCE_NOT_FOUND", f"{case.path}.not")
    case.ends_well()


def ranks_spell_one_file_differently(bench):
    """By a link: what one of them failed of is of the same load."""
    case = Case(bench)
    link = case.path + ".link"
    if bench.rank == 0:
        os.symlink(case.path, link)
    dist.barrier()
    error = case.raised(None, link if case.failing else case.path, mode="shared" if case.failing else "private")
    if not case.failing:
        heard(error, ckptd.InvalidArgument, "INVALID_REQUEST", "are trainable")
    case.ends_well()


def one_rank_attaches_alone_beside_another_that_fails(bench):
    case = Case(bench)
    case.ends_well()
    if case.failing:
        assert "are trainable" in case.raised(mode="shared").message
        case.say("failed")
    if case.rank == 0:
        case.wait_for_file("failed")
        began = time.monotonic()
        assert case.load().resident and time.monotonic() - began < PATIENCE
    case.ends_well()


def a_load_fails_on_all_ranks_and_then_works(bench):
    """Nobody is told twice what the daemons have told all."""
    case = Case(bench)
    bad = bench.save({name: tensor for name, tensor in case.state.items() if name != "up.weight"})
    for _ in range(3):
        error = case.raised(None, bad)
        assert type(error) is ckptd.NotFound and error.reason == "TENSOR_NOT_FOUND", repr(error)
        dist.barrier()
    if bench.rank == 0:
        os.replace(case.path, bad)
    dist.barrier()
    case.path = bad
    case.ends_well()


def another_process_group_is_made(bench):
    """load_into keeps nothing of the one before."""
    case = Case(bench)
    case.raised(mode="shared" if case.failing else "private")
    dist.barrier()
    dist.destroy_process_group()
    store = dist.FileStore(case.file("store"), bench.world)
    dist.init_process_group("gloo", store=store, rank=bench.rank, world_size=bench.world)
    case.ends_well(barrier=True)


CASES = {
    3: [
        a_model_is_refused_before_anything_is_asked_for,
        something_else_than_a_model_is_given,
        a_rank_is_interrupted_while_it_waits,
        a_rank_waits_for_a_shorter_time,
        a_hook_raises_after_all_have_placed,
        a_barrier_returns_when_all_have_placed,
        a_barrier_that_one_rank_does_not_reach_names_it,
        ranks_name_different_files,
        one_rank_names_a_file_that_is_not_there,
        ranks_spell_one_file_differently,
        one_rank_attaches_alone_beside_another_that_fails,
        a_load_fails_on_all_ranks_and_then_works,
        another_process_group_is_made,
    ]
}
