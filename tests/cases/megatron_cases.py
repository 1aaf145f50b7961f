"""LoadStrategy over the folders that Megatron-Core wrote, at their sizes and at others, with plain objects."""

import argparse
import contextlib
import functools
import io
import json
import os
import shutil

import ckptd
import ckptd.megatron
import megatron_bench as mb
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ckptd.megatron import _objects
from megatron_objects import PLAIN
from spread_bench import fails, storage_bytes_of


@functools.lru_cache(maxsize=None)
def truth_of(folder):
    return mb.Truth(mb.FIXTURES / folder)


def strategy(bench, **more):
    return ckptd.megatron.LoadStrategy(address=bench.address, timeout=120, **more)


def rank_zero_s(bench, make):
    """A folder of this case that rank 0 makes by make(folder)."""
    bench.saved += 1
    folder = os.path.join(bench.folder, f"{bench.case}-{bench.saved}")
    if bench.rank == 0:
        make(folder)
    dist.barrier()
    return folder


def written(bench, state, backend="torch_dist"):
    """A folder that torch's DCP writes of rank 0's state dict, and the metadata.json of that backend."""
    def write(folder):
        dcp.save(state, checkpoint_id=folder, no_dist=True)
        with open(os.path.join(folder, "metadata.json"), "w") as file:
            json.dump({"sharded_backend": backend, "sharded_backend_version": 1}, file)

    return rank_zero_s(bench, write)


def packed(value):
    """An object as megatron-core stores it: DCP keeps the bytes of a file of torch."""
    file = io.BytesIO()
    torch.save([value], file)
    return file


class RawBytes(dcp.DefaultSavePlanner):
    def transform_object(self, write_item, object):
        return object


def with_objects(bench, tensors, objects):
    def write(folder):
        state = {**tensors, **{key: packed(value) for key, value in objects.items()}}
        dcp.save(state, checkpoint_id=folder, no_dist=True, planner=RawBytes(flatten_state_dict=False))

    return rank_zero_s(bench, write)


# -- whole folders ---------------------------------------------------------------------------------


def of_folder(bench, folder):
    truth = truth_of(folder)
    for name, facts in mb.expected(folder).items():
        assert mb.digest(truth.stored[name]) == facts["sha256"], name  # the files are what they should be
    for number, at in enumerate(mb.sizes(bench.rank, bench.world)):
        state, right = mb.model_of(PLAIN, truth, at, filled=number % 2 == 0)
        held = {key: [one.data for one in entry] for key, entry in state.items() if isinstance(entry, list)}
        found = strategy(bench).load(state, mb.FIXTURES / folder)
        mb.assert_same(found, right, f"{folder} at {at}")
        for key, tensors in held.items():
            for result, data in zip(found[key], tensors):
                if data is not None:
                    assert result.data_ptr() == data.data_ptr() and not result.requires_grad, key
                else:
                    result.add_(1)  # it may be written, and nobody else sees that


def loads(folder):
    def case(bench):
        of_folder(bench, folder)

    case.__name__ = folder
    return case


def common_values_are_those_that_were_saved(bench):
    for folder in mb.FOLDERS:
        found = strategy(bench).load_common(mb.FIXTURES / folder)
        assert mb.same(found, truth_of(folder).common), folder


# -- runs of flattened tensors ---------------------------------------------------------------------


def flat_of(bench, truth, at, kinds=PLAIN):
    """Optimizer states as megatron-core up to 0.15 asks for them: each rank a run of its shards, over all its shards."""
    state, right = {}, {}
    for key, whole in truth.tensors.items():
        if not key.startswith("optimizer."):
            continue
        for place in mb.places(key, tuple(whole.shape), at):
            lead, offsets, extents = place
            local = mb.box(whole, offsets, extents).reshape(extents[lead:])
            begin, length = mb.part(local.numel(), at.dp, at.d)
            data = mb.garbage((length,), whole.dtype) if at.d % 2 else None
            run = slice(begin, begin + length)
            state.setdefault(key, []).append(mb.sharded(kinds, key, whole, place, data, flattened_range=run))
            right.setdefault(key, []).append(local.reshape(-1)[run])
    return state, right


def flattened_ranges_are_runs_of_the_local_tensors(bench):
    truth = truth_of(mb.FLAT)
    for at in mb.sizes(bench.rank, bench.world):
        state, right = flat_of(bench, truth, at)
        mb.assert_same(strategy(bench).load(state, mb.FIXTURES / mb.FLAT), right, str(at))


def flat_runs_without_their_shape_are_loaded_at_the_sizes_of_the_save(bench):
    """Without mcore_data the tensor is what is stored: shards by shards by elements."""
    whole = torch.arange(48.0).reshape(6, 8)
    stored = whole.reshape(2, 3, 8).reshape(2, 1, 24)
    folder = written(bench, {"w": stored})
    half, run = bench.rank % 2, slice(3, 17)
    state = {"w": mb.sharded(PLAIN, "w", whole, (0, (3 * half, 0), (3, 8)), flattened_range=run)}
    right = whole[3 * half : 3 * half + 3].reshape(-1)[run]
    assert torch.equal(strategy(bench).load(state, folder)["w"], right)
    state = {"w": mb.sharded(PLAIN, "w", whole, (0, (2, 0), (2, 8)), flattened_range=slice(0, 4))}
    with fails(Exception, "mcore_data", "sizes at which it was saved"):
        strategy(bench).load(state, folder)


def a_run_may_be_empty_or_begin_and_end_within_a_row(bench):
    whole = torch.arange(2 * 4 * 3 * 5.0).reshape(2, 4, 3, 5)
    folder = written(bench, {"w": whole})
    runs = [(0, 0), (7, 7), (0, 60), (1, 2), (4, 6), (14, 16), (29, 46), (59, 60), (16, 18)]
    entries = [mb.sharded(PLAIN, "w", whole, (1, (bench.rank % 2, 0, 0, 0), (1, 4, 3, 5)), flattened_range=slice(*run))
               for run in runs]
    for entry, run in zip(entries, runs):  # alone, and all of them
        found = strategy(bench).load([entry], folder)
        assert torch.equal(found[0], whole[bench.rank % 2].reshape(-1)[slice(*run)]), run
    found = strategy(bench).load({"all": entries}, folder)["all"]
    for result, run in zip(found, runs):
        assert torch.equal(result, whole[bench.rank % 2].reshape(-1)[slice(*run)]), run


# -- tensors ---------------------------------------------------------------------------------------


def vocabularies_of_other_sizes_overlap_and_the_rest_is_zero(bench):
    stored = torch.arange(1.0, 49.0).reshape(12, 4)
    folder = written(bench, {"w": stored})
    for rows in (8, 12, 16, 40):
        share = rows // bench.world
        whole, place = torch.zeros(rows, 4), (0, (bench.rank * share, 0), (share, 4))
        whole[: min(rows, 12)] = stored[: min(rows, 12)]
        right = whole[bench.rank * share : (bench.rank + 1) * share]
        for data in (None, torch.full((share, 4), 9.0)):
            state = {"w": mb.sharded(PLAIN, "w", whole, place, data, allow_shape_mismatch=True)}
            assert torch.equal(strategy(bench).load(state, folder)["w"], right), rows
        run = slice(1, share * 4 - 1)
        state = {"w": mb.sharded(PLAIN, "w", whole, place, allow_shape_mismatch=True, flattened_range=run)}
        assert torch.equal(strategy(bench).load(state, folder)["w"], right.reshape(-1)[run]), rows


def types_are_those_of_the_entries(bench):
    stored = {"f": torch.linspace(-3, 3, 24).reshape(4, 6), "i": torch.arange(6), "b": torch.tensor([True, False])}
    folder = written(bench, stored)
    asked = {"f": torch.bfloat16, "i": torch.int32, "b": torch.uint8}
    for filled in (True, False):
        state = {}
        for key, dtype in asked.items():
            whole = stored[key].to(dtype)
            place = (0, (0,) * whole.dim(), tuple(whole.shape))
            state[key] = mb.sharded(PLAIN, key, whole, place, torch.zeros_like(whole) if filled else None)
        found = strategy(bench).load(state, folder)
        for key, dtype in asked.items():
            assert found[key].dtype == dtype and torch.equal(found[key], stored[key].to(dtype)), key


def odd_tensors_are_loaded(bench):
    stored = {"scalar": torch.tensor(4.0), "empty": torch.zeros(0, 3), "columns": torch.arange(12.0).reshape(3, 4)}
    folder = written(bench, stored)
    apart = torch.zeros(6, 2).t()[:, ::2]  # what is filled may have gaps
    state = {
        "scalar": mb.sharded(PLAIN, "scalar", stored["scalar"], (0, (), ()), torch.tensor(0.0)),
        "empty": mb.sharded(PLAIN, "empty", stored["empty"], (0, (0, 0), (0, 3))),
        1: [mb.sharded(PLAIN, "columns", stored["columns"], (0, (0, 2), (3, 2)), apart.t(), replica_id=1)],
        "again": {"deep": mb.sharded(PLAIN, "columns", stored["columns"], (0, (0, 0), (3, 4)))},
    }
    found = strategy(bench).load(state, folder)
    assert found["scalar"].shape == () and found["scalar"] == 4 and found["empty"].shape == (0, 3)
    assert torch.equal(found[1][0], stored["columns"][:, 2:]) and torch.equal(apart.t(), found[1][0])
    assert torch.equal(found["again"]["deep"], stored["columns"])


def a_folder_of_fsdp_dtensor_is_loaded_by_its_keys(bench):
    whole = torch.arange(24.0).reshape(8, 3)
    folder = written(bench, {"model": {"module.w": whole}, "optimizer": {"state": {"w": {"exp_avg": whole + 1}}}},
                     "fsdp_dtensor")
    share = 8 // bench.world
    place = (0, (bench.rank * share, 0), (share, 3))
    keys = {"model.module.w": whole, "optimizer.state.w.exp_avg": whole + 1}
    found = strategy(bench).load({key: mb.sharded(PLAIN, key, value, place) for key, value in keys.items()}, folder)
    for key, value in keys.items():
        assert torch.equal(found[key], value[bench.rank * share : (bench.rank + 1) * share]), key


def a_rank_may_ask_for_nothing(bench):
    whole = torch.arange(8.0)
    folder = written(bench, {"w": whole})
    assert strategy(bench).load({}, folder) == {}
    state = {} if bench.rank else {"w": mb.sharded(PLAIN, "w", whole, (0, (2,), (3,)))}
    found = strategy(bench).load(state, folder)
    assert found == {} if bench.rank else torch.equal(found["w"], whole[2:5])


def a_rank_that_asks_for_the_same_as_before_takes_part_in_another_load(bench):
    """Its daemon has that shard already, but the others' have not."""
    whole = torch.arange(8.0)
    folder = written(bench, {"w": whole, "v": whole + 1})
    for round in range(3):
        key = "w" if bench.rank else "wvw"[round]
        found = strategy(bench).load({"x": mb.sharded(PLAIN, key, whole, (0, (0,), (8,)))}, folder)
        assert torch.equal(found["x"], whole if key == "w" else whole + 1)


def ranks_that_ask_for_the_same_as_before_attach_to_what_the_daemons_have(bench):
    whole = torch.arange(8.0)
    folder = written(bench, {"w": whole})
    for round in range(3):
        found = strategy(bench).load({"w": mb.sharded(PLAIN, "w", whole, (0, (bench.rank,), (2,)))}, folder)
        assert torch.equal(found["w"], whole[bench.rank : bench.rank + 2])
    with ckptd.connect(bench.address) as client:
        assert len([one for one in client.list() if one.source.startswith(folder)]) == 1


def daemons_read_what_all_ranks_ask_for_once(bench):
    whole = torch.arange(2.0**18).reshape(-1, 64)
    folder = written(bench, {"w": whole, "other": whole + 1})
    state = {"w": mb.sharded(PLAIN, "w", whole, (0, (0, 0), tuple(whole.shape)), torch.zeros_like(whole))}
    assert torch.equal(strategy(bench).load(state, folder)["w"], whole)
    dist.barrier()
    read = storage_bytes_of(bench, f"{folder}#all")
    assert whole.nbytes <= read < 1.1 * whole.nbytes, f"{read} bytes were read for {whole.nbytes}"


# -- values that are no tensors --------------------------------------------------------------------


class Unknown:
    """A class of which no file may make objects."""

    made = 0

    def __setstate__(self, state):
        Unknown.made += 1


VALUES = {"none": None, "bytes": io.BytesIO(b"abc"), "empty": io.BytesIO(), "args": argparse.Namespace(lr=0.5, betas=(1, 2)),
          "tensor": torch.arange(3.0), "nested": {"a": [1, {"b": "c"}]}}


def object_key(name):
    return f"{name}/shard_0_1"


def object_of(name):
    return PLAIN.ShardedObject(name, None, (1,), (0,))


def objects_are_what_was_saved(bench):
    folder = with_objects(bench, {}, {object_key(name): value for name, value in VALUES.items()})
    torch.serialization.add_safe_globals([argparse.Namespace])
    before = set(torch.serialization.get_safe_globals())
    found = strategy(bench).load({name: object_of(name) for name in VALUES}, folder)
    mb.assert_same(found, VALUES, folder)
    assert set(torch.serialization.get_safe_globals()) == before, "what is named to torch stays named"


def objects_of_other_classes_are_made_only_by_leave(bench):
    folder = with_objects(bench, {"w": torch.zeros(2)}, {object_key("u"): Unknown()})
    with fails(Exception, "Unknown"):
        strategy(bench).load({"u": object_of("u")}, folder)
    assert Unknown.made == 0
    assert type(strategy(bench, allow=[Unknown]).load({"u": object_of("u")}, folder)["u"]) is Unknown
    trusted = functools.partial(torch.load, weights_only=False)
    assert type(strategy(bench, unpickle=trusted).load({"u": object_of("u")}, folder)["u"]) is Unknown


def common_values_of_another_class_are_refused_on_every_rank(bench):
    def write(folder):
        os.makedirs(folder)
        torch.save({"args": Unknown()}, os.path.join(folder, "common.pt"))

    folder = rank_zero_s(bench, write)
    with fails(Exception, "Unknown"):
        strategy(bench).load_common(folder)
    dist.barrier()


# -- failures --------------------------------------------------------------------------------------


def entry_of(whole, **more):
    return mb.sharded(PLAIN, "w", whole, (0, (0,) * whole.dim(), tuple(whole.shape)), **more)


@contextlib.contextmanager
def only_first_fails(bench, kind, *parts):
    """Rank 0 raises `kind` with these words, and the others its words, with its number."""
    if bench.rank == 0:
        with fails(kind, *parts):
            yield
    else:
        with fails((RuntimeError, TypeError), "rank 0: ", *parts):
            yield


def what_one_rank_cannot_load_fails_on_all_with_its_reason(bench):
    whole = torch.arange(8.0)
    folder = with_objects(bench, {"w": whole, "v.w": whole}, {object_key("o"): 1})
    kind = _objects.CheckpointingException
    for wrong, kind, *parts in (
        (mb.sharded(PLAIN, "u.w", whole, (0, (0,), (8,))), kind, "no 'u.w'", "'v.w'", "strict="),
        (object_of("p"), kind, "no 'p/shard_0_1'"),
        (mb.sharded(PLAIN, "o/shard_0_1", whole, (0, (0,), (8,))), kind, "no 'o/shard_0_1'"),
        (PLAIN.ShardedObject("w", None, (1,), (0,)), kind, "no 'w/shard_0_1'"),
        (entry_of(torch.zeros(9)), kind, "(9,) here and (8,) in the checkpoint"),
        (entry_of(torch.zeros(8, 1)), kind, "(8, 1) here"),
        (entry_of(torch.zeros(8, 1), allow_shape_mismatch=True), kind, "(8, 1) here"),
        (object(), TypeError, "neither a ShardedTensor nor a ShardedObject"),
    ):
        good = entry_of(whole, data=torch.zeros(8))
        with only_first_fails(bench, (kind, TypeError), *parts):
            strategy(bench).load({"w": good, "x": wrong if bench.rank == 0 else entry_of(whole)}, folder)
        assert not good.data.any(), "filled before all ranks were ready"
        assert torch.equal(strategy(bench).load({"w": good}, folder)["w"], whole)


def ranks_that_ask_for_other_folders_hear_so(bench):
    whole = torch.arange(8.0)
    one, other = written(bench, {"w": whole}), written(bench, {"w": whole})
    with fails(RuntimeError, "do not ask for the same"):
        strategy(bench).load({"w": entry_of(whole)}, other if bench.rank else one)


def a_folder_that_is_not_there_is_an_error_on_every_rank(bench):
    with fails((ckptd.NotFound, RuntimeError), "nowhere"):
        strategy(bench).load({"w": entry_of(torch.zeros(2))}, os.path.join(bench.folder, "nowhere"))


def a_folder_without_a_file_is_an_error_on_every_rank(bench):
    def write(folder):
        shutil.copytree(mb.FIXTURES / mb.FOLDERS[0], folder)
        os.unlink(os.path.join(folder, "__0_0.distcp"))

    folder = rank_zero_s(bench, write)
    with fails(ckptd.Error, "__0_0.distcp"):
        strategy(bench).load({"w": entry_of(torch.zeros(2))}, folder)


def forms_that_are_not_read_are_refused(bench):
    own = strategy(bench)
    for backend in ("torch_dist", "fsdp_dtensor", "torch"):
        own.check_backend_compatibility(backend)
    own.check_version_compatibility(1)
    with fails(Exception, "'zarr'"):
        own.check_backend_compatibility("zarr")
    with fails(Exception, "version is 2"):
        own.check_version_compatibility(2)
    assert own.can_handle_sharded_objects is True


EVERYWHERE = [
    flattened_ranges_are_runs_of_the_local_tensors, flat_runs_without_their_shape_are_loaded_at_the_sizes_of_the_save,
    a_run_may_be_empty_or_begin_and_end_within_a_row, vocabularies_of_other_sizes_overlap_and_the_rest_is_zero,
    a_folder_of_fsdp_dtensor_is_loaded_by_its_keys, a_rank_may_ask_for_nothing,
    a_rank_that_asks_for_the_same_as_before_takes_part_in_another_load,
    ranks_that_ask_for_the_same_as_before_attach_to_what_the_daemons_have,
    what_one_rank_cannot_load_fails_on_all_with_its_reason, daemons_read_what_all_ranks_ask_for_once,
]
ON_TWO = [
    common_values_are_those_that_were_saved, types_are_those_of_the_entries, odd_tensors_are_loaded,
    objects_are_what_was_saved, objects_of_other_classes_are_made_only_by_leave,
    common_values_of_another_class_are_refused_on_every_rank, ranks_that_ask_for_other_folders_hear_so,
    a_folder_that_is_not_there_is_an_error_on_every_rank, a_folder_without_a_file_is_an_error_on_every_rank,
    forms_that_are_not_read_are_refused,
]
WHOLE = [loads(folder) for folder in mb.FOLDERS]
CASES = {2: [*WHOLE, *EVERYWHERE, *ON_TWO], 4: [*WHOLE, *EVERYWHERE]}
