"""dcp.load with ckptd's StorageReader beside torch's own readers, on each rank of one gloo group.

Each case loads the same folder into two equal state dicts and compares all of them, byte by byte.
"""

import copy
import dataclasses
import functools
import pathlib
import threading

import ckptd
import ckptd.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from dcp_bench import (
    WORLD,
    assert_same,
    compare,
    filled,
    folder_of,
    fsdp,
    fsdp1,
    hsdp,
    nested,
    plain,
    reader,
    saved,
    state_of,
    tensor_parallel,
)
from dcp_failing_cases import FAILING
from fsdp_bench import Net, numbers, train
from safetensors.torch import save_file
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict, _load_state_dict_from_keys
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

# -- models and optimizers, at the same mesh and at others ----------------------


def each_mesh_to_each(bench):
    wraps = {"plain": plain, "fsdp": fsdp, "hsdp": hsdp, "tensor_parallel": tensor_parallel}
    fresh = {name: state_of(wrap, 1) for name, wrap in wraps.items()}
    for name, wrap in wraps.items():
        path = saved(bench, state_of(wrap, 0), name)
        for other in wraps:
            mine = compare(bench, path, lambda: copy.deepcopy(fresh[other]))
            assert mine["step"] == 0


def sharded_tensors_of_fsdp1(bench):
    path = saved(bench, {"model": get_model_state_dict(filled(fsdp, 0)[0])})
    mine = compare(bench, path, lambda: {"model": get_model_state_dict(filled(fsdp1, 1)[0])})
    assert type(mine["model"]["up.weight"]).__name__ == "ShardedTensor"
    compare(bench, saved(bench, mine), lambda: {"model": get_model_state_dict(filled(plain, 1)[0])})


def flattened_optimizer_states(bench):
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    path = saved(bench, state_of(fsdp, 0, options))
    fresh = state_of(hsdp, 1, options)
    assert any(key.endswith("exp_avg") for key in fresh["optim"])
    compare(bench, path, lambda: copy.deepcopy(fresh))


def training_goes_on_alike(bench):
    """get_ and set_ around the load, with each of their options, and further steps."""
    path = saved(bench, state_of(fsdp, 0))
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    flat_path = saved(bench, state_of(fsdp, 0, flat))
    for options in (StateDictOptions(), StateDictOptions(cpu_offload=True), flat):
        found = []
        for make in (dcp.FileSystemReader, functools.partial(reader, bench)):
            model, optimizer = filled(hsdp, 1)
            state = dict(zip(("model", "optim"), get_state_dict(model, optimizer, options=options)))
            source = flat_path if options is flat else path
            dcp.load(state, storage_reader=make(source))
            set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"],
                           options=options)
            found.append((train(model, optimizer), get_model_state_dict(model),
                          get_optimizer_state_dict(model, optimizer)))
        assert_same(*found)


def full_states_from_rank_0(bench):
    """Rank 0 alone loads whole tensors, and torch's own functions give each rank its part."""
    path = saved(bench, state_of(fsdp, 0))
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, cpu_offload=True)
    found = []
    for make in (dcp.FileSystemReader, functools.partial(reader, bench)):
        model, optimizer = filled(hsdp, 1)
        full = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = dict(zip(("model", "optim"), get_state_dict(model, optimizer, options=full)))
        if bench.rank == 0:
            dcp.load(state, storage_reader=make(path), no_dist=True)
        set_model_state_dict(model, state["model"] if bench.rank == 0 else {}, options=options)
        set_optimizer_state_dict(model, optimizer, state["optim"] if bench.rank == 0 else {}, options=options)
        found.append((train(model, optimizer), get_optimizer_state_dict(model, optimizer)))
    assert_same(*found)


def only_the_needed_bytes_are_loaded_and_once(bench):
    state = {"w": distribute_tensor(torch.randn(64, 512), init_device_mesh("cpu", (WORLD,)), [Shard(0)]),
             "other": torch.randn(1 << 20)}
    path = saved(bench, state)
    dcp.load({"w": torch.zeros_like(state["w"])}, storage_reader=reader(bench, path))
    with ckptd.connect(bench.address) as client:
        loaded, = (one for one in client.list() if one.source.startswith(path))
    part = 64 * 512 * 4 // WORLD
    assert part <= loaded.slab_bytes < 2 * part, loaded
    assert loaded.progress.storage_bytes < 2 * WORLD * part, loaded.progress


def a_rank_that_reads_the_same_again_leaves_nobody_waiting(bench):
    """Its daemon holds its shard already, and those of the others do not."""
    path = saved(bench, {"a": torch.arange(5.0), "b": torch.arange(7.0)})
    for names in ("a", "a" if bench.rank == 0 else "ab"):
        state = {"a": torch.zeros(5), "b": torch.zeros(7)}
        wanted = {name: state[name] for name in names}
        dcp.load(wanted, storage_reader=reader(bench, path))
        assert all(torch.equal(value, torch.arange(len(value), dtype=torch.float32)) for value in wanted.values())


# -- everything else that a state dict may hold ----------------------------------


class Counter:
    """Stateful, with a state of its own kind."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value, "history": [self.value] * 3, "weight": torch.full((3,), float(self.value))}

    def load_state_dict(self, state):
        self.value, self.seen = state["value"], state


def nested_values(bench):
    path = saved(bench, nested(1))
    compare(bench, path, lambda: nested(0))
    flat = saved(bench, nested(1), planner=dcp.DefaultSavePlanner(flatten_state_dict=False))
    compare(bench, flat, lambda: nested(0), planner=lambda: DefaultLoadPlanner(flatten_state_dict=False))


def other_types_are_cast_as_torch_does(bench):
    path = saved(bench, {"w": torch.randn(7, 3), "n": torch.arange(5)})
    compare(bench, path, lambda: {"w": torch.zeros(7, 3, dtype=torch.bfloat16), "n": torch.zeros(5)})


def stateful_objects(bench):
    path = saved(bench, {"counter": Counter(5), "model": Net()})
    theirs, mine = ({"counter": Counter(0), "model": Net()} for _ in range(2))
    dcp.load(theirs, storage_reader=dcp.FileSystemReader(path))
    dcp.load(mine, storage_reader=reader(bench, path))
    assert mine["counter"].value == 5
    assert_same(mine["counter"].seen, theirs["counter"].seen)
    assert_same(mine["model"].state_dict(), theirs["model"].state_dict())


def state_dicts_from_nothing(bench):
    """As dcp_to_torch_save makes them: by the paths that the keys had before they were flattened."""
    state = {**nested(1), "model": numbers(Net()), "optim": {"state": {"up.weight": {"exp_avg": torch.ones(3)}}}}
    path = saved(bench, state)
    for keys in (None, {"model"}, {"model", "a.b"}, {"list"}):
        theirs = _load_state_dict_from_keys(keys, storage_reader=dcp.FileSystemReader(path))
        assert_same(_load_state_dict_from_keys(keys, storage_reader=reader(bench, path)), theirs)
    theirs, mine = {}, {}
    for found, make in ((theirs, dcp.FileSystemReader), (mine, functools.partial(reader, bench))):
        _load_state_dict(found, storage_reader=make(path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    assert_same(mine, theirs)
    assert set(mine["a.b"]) == {"c.d", "c"} and isinstance(mine["list"], list)


class Renaming(DefaultLoadPlanner):
    """Reads what has another name in the folder, part by part, and counts what is committed."""

    def __init__(self):
        super().__init__()
        self.committed = 0

    def set_up_planner(self, state_dict, metadata=None, is_coordinator=False):
        super().set_up_planner({f"old.{key}": value for key, value in state_dict.items()}, metadata, is_coordinator)

    def finish_plan(self, new_plan):
        return dcp.LoadPlan([half for item in new_plan.items for half in self.halves(item)])  # without what others noted

    def halves(self, item):
        if not item.lengths or item.lengths[0] < 2:
            return [item]
        half = item.lengths[0] // 2
        def moved(offsets, by):
            return torch.Size([offsets[0] + by, *offsets[1:]])
        return [dataclasses.replace(
            item, storage_offsets=moved(item.storage_offsets, at), dest_offsets=moved(item.dest_offsets, at),
            lengths=torch.Size([length, *item.lengths[1:]]))
            for at, length in ((0, half), (half, item.lengths[0] - half))]

    def commit_tensor(self, read_item, tensor):
        self.committed += 1


def planners_of_others(bench):
    model, _ = filled(fsdp, 0)
    path = saved(bench, {f"old.{name}": tensor for name, tensor in get_model_state_dict(model).items()})
    fresh = get_model_state_dict(filled(fsdp, 1)[0])
    planners = []

    def planner():
        planners.append(Renaming())
        return planners[-1]

    compare(bench, path, lambda: copy.deepcopy(fresh), planner=planner)
    assert planners[0].committed == planners[1].committed > len(fresh)


# -- who loads -------------------------------------------------------------------


def each_rank_for_itself(bench):
    path = saved(bench, {**state_of(fsdp, 0), "more": nested(1)})
    fresh = {**state_of(tensor_parallel, 1), "more": nested(0)}
    compare(bench, path, lambda: copy.deepcopy(fresh), no_dist=True)
    if bench.rank == 2:
        compare(bench, path, lambda: {"more": nested(0)}, no_dist=True)
    dist.barrier()


def some_of_the_ranks(bench):
    """A group of a part of the ranks loads together, and what is sharded over it is loaded in parts."""
    path = saved(bench, {"w": torch.randn(110, 80), "v": torch.randn(60, 90), "n": 3})
    for ranks in ((0, 2), (1, 2, 3)):
        group = dist.new_group(ranks)
        mesh = DeviceMesh("cpu", ranks)
        if bench.rank in ranks:
            def make():
                return {"w": distribute_tensor(torch.zeros(110, 80), mesh, [Shard(0)], src_data_rank=None),
                        "v": distribute_tensor(torch.zeros(60, 90), mesh, [Shard(1)], src_data_rank=None), "n": 0}

            compare(bench, path, make, process_group=group)
            with ckptd.connect(bench.address) as client:
                newest = client.list()[0]
            assert newest.source.startswith(path), newest
            assert newest.slab_bytes < 0.6 * 4 * (110 * 80 + 60 * 90), newest
        dist.barrier()


def ranks_that_read_nothing(bench):
    path = saved(bench, {"w": torch.randn(110, 80), "n": 3})
    mesh = DeviceMesh("cpu", [1, 3])

    def make():
        return {"w": distribute_tensor(torch.zeros(110, 80), mesh, [Shard(0)], src_data_rank=None)}

    expected, mine = make(), make()
    for state, read in ((expected, dcp.FileSystemReader(path)), (mine, reader(bench, path))):
        dcp.load(state, storage_reader=read)
    assert_same(mine, expected)
    assert bench.rank in (0, 2) or mine["w"].to_local().any()
    dcp.load({}, storage_reader=reader(bench, path))


def two_ranks_save_and_three_and_one_load(bench):
    groups = {count: dist.new_group(list(range(count))) for count in (2, 3, 1)}
    meshes = {count: DeviceMesh("cpu", list(range(count))) for count in groups}

    def on(count, tensor):
        return distribute_tensor(tensor, meshes[count], [Shard(0)], src_data_rank=None)

    value, paths = torch.arange(7 * 5.0).reshape(7, 5), {}
    for count in (2, 3):
        paths[count] = folder_of(bench)
        if bench.rank < count:
            dcp.save({"w": on(count, value), "step": count}, checkpoint_id=paths[count], process_group=groups[count])
        dist.barrier()
    for source, count in ((2, 3), (3, 1), (2, 1), (3, 2)):
        if bench.rank < count:
            mine = compare(bench, paths[source], lambda: {"w": on(count, torch.zeros(7, 5)), "step": 0},
                           process_group=groups[count])
            assert mine["step"] == source and mine["w"].full_tensor().equal(value)
        dist.barrier()


def from_a_thread(bench):
    path = saved(bench, state_of(fsdp, 0))
    fresh, failures = state_of(fsdp, 1), []

    def load():
        try:
            compare(bench, path, lambda: copy.deepcopy(fresh))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert not failures, failures


def one_reader_many_times(bench):
    paths = [saved(bench, nested(seed)) for seed in (1, 2)]
    one, mine = reader(bench, paths[0]), nested(0)
    for path, seed in zip((*paths, paths[0]), (1, 2, 1)):
        dcp.load(mine, checkpoint_id=path, storage_reader=one)
        assert_same(mine, nested(seed) | {"rng": mine["rng"]})
        assert one.checkpoint_id == path


def parts_of_a_state(bench):
    path = saved(bench, nested(1))
    compare(bench, path, lambda: {"scalar": torch.tensor(0.0)})
    more = {"scalar": torch.tensor(0.0), "not there": torch.ones(1)}
    compare(bench, path, lambda: copy.deepcopy(more), planner=lambda: DefaultLoadPlanner(allow_partial_load=True))


# -- other formats -----------------------------------------------------------------


def written(bench, name, write):
    """A file or folder of that name in a folder of its own, written by rank 0."""
    folder = pathlib.Path(folder_of(bench))
    if bench.rank == 0:
        folder.mkdir()
        write(folder / name)
    dist.barrier()
    return str(folder / name)


def other_formats(bench):
    state = {name: tensor for name, tensor in numbers(Net()).items()}
    mesh = init_device_mesh("cpu", (WORLD,))
    def trainer(folder):
        folder.mkdir(exist_ok=True)
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        torch.save({"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": [{"params": [0]}]}, folder / "optimizer.pt")

    files = [
        written(bench, "", trainer),
        written(bench, "model.safetensors", lambda path: save_file(state, path, metadata={"format": "pt"})),
        written(bench, "model.bin", lambda path: torch.save(state, path)),
        written(bench, "all.pt", lambda path: torch.save({"model": {"up": state}, "step": 3}, path)),
    ]
    for path in files:
        prefix = "model.up." if path.endswith("all.pt") else ""
        mine = {prefix + name: distribute_tensor(torch.zeros_like(tensor), mesh, [Shard(0)]) if tensor.dim() else
                torch.zeros_like(tensor) for name, tensor in state.items()}
        dcp.load(mine, storage_reader=reader(bench, path))
        for name, tensor in state.items():
            found = mine[prefix + name]
            assert (found.full_tensor() if isinstance(found, DTensor) else found).equal(tensor), (path, name)


def hugging_face_readers_jobs(bench):
    state = get_model_state_dict(filled(fsdp, 0)[0])
    fresh = get_model_state_dict(filled(hsdp, 1)[0])
    sharded = folder_of(bench)
    dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(path=sharded, save_distributed=True))
    dist.barrier()
    one = written(bench, "", lambda path: save_file(numbers(Net()), path / "model.safetensors"))
    for path in (sharded, one):
        compare(bench, path, lambda: copy.deepcopy(fresh), theirs=dcp.HuggingFaceStorageReader)


def a_part_by_its_name(bench):
    path = saved(bench, {"model": numbers(Net()), "step": 3})
    whole = {"model": {name: torch.zeros_like(tensor) for name, tensor in numbers(Net()).items()}}
    dcp.load(whole, storage_reader=reader(bench, path))
    for options in ({"part": "model"}, {}):
        mine = {name: torch.zeros_like(tensor) for name, tensor in numbers(Net()).items()}
        dcp.load(mine, storage_reader=reader(bench, path if options else f"{path}#model", **options))
        assert_same(mine, whole["model"])


CASES = {WORLD: [
    each_mesh_to_each, sharded_tensors_of_fsdp1, flattened_optimizer_states, training_goes_on_alike, full_states_from_rank_0,
    only_the_needed_bytes_are_loaded_and_once, a_rank_that_reads_the_same_again_leaves_nobody_waiting, nested_values,
    other_types_are_cast_as_torch_does, stateful_objects, state_dicts_from_nothing, planners_of_others,
    each_rank_for_itself, some_of_the_ranks, ranks_that_read_nothing, two_ranks_save_and_three_and_one_load,
    from_a_thread, one_reader_many_times, parts_of_a_state, *FAILING, other_formats, hugging_face_readers_jobs,
    a_part_by_its_name,
]}
