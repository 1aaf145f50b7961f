"""Cases of load_checkpoint_in_model by several ranks, beside accelerate's own."""

import ckptd.accelerate
import torch
import torch.distributed as dist
from accelerate.utils import modeling
from accelerate_cases import written
from fsdp_cases import assert_in_daemon_memory, local, numbers
from spread_bench import Bare, assert_equal, fails, sharded, storage_bytes_of

METADATA = {"format": "pt"}


def ours(bench, model, path, **options):
    return ckptd.accelerate.load_checkpoint_in_model(model, path, address=bench.address, **options)


def size_of(state):
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def a_sharded_model_is_filled_as_by_accelerate(bench):
    for dtype in (None, torch.bfloat16):
        state = numbers(Bare(), dtype)
        for options in ({"broadcast_from_rank0": True, "strict": True}, {"broadcast_from_rank0": True}, {}):
            path = written(bench, state, METADATA)
            theirs, mine = sharded(Bare), sharded(Bare)
            modeling.load_checkpoint_in_model(theirs, path, **options)
            assert ours(bench, mine, path, **options) is None
            assert_equal(mine, theirs, f"{dtype} {options}")
            assert_in_daemon_memory(mine)
            assert storage_bytes_of(bench, path) == size_of(state) or bench.rank != 0


def names_that_differ_are_an_error_on_every_rank(bench):
    # Where rank 0 alone has other names, torch's broadcast hangs.
    state = numbers(Bare())
    for wrong in ({**state, "more": torch.ones(2)}, {n: t for n, t in state.items() if n != "up.bias"}):
        path, model = written(bench, wrong, METADATA), sharded(Bare)
        with fails(RuntimeError, "more" if "more" in wrong else "up.bias"):
            ours(bench, model, path, strict=True, broadcast_from_rank0=True)
        assert all(local(p).is_meta for p in model.parameters()), "it was touched"


def what_every_rank_takes_whole_is_read_once(bench):
    state = numbers(Bare())
    path = written(bench, state, METADATA)
    theirs, mine = Bare(), Bare()
    modeling.load_checkpoint_in_model(theirs, path, device_map={"": "cpu"}, dtype=torch.bfloat16)
    ours(bench, mine, path, device_map={"": "cpu"}, dtype=torch.bfloat16)
    assert_equal(mine, theirs, "a copy for each rank")
    dist.barrier()
    if bench.rank == 0:
        assert storage_bytes_of(bench, path) == size_of(state)
    dist.barrier()


def one_rank_may_load_alone(bench):
    state = numbers(Bare())
    path = written(bench, state, METADATA)
    if bench.rank == 1:
        mine = Bare()
        ours(bench, mine, path, device_map={"": "cpu"}, timeout=30)
        assert all(torch.equal(tensor, state[name]) for name, tensor in mine.state_dict().items())
    dist.barrier()


CASES = {2: [a_sharded_model_is_filled_as_by_accelerate, names_that_differ_are_an_error_on_every_rank,
             what_every_rank_takes_whole_is_read_once, one_rank_may_load_alone],
         4: [what_every_rank_takes_whole_is_read_once]}
