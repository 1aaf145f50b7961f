"""Demands of torch's own tests on its tools for files, in our words: conversions, and DCP's safetensors.

They come from torch's test_format_utils, test_hf_storage, test_hf_safetensor_e2e and test_consolidate_hf_safetensors.
Scenarios know nothing of ckptd: each has `bench.files`, which is ByTorch or ByCkptd.
"""

import json
import math
import pathlib
import subprocess
import traceback

import ckptd
import ckptd.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from group import BINARIES
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.checkpoint import format_utils
from torch.distributed.checkpoint._consolidate_hf_safetensors import (
    consolidate_safetensors_files,
    consolidate_safetensors_files_on_every_rank,
)
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

PATIENCE = 60
INDEX = "model.safetensors.index.json"


def once(bench, work):
    """Rank 0 does it; all ranks go on when it is done, and fail if it failed."""
    said = [None]
    if bench.rank == 0:
        try:
            work()
        except Exception:
            said = [traceback.format_exc()]
    dist.broadcast_object_list(said)
    assert said[0] is None, said[0]


class ByTorch:
    """Torch's own tools, called as its tests do."""

    # Torch 2.13 asks torch.finfo for the size of an element, which knows no integers.
    consolidates = (torch.float32, torch.bfloat16, torch.float64)

    def __init__(self, bench):
        self.bench = bench

    def to_torch(self, folder, file):
        once(self.bench, lambda: format_utils.dcp_to_torch_save(folder, file))

    def to_dcp(self, file, folder):
        once(self.bench, lambda: format_utils.torch_save_to_dcp(file, folder))

    def consolidate(self, folder, out, names, most_bytes=None, together=False):
        """Into one file, or, with most_bytes, into one for each name. together: by all ranks."""
        mapping = {name: number if most_bytes else 1 for number, name in enumerate(names, 1)}
        once(self.bench, out.mkdir)
        if together:
            consolidate_safetensors_files_on_every_rank(str(folder), str(out), mapping)
        else:
            once(self.bench, lambda: consolidate_safetensors_files(str(folder), str(out), mapping))

    def fill(self, model, source):
        if source.is_file():
            how = {"planner": format_utils.DynamicMetaLoadPlanner(),
                   "storage_reader": format_utils.BroadcastingTorchSaveReader()}
            dcp.load({"model": model}, checkpoint_id=source, **how)
        elif (source / ".metadata").exists():
            dcp.load({"model": model}, checkpoint_id=source)
        else:
            state = model.state_dict()
            dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(source)))
            model.load_state_dict(state)

    def read(self, folder):
        return _load_state_dict_from_keys(storage_reader=dcp.HuggingFaceStorageReader(str(folder)))

    def describe(self, folder):
        """name -> (dtype, shape)."""
        metadata = dcp.HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
        return {name: (one.properties.dtype, tuple(one.size)) for name, one in metadata.items()}


class ByCkptd:
    """The same by ckptctl, and by loads from the daemons."""

    consolidates = (*ByTorch.consolidates, torch.int64, torch.int32, torch.uint8, torch.bool)

    def __init__(self, bench):
        self.bench = bench

    def _ctl(self, *words):
        done = subprocess.run([BINARIES / "ckptctl", *words, "--quiet"], capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr

    def to_torch(self, folder, file):
        once(self.bench, lambda: self._ctl("convert", f"{folder}#all", file))

    def to_dcp(self, file, folder):
        once(self.bench, lambda: self._ctl("convert", f"{file}#all", folder, "--to", "dcp"))

    def consolidate(self, folder, out, names, most_bytes=None, together=False):
        words = ["convert", folder, out, "--max-shard-size", str(most_bytes)] if most_bytes else ["merge", folder, out]
        once(self.bench, lambda: self._ctl(*words))

    def fill(self, model, source):
        ckptd.torch.load_into(model, source, address=self.bench.address)

    def read(self, folder):
        return ckptd.torch.load_file(folder, address=self.bench.address)

    def describe(self, folder):
        with ckptd.connect(self.bench.address) as client:
            found = client.inspect(folder).tensors
        return {name: (getattr(torch, ckptd._dtypes.BY_NAME[one.dtype].torch), tuple(one.shape))
                for name, one in found.items()}


def place(bench):
    """A new folder for this scenario, the same on every rank."""
    bench.saved += 1
    folder = pathlib.Path(bench.folder, f"{bench.case} {bench.saved}")
    once(bench, folder.mkdir)
    return folder


def assert_same(found, state):
    assert found.keys() == state.keys(), found.keys() ^ state.keys()
    for name, value in state.items():
        got = found[name].full_tensor() if isinstance(found[name], DTensor) else found[name]
        assert got.dtype == value.dtype and torch.equal(got, value), name


# -- files of torch.save, and DCP ----------------------------------------------


def uneven(seed=0):
    """No width is a multiple of another rank count than one."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 15), nn.ReLU(), nn.Linear(15, 30), nn.Linear(30, 5))


def sharded(seed=0):
    model = uneven(seed)
    for layer in model[::2]:
        fully_shard(layer)
    return fully_shard(model)


def what_ranks_saved_becomes_a_file_of_torch(bench):
    folder = place(bench)
    for name, build in (("whole", uneven), ("sharded", sharded)):
        dcp.save({"model": build()}, checkpoint_id=folder / name)
        bench.files.to_torch(folder / name, folder / f"{name}.pt")
        found, _ = flatten_state_dict(torch.load(folder / f"{name}.pt", weights_only=True))
        assert_same(found, {f"model.{name}": value for name, value in uneven().state_dict().items()})


def a_file_of_torch_becomes_what_ranks_load(bench):
    folder, state = place(bench), uneven().state_dict()
    once(bench, lambda: torch.save({"model": state}, folder / "model.pt"))
    bench.files.to_dcp(folder / "model.pt", folder / "dcp")
    for build in (uneven, sharded):
        model = build(seed=1)
        dcp.load({"model": model}, checkpoint_id=folder / "dcp")
        assert_same(model.state_dict(), state)


def both_conversions_bring_back_every_bit(bench):
    folder = place(bench)
    state = {f"of.{dtype}": torch.arange(-6, 6).reshape(3, 4).to(dtype)
             for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool,
                           torch.complex64)}
    state |= {"turned": torch.arange(12.0).reshape(3, 4).t(), "part": torch.arange(12.0)[3:7], "scalar": torch.tensor(2.5),
              "nothing": torch.empty(0, 3), "no number": torch.tensor([math.nan, math.inf, -0.0]).view(torch.int32)}
    once(bench, lambda: torch.save(state, folder / "before.pt"))
    bench.files.to_dcp(folder / "before.pt", folder / "dcp")
    bench.files.to_torch(folder / "dcp", folder / "after.pt")
    assert_same(torch.load(folder / "after.pt", weights_only=True), state)


def a_file_of_torch_fills_a_sharded_model(bench):
    folder, state = place(bench), uneven().state_dict()
    once(bench, lambda: torch.save({"model": state}, folder / "model.pt"))
    model = FullyShardedDataParallel(uneven(seed=1), device_id=torch.device("cpu"), use_orig_params=True)
    bench.files.fill(model, folder / "model.pt")
    assert_same(model.state_dict(), state)


def what_ranks_saved_fills_a_model_that_is_sharded_otherwise(bench):
    folder = place(bench)
    dcp.save({"model": sharded()}, checkpoint_id=folder)
    for build in (uneven, sharded, lambda seed: fully_shard(uneven(seed))):
        model = build(seed=1)
        bench.files.fill(model, folder)
        assert_same(model.state_dict(), uneven().state_dict())


# -- DCP's safetensors ---------------------------------------------------------


def wholes(dtypes=(torch.float32,)):
    """Tensors of one, two and three dimensions for each dtype; every element is another one, where it can be."""
    shapes = {"square": (4, 4), "odd": (5, 3), "row": (7,), "block": (2, 3, 4)}
    return {f"{name} of {str(dtype)[6:]}": torch.arange(math.prod(shape)).reshape(shape).to(dtype)
            for name, shape in shapes.items() for dtype in dtypes}


class Placed(nn.Module):
    """A parameter for each tensor, all placed alike."""

    def __init__(self, tensors, mesh, placements):
        super().__init__()
        for name, tensor in tensors.items():
            own = tuple(place if not isinstance(place, Shard) or place.dim < tensor.dim() else Replicate()
                        for place in placements)
            self.register_parameter(name, nn.Parameter(distribute_tensor(tensor, mesh, own), requires_grad=False))


def zeros_like(tensors):
    return {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}


def save_sharded(folder, model, **options):
    writer = dcp.HuggingFaceStorageWriter(path=str(folder), save_distributed=True, **options)
    dcp.save(model.state_dict(), storage_writer=writer)
    dist.barrier()


def meshes():
    """(mesh, placements) of every kind that two ranks have."""
    line, tall, wide = (init_device_mesh("cpu", shape) for shape in ((2,), (2, 1), (1, 2)))
    for placement in (Replicate(), Shard(0), Shard(1), Shard(2)):
        yield line, (placement,)
    for plane in (tall, wide):
        for placements in ((Replicate(), Shard(0)), (Shard(0), Replicate()), (Shard(0), Shard(0)), (Shard(1), Shard(0))):
            yield plane, placements


def what_is_sharded_one_way_is_loaded_another(bench):
    tensors, folder, kinds = wholes(), place(bench), list(meshes())
    for number, kind in enumerate(kinds):
        saved = folder / str(number)
        save_sharded(saved, Placed(tensors, *kind))
        for step in (0, 1, 5):  # each of them loads three of them
            model = Placed(zeros_like(tensors), *kinds[(number + step) % len(kinds)])
            bench.files.fill(model, saved)
            assert_same(model.state_dict(), tensors)


def a_shard_may_be_empty(bench):
    folder, mesh = place(bench), init_device_mesh("cpu", (2,))
    tensors = {"one": torch.tensor([3.5]), "three": torch.arange(3.0)}
    save_sharded(folder, Placed(tensors, mesh, (Shard(0),)))
    for placements in ((Shard(0),), (Replicate(),)):
        model = Placed(zeros_like(tensors), mesh, placements)
        bench.files.fill(model, folder)
        assert_same(model.state_dict(), tensors)


def dtypes_and_shapes_are_known_from_headers(bench):
    tensors = wholes((torch.float32, torch.bfloat16, torch.int64, torch.bool))
    expected = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    folder = place(bench)
    once(bench, lambda: (folder / "plain").mkdir())
    once(bench, lambda: save_file(tensors, folder / "plain/test.safetensors"))
    for dim in range(2):
        mesh = init_device_mesh("cpu", (2,))
        save_sharded(folder / f"sharded {dim}", Placed(tensors, mesh, (Shard(dim),)))
    for saved in ("plain", "sharded 0", "sharded 1"):
        assert bench.files.describe(folder / saved) == expected, saved


def what_safetensors_wrote_is_read_by_its_names_alone(bench):
    folder, state = place(bench), uneven().state_dict()
    once(bench, lambda: save_file(state, folder / "model-00001-of-00001.safetensors"))
    assert_same(bench.files.read(folder), state)
    model = sharded(seed=1)
    bench.files.fill(model, folder)
    assert_same(model.state_dict(), state)


def what_rank_0_saved_in_files_by_name_is_read(bench):
    folder, state = place(bench), uneven().state_dict()
    files = {name: 1 + number % 3 for number, name in enumerate(state)}
    once(bench, lambda: dcp.save(state, no_dist=True, storage_writer=dcp.HuggingFaceStorageWriter(
        path=str(folder), fqn_to_index_mapping=files)))
    assert len(list(folder.glob("model-0000?-of-00003.safetensors"))) == 3
    assert_same(bench.files.read(folder), state)
    model = sharded(seed=1)
    bench.files.fill(model, folder)
    assert_same(model.state_dict(), state)


# -- consolidation -------------------------------------------------------------


def assert_consolidated(folder, tensors):
    """Stock safetensors reads it; where there is an index it tells the truth."""
    files = {path.name: load_file(path) for path in folder.glob("*.safetensors")}
    assert_same({name: tensor for held in files.values() for name, tensor in held.items()}, tensors)
    if len(files) > 1 or (folder / INDEX).exists():
        index = json.loads((folder / INDEX).read_text())
        assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
        assert index["weight_map"] == {name: file for file, held in files.items() for name in held}
    return len(files)


def two_ways(bench):
    """The same square, sharded by rows and by columns; the folder, and what it holds."""
    square, mesh = torch.arange(16.0).reshape(4, 4), init_device_mesh("cpu", (2,))
    model, folder = Placed({"rows": square}, mesh, (Shard(0),)), place(bench)
    model.columns = Placed({"columns": square}, mesh, (Shard(1),)).columns
    save_sharded(folder / "sharded", model)
    return folder, {"rows": square, "columns": square}


def shards_become_one_file(bench):
    folder, tensors = two_ways(bench)
    for together in (False, True):
        out = folder / f"out {together}"
        bench.files.consolidate(folder / "sharded", out, tensors, together=together)
        assert assert_consolidated(out, tensors) == 1


def shards_become_two_files(bench):
    folder, tensors = two_ways(bench)
    for together in (False, True):
        out = folder / f"out {together}"
        bench.files.consolidate(folder / "sharded", out, tensors, most_bytes=64, together=together)
        assert assert_consolidated(out, tensors) == 2


def shards_of_every_kind_become_wholes(bench):
    tensors, folder = wholes(bench.files.consolidates), place(bench)
    for number, (mesh, placements) in enumerate(meshes()):
        saved, out = folder / str(number), folder / f"out {number}"
        save_sharded(saved, Placed(tensors, mesh, placements))
        bench.files.consolidate(saved, out, tensors)
        assert assert_consolidated(out, tensors) == 1


def what_is_consolidated_while_saving_is_read_whole_and_by_its_shards(bench):
    folder, mesh, tensors = place(bench), init_device_mesh("cpu", (2,)), wholes()
    save_sharded(folder, Placed(tensors, mesh, (Shard(0),)), enable_consolidation=True,
                 fqn_to_index_mapping={name: 1 + number % 2 for number, name in enumerate(tensors)})
    assert assert_consolidated(folder, tensors) == 2
    for saved in (folder, folder / "sharded"):
        assert_same(bench.files.read(saved), tensors)
        model = Placed(zeros_like(tensors), mesh, (Shard(1),))
        bench.files.fill(model, saved)
        assert_same(model.state_dict(), tensors)


SCENARIOS = [
    what_ranks_saved_becomes_a_file_of_torch,
    a_file_of_torch_becomes_what_ranks_load,
    both_conversions_bring_back_every_bit,
    a_file_of_torch_fills_a_sharded_model,
    what_ranks_saved_fills_a_model_that_is_sharded_otherwise,
    what_is_sharded_one_way_is_loaded_another,
    a_shard_may_be_empty,
    dtypes_and_shapes_are_known_from_headers,
    what_safetensors_wrote_is_read_by_its_names_alone,
    what_rank_0_saved_in_files_by_name_is_read,
    shards_become_one_file,
    shards_become_two_files,
    shards_of_every_kind_become_wholes,
    what_is_consolidated_while_saving_is_read_whole_and_by_its_shards,
]
