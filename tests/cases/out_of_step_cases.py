"""Cases in which the ranks are not at the same call: all hear why, and the next calls are in step again."""

import contextlib
import datetime
import logging
import os
import time

import ckptd
import ckptd.accelerate
import ckptd.torch
import torch.distributed as dist
from accelerate_cases import OnTheHost, loaded, states
from ckptd.torch.agree import _agreement
from ckptd.torch.compat import _torch_internals
from fsdp_bench import local, numbers
from safetensors.torch import save_file
from spread_bench import BROADCAST, Bare, assert_holds, fails, save, sharded
from spread_cases import Said
from torch.distributed.checkpoint.state_dict import StateDictOptions

WRONG = "/nowhere/model.safetensors"


def the_next_calls_are_in_step(bench, *numbers_):
    """Each brings its own values."""
    for number in numbers_ or (100, 200):
        model, path = sharded(Bare), save(bench, number)
        ckptd.torch.set_model_state_dict(model, path, options=BROADCAST, address=bench.address, timeout=60)
        assert_holds(model, number)
        model = sharded(Bare)
        ckptd.torch.DistModule(model, address=bench.address, timeout=60).load_state_dict(save(bench, number + 1))
        assert_holds(model, number + 1)


def when_waited_for():
    """Returns when rank 0 has come to a call that this process has not, and waits."""
    deadline = time.monotonic() + 60
    while True:
        state = _agreement._current_state()
        if any(not state.store.check([f"{function}/{times}/2"]) for function, times in state.calls_ahead()):
            return
        assert time.monotonic() < deadline
        time.sleep(0.001)


def in_both_orders(bench, zero, one):
    """zero() on rank 0 after one() on rank 1; then one() while rank 0 waits in zero()."""
    if bench.rank:
        one()
    dist.barrier()
    if not bench.rank:
        zero()
    dist.barrier()
    if bench.rank:
        when_waited_for()
        one()
    else:
        zero()
    dist.barrier()


def set_model(bench, given, options=None, model=None, timeout=60):
    model = model or sharded(Bare)
    near = {"address": bench.address, "timeout": timeout}
    return ckptd.torch.set_model_state_dict(model, given, options=options, **near)


def what_one_rank_refuses_by_itself_ends_the_call_of_all(bench):
    path = save(bench, 0)

    def zero():
        with fails(ValueError, "rank 1: ", "full_state_dict"):
            set_model(bench, path, BROADCAST)

    def one():
        with fails(ValueError, "full_state_dict"):
            set_model(bench, path, StateDictOptions(full_state_dict=False, broadcast_from_rank0=True))

    in_both_orders(bench, zero, one)
    the_next_calls_are_in_step(bench)


def an_empty_dict_without_options_is_no_part_of_a_path_s_call(bench):
    """It is torch's own function's, which refuses it."""
    path = save(bench, 0)

    def zero():
        with fails(RuntimeError, "rank 1: ", "model state_dict is empty"):
            set_model(bench, path)

    def one():
        with fails(RuntimeError, "model state_dict is empty"):
            set_model(bench, {})

    in_both_orders(bench, zero, one)
    the_next_calls_are_in_step(bench)


def the_wrong_side_of_sharding_is_an_error_of_every_rank_and_can_be_put_right(bench):
    path, like, near = save(bench, 7), sharded(Bare).state_dict(), {"address": bench.address, "timeout": 60}

    def zero():
        with fails(ValueError, "rank 1: ", "not rank 0"):
            ckptd.torch.broadcast_and_shard_state_dict(path, like, {}, **near)

    def one():
        with fails(ValueError, "not rank 0"):
            ckptd.torch.broadcast_and_shard_state_dict({}, like, {}, **near)

    in_both_orders(bench, zero, one)
    parts, model = {}, sharded(Bare)
    if bench.rank == 0:
        ckptd.torch.broadcast_and_shard_state_dict(path, like, parts, **near)
    else:
        ckptd.torch.shard_broadcasted_state_dict(like, parts, **near)
    model.load_state_dict(parts, assign=True)
    assert_holds(model, 7)
    the_next_calls_are_in_step(bench)


class Broken(OnTheHost):
    """For which no model can be prepared."""

    @property
    def torch_device_mesh(self):
        raise KeyError("no mesh of that name")


def a_model_that_one_rank_cannot_prepare_is_prepared_by_none(bench):
    def prepare(kind, *parts):
        with fails(KeyError, *parts, "no mesh of that name"):
            ckptd.accelerate.fsdp2_prepare_model(
                kind(bench.rank), loaded(bench, states()), address=bench.address, timeout=60)

    in_both_orders(bench, lambda: prepare(OnTheHost, "rank 1: "), lambda: prepare(Broken))
    the_next_calls_are_in_step(bench)


class SaidToAll(Said):
    """Keeps what is said, and tells the other rank that something was."""

    def emit(self, record):
        super().emit(record)
        _torch_internals.default_store().set(self.lines[-1][:12], b"1")


def a_path_that_rank_0_cannot_open_is_named_to_those_that_wait(bench):
    """They wait on, as it may still come by another one."""
    model, path, said = sharded(Bare), save(bench, 3), SaidToAll()
    module = ckptd.torch.DistModule(model, address=bench.address, timeout=60)
    if bench.rank == 0:
        with fails(FileNotFoundError, WRONG):
            ckptd.torch.load_state_dict(WRONG, address=bench.address)
        state = ckptd.torch.load_state_dict(path, address=bench.address)
        _torch_internals.default_store().wait(["DistModule.l"], datetime.timedelta(seconds=60))
        module.load_state_dict(state)
    else:
        logging.getLogger("ckptd").addHandler(said)
        module.load_state_dict({})
        assert any("rank 0, which must make the same call (rank 0: load_state_dict of /nowhere" in line
                   and "failed there before" in line for line in said.lines), said.lines
    assert_holds(model, 3)


def a_call_that_one_rank_makes_alone_is_skipped_by_the_others(bench):
    if bench.rank == 0:
        with fails(ValueError, "there is no such file or folder"):
            ckptd.accelerate.load_checkpoint_in_model(sharded(Bare), WRONG, address=bench.address, timeout=20)
    dist.barrier()
    the_next_calls_are_in_step(bench)
    if bench.rank == 0:
        with fails(ckptd.DeadlineExceeded, "rank 1, which must make the same call"):
            ckptd.torch.DistModule(sharded(Bare), address=bench.address, timeout=3).load_state_dict(save_alone(bench))
    dist.barrier()
    the_next_calls_are_in_step(bench, 300)


def save_alone(bench):
    path = os.path.join(bench.folder, "alone.safetensors")
    save_file(numbers(Bare()), path)
    return path


def another_path_on_one_rank_is_another_call(bench):
    """Where each rank passes one. Torch's own function would load each rank's."""
    paths = [save(bench, number) for number in (1, 2)]
    model = sharded(Bare)
    with fails(RuntimeError, "set_model_state_dict: the ranks do not ask for the same", *paths):
        set_model(bench, paths[bench.rank], model=model)
    assert all(local(p).is_meta for p in model.parameters()), "it was touched"
    the_next_calls_are_in_step(bench)


def other_lazy_dicts_on_the_ranks_are_refused(bench):
    """Where each rank has one; torch's own function would load each rank's."""
    paths = [save(bench, number) for number in (1, 2)]
    lazy = ckptd.torch.load_state_dict(paths[bench.rank], every_rank=True, address=bench.address)
    own = ckptd.torch.load_state_dict(paths[0], every_rank=True, address=bench.address)
    if bench.rank:
        own["head.weight"] = numbers(Bare())["head.weight"]
    for given in (lazy, own):
        with fails(RuntimeError, "the ranks do not ask for the same", "a LazyStateDict of"):
            set_model(bench, given)
    model, same = sharded(Bare), ckptd.torch.load_state_dict(paths[1], every_rank=True, address=bench.address)
    same["head.weight"] = numbers(Bare())["head.weight"] + 2
    set_model(bench, same, model=model)
    assert_holds(model, 2)


class Hooked(Bare):
    """Whose state dict cannot be had."""

    def state_dict(self, *args, **named):
        raise KeyError("a hook of the model's")


def whatever_one_rank_raises_before_the_round_ends_the_call_of_all(bench):
    path, near = save(bench, 0), {"address": bench.address, "timeout": 60}

    def checkpoint(build=Bare):
        ckptd.accelerate.load_checkpoint_in_model(sharded(build), path, **near)

    def full(**more):
        ckptd.torch.fsdp2_load_full_state_dict(None, sharded(Bare), path, **{**near, **more})

    def options(given=BROADCAST):
        set_model(bench, path, given)

    for right, wrong, says in (
        (checkpoint, lambda: checkpoint(Hooked), "a hook of the model's"),
        (full, lambda: full(timeout=None), "NoneType"),
        (full, lambda: full(fallback="nativ"), "fallback='nativ'"),
        (full, lambda: full(fallback="native"), "the ranks do not ask for the same"),
        (full, lambda: full(fallback="native", address="/nowhere"), "the ranks do not ask for the same"),
        (options, lambda: options({"full_state_dict": True}), "no attribute"),
    ):
        dist.barrier()
        with fails(Exception, says):
            wrong() if bench.rank else right()
        the_next_calls_are_in_step(bench, 500)


def ranks_at_different_functions_hear_so_and_are_in_step_two_calls_later(bench):
    """The one that has still to come to the other's call hears once more that this has failed."""
    path = save(bench, 0)
    with fails(RuntimeError, "the ranks are not at the same call", "DistModule.load_state_dict", "set_model_state_dict"):
        if bench.rank:
            set_model(bench, path, BROADCAST)
        else:
            ckptd.torch.DistModule(sharded(Bare), address=bench.address, timeout=60).load_state_dict(path)
    if bench.rank == 0:
        with fails(RuntimeError, "the ranks are not at the same call"):
            set_model(bench, path, BROADCAST)
    the_next_calls_are_in_step(bench)


def a_process_that_was_forked_takes_no_rank_out(bench):
    child = os.fork()
    if child == 0:
        _agreement._on_exit()
        os._exit(0)
    os.waitpid(child, 0)
    dist.barrier()
    the_next_calls_are_in_step(bench)


def calls_that_cannot_be_told_apart_are_errors_and_never_another_model_s_values(bench):
    """One of a function that one rank alone has given up, and the next one of both."""
    paths = [save(bench, number) for number in (1, 2, 3)]
    if bench.rank == 0:
        with fails(ckptd.DeadlineExceeded, "rank 1, which must make the same call"):
            set_model(bench, paths[0], timeout=3)
    dist.barrier()
    for path in paths[: 2 + bench.rank]:
        model = sharded(Bare)
        with contextlib.suppress(RuntimeError, ckptd.Error):
            set_model(bench, path, model=model, timeout=20)
            assert_holds(model, paths.index(path) + 1)


CASES = {2: [
    what_one_rank_refuses_by_itself_ends_the_call_of_all,
    an_empty_dict_without_options_is_no_part_of_a_path_s_call,
    the_wrong_side_of_sharding_is_an_error_of_every_rank_and_can_be_put_right,
    a_model_that_one_rank_cannot_prepare_is_prepared_by_none,
    a_path_that_rank_0_cannot_open_is_named_to_those_that_wait,
    a_call_that_one_rank_makes_alone_is_skipped_by_the_others,
    another_path_on_one_rank_is_another_call,
    other_lazy_dicts_on_the_ranks_are_refused,
    whatever_one_rank_raises_before_the_round_ends_the_call_of_all,
    ranks_at_different_functions_hear_so_and_are_in_step_two_calls_later,
    a_process_that_was_forked_takes_no_rank_out,
    calls_that_cannot_be_told_apart_are_errors_and_never_another_model_s_values,
]}
