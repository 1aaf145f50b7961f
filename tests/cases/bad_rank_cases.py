"""Cases in which one rank cannot do its part: every rank hears why, or all take the native way."""

import contextlib
import os
import pathlib
import time

import ckptd
import ckptd.accelerate
import torch
import torch.distributed as dist
import transformers
from ckptd import _client
from ckptd.torch.load import _load_into
from ckptd.transformers import _deferred_load, _files
from accelerate_cases import OnTheHost, Stack, assert_same_model, loaded, states, written
from fsdp_bench import numbers
from spread_bench import BROADCAST, PATIENCE, Bare, assert_equal, fails, sharded
from transformers_cases import CASES as MODELS
from transformers_cases import difference, facts_of

METADATA = {"format": "pt"}
MISTAKE = ckptd.Internal("a mistake of the program", "MISTAKE")
TP = next(case for case in MODELS[2] if case.parallel == "tp")
FSDP = next((case for case in MODELS[2] if case.parallel == "fsdp"), TP)  # transformers 4 has none


def address_of(bench):
    """The last rank's is one where nobody listens."""
    return bench.address if bench.rank < bench.world - 1 else "/nowhere/rank.sock"


@contextlib.contextmanager
def in_time():
    """Not by the end of somebody's patience; that for a daemon is cut, which other cases wait for."""
    began, before = time.monotonic(), _client.CONNECT_SECONDS
    _client.CONNECT_SECONDS = 0.3
    try:
        yield
    finally:
        _client.CONNECT_SECONDS = before
    assert time.monotonic() - began < PATIENCE, f"it took {time.monotonic() - began:.1f} s"


def load_checkpoint_in_model_without_a_daemon_on_one_rank(bench):
    path, last = written(bench, numbers(Bare()), METADATA), bench.rank == bench.world - 1
    for options, patience in (({"broadcast_from_rank0": True}, in_time), ({}, contextlib.nullcontext)):
        model = sharded(Bare)
        with patience(), fails(ckptd.Unavailable, "ckptd launch", "" if last else "rank 1: "):
            ckptd.accelerate.load_checkpoint_in_model(model, path, address=address_of(bench), timeout=60, **options)


def load_checkpoint_in_model_natively_when_one_rank_has_no_daemon(bench):
    state = numbers(Bare())
    path = written(bench, state, METADATA)
    theirs, mine = sharded(Bare), sharded(Bare)
    options = {"broadcast_from_rank0": True, "strict": True}
    ckptd.accelerate.load_checkpoint_in_model(theirs, path, address=bench.address, **options)
    with in_time():
        ckptd.accelerate.load_checkpoint_in_model(
            mine, path, address=address_of(bench), timeout=60, fallback="native", **options)
    assert_equal(mine, theirs, "natively")


def load_checkpoint_in_model_where_one_rank_sees_no_file(bench):
    path = written(bench, numbers(Bare()), METADATA)
    mine = path if bench.rank == 0 else os.path.join(bench.folder, "not there")
    with fails(ValueError, "not there: there is no such file or folder"):
        ckptd.accelerate.load_checkpoint_in_model(sharded(Bare), mine, address=bench.address, timeout=60)


def a_model_is_prepared_natively_when_one_rank_has_no_daemon(bench):
    state = states()
    theirs, mine = (loaded(bench, state) for _ in range(2))
    accelerator = OnTheHost(bench.rank)
    ckptd.accelerate.fsdp2_prepare_model(accelerator, theirs, address=bench.address)
    with in_time():
        ckptd.accelerate.fsdp2_prepare_model(
            accelerator, mine, address=address_of(bench), timeout=60, fallback="native")
    assert_same_model(mine, theirs)


def a_model_on_meta_is_prepared_natively_when_one_rank_has_no_daemon(bench):
    path, prepared = bench.save({n: v.clone() for n, v in states().items()}), []
    for how in ({"address": bench.address}, {"address": address_of(bench), "timeout": 60, "fallback": "native"}):
        with torch.device("meta"):
            model = Stack(tied=False)
        with in_time():
            prepared.append(ckptd.accelerate.fsdp2_prepare_model(
                OnTheHost(bench.rank), model, source=path, init_buffers=start_at_zero, **how))
    assert_same_model(*prepared)


def start_at_zero(model, names):
    for name in names:
        model.rotary.freq.zero_()


def models(case, bench):
    folder = pathlib.Path(bench.folder) / "models"
    if bench.rank == 0:
        case.save(folder)
    dist.barrier()
    return case.path(folder)


def from_pretrained_without_a_daemon_on_one_rank(bench):
    for case, patience in ((TP, in_time), (FSDP, contextlib.nullcontext)):
        path, last = models(case, bench), bench.rank == bench.world - 1
        with patience(), ckptd.patch(address=address_of(bench), timeout=60):
            with fails(ckptd.Unavailable, "ckptd launch", "" if last else "rank 1: "):
                case.load(path, bench.world)
        the_next_one_works(bench, case, path)


def the_next_one_works(bench, case, path):
    native, _ = case.load(path, bench.world)
    with ckptd.patch(address=bench.address, timeout=60):
        mine, _ = case.load(path, bench.world)
    assert difference(facts_of(native), facts_of(mine), "model") is None


def from_pretrained_natively_when_one_rank_has_no_daemon(bench):
    for case in (TP, FSDP):
        path = models(case, bench)
        native, _ = case.load(path, bench.world)
        with in_time(), ckptd.patch(address=address_of(bench), timeout=60, fallback="native"):
            mine, _ = case.load(path, bench.world)
        assert difference(facts_of(native), facts_of(mine), "model") is None
        the_next_one_works(bench, case, path)


def from_pretrained_where_one_rank_raises_before_it_loads(bench):
    path = models(TP, bench)
    with ckptd.patch(address=bench.address, timeout=60):
        if bench.rank == 0:
            with fails(ValueError, "rank 1: ", "a mistake of the program"):
                TP.load(path, bench.world)
        else:
            with fails(ValueError, "a mistake of the program"), broken_models(ValueError("a mistake of the program")):
                TP.load(path, bench.world)
    the_next_one_works(bench, TP, path)


def from_pretrained_where_one_rank_raises_between_two_files(bench):
    """transformers 4 loads each file by itself, so the others come to the next one; 5 all at once."""
    case = next(case for case in MODELS[2] if case.parallel == "tp" and case.shards)
    path, place = models(case, bench), transformers.modeling_utils
    name = "_load_state_dict_into_meta_model" if hasattr(place, "_load_state_dict_into_meta_model") else None
    with ckptd.patch(address=bench.address, timeout=60):
        if name is None:  # nothing of the kind
            return
        with fails(ValueError, "a mistake of the program"):
            with broken(place, name, after=1) if bench.rank == 1 else contextlib.nullcontext():
                case.load(path, bench.world)
    the_next_one_works(bench, case, path)


@contextlib.contextmanager
def broken_models(error):
    """Models cannot be built in this process."""
    kind = transformers.LlamaForCausalLM
    before = kind.__init__

    def fail(*_, **__):
        raise error

    kind.__init__ = fail
    try:
        yield
    finally:
        kind.__init__ = before


def from_pretrained_where_one_rank_is_interrupted_loads_the_next_time(bench):
    path = models(TP, bench)
    with ckptd.patch(address=bench.address, timeout=60):
        if bench.rank == 0:
            with fails(RuntimeError, "rank 1: KeyboardInterrupt"):
                TP.load(path, bench.world)
        else:
            with contextlib.suppress(KeyboardInterrupt), broken_models(KeyboardInterrupt()):
                TP.load(path, bench.world)
    the_next_one_works(bench, TP, path)


@contextlib.contextmanager
def broken(owner, name, after=0):
    """A function works `after` times in this process, and no more."""
    before, calls = getattr(owner, name), []

    def fail(*given, **named):
        calls.append(name)
        if len(calls) <= after:
            return before(*given, **named)
        raise ValueError("a mistake of the program")

    setattr(owner, name, fail)
    try:
        yield
    finally:
        setattr(owner, name, before)


def the_daemons_are_not_waited_for_when_a_rank_raises_meanwhile(bench):
    """The others have stated their tensors, and their daemons wait for the one that will not."""
    path = bench.save(numbers(Bare()))
    with fails(ValueError, "a mistake of the program"):
        with broken(_load_into, "attach") if bench.rank == 1 else contextlib.nullcontext():
            ckptd.torch.set_model_state_dict(sharded(Bare), path, options=BROADCAST, address=bench.address, timeout=60)
    ckptd.torch.set_model_state_dict(sharded(Bare), path, options=BROADCAST, address=bench.address, timeout=60)


def from_pretrained_waits_for_no_daemon_when_a_rank_raises_meanwhile(bench):
    path = models(TP, bench)
    with ckptd.patch(address=bench.address, timeout=60), fails(ValueError, "a mistake of the program"):
        with broken(_deferred_load.DeferredLoad, "_attach") if bench.rank == 1 else contextlib.nullcontext():
            TP.load(path, bench.world)
    the_next_one_works(bench, TP, path)


def from_pretrained_natively_when_one_of_the_files_cannot_be_opened_on_one_rank(bench):
    """The others of its files can: all the same, that rank comes to no round of its own for them."""
    case = next(case for case in MODELS[2] if case.parallel == "tp" and case.shards)
    path = models(case, bench)
    native, _ = case.load(path, bench.world)
    with in_time(), ckptd.patch(address=bench.address, timeout=60, fallback="native"):
        with once(_files.Files, "_source", MISTAKE) if bench.rank == 1 else contextlib.nullcontext():
            mine, _ = case.load(path, bench.world)
    assert difference(facts_of(native), facts_of(mine), "model") is None
    the_next_one_works(bench, case, path)


def a_rank_that_raises_raises_on_all_though_the_native_way_is_open(bench):
    """Of another rank's error nobody takes that it goes natively: this one does not go on at all."""
    path = models(TP, bench)
    with ckptd.patch(address=bench.address, timeout=60, fallback="native"):
        with fails(ckptd.Internal if bench.rank == 1 else RuntimeError, "a mistake of the program"):
            with broken_models(MISTAKE) if bench.rank == 1 else contextlib.nullcontext():
                TP.load(path, bench.world)
    the_next_one_works(bench, TP, path)


@contextlib.contextmanager
def once(owner, name, error):
    """The first call of a function fails in this process."""
    before, calls = getattr(owner, name), []

    def fail(*given, **named):
        calls.append(name)
        if len(calls) == 1:
            raise error
        return before(*given, **named)

    setattr(owner, name, fail)
    try:
        yield
    finally:
        setattr(owner, name, before)
    assert len(calls) > 1, "the others were not asked for"


def assert_same_values(model, state):
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


CASES = {2: [
    the_daemons_are_not_waited_for_when_a_rank_raises_meanwhile,
    from_pretrained_waits_for_no_daemon_when_a_rank_raises_meanwhile,
    load_checkpoint_in_model_without_a_daemon_on_one_rank,
    load_checkpoint_in_model_natively_when_one_rank_has_no_daemon,
    load_checkpoint_in_model_where_one_rank_sees_no_file,
    a_model_is_prepared_natively_when_one_rank_has_no_daemon,
    a_model_on_meta_is_prepared_natively_when_one_rank_has_no_daemon,
    from_pretrained_without_a_daemon_on_one_rank,
    from_pretrained_natively_when_one_rank_has_no_daemon,
    from_pretrained_where_one_rank_raises_before_it_loads,
    from_pretrained_where_one_rank_raises_between_two_files,
    from_pretrained_where_one_rank_is_interrupted_loads_the_next_time,
    from_pretrained_natively_when_one_of_the_files_cannot_be_opened_on_one_rank,
    a_rank_that_raises_raises_on_all_though_the_native_way_is_open,
]}
