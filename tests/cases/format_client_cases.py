"""Every function that takes a path, by every form in which a model is saved.

Each function loads what the original one makes of the state dict that the format's own reader gives.
"""

import json
import os
import pathlib

import ckptd
import ckptd.accelerate
import ckptd.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from accelerate.utils import modeling
from fsdp_bench import Net, copied, numbers
from safetensors.torch import load_file, save_file
from spread_bench import (
    BROADCAST,
    Bare,
    accelerates,
    assert_equal,
    filled_before,
    only_on_first,
    ours,
    settle_buffers,
    sharded,
)
from torch.distributed.checkpoint.state_dict import set_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

WORLD = 2


# -- forms: each is written by all ranks, into a folder; what is opened, and what its own reader reads -----


def halves(state):
    names = sorted(state)
    return {name: names[0::2] if number else names[1::2] for number, name in enumerate(("a", "b"))}


def in_two_files(folder, state, stem, ending, save):
    """Files of a series, and their index."""
    held = {f"{stem}-{number:05}-of-00002{ending}": names for number, names in enumerate(halves(state).values(), 1)}
    for file, names in held.items():
        save({name: state[name] for name in names}, folder / file)
    where = {name: file for file, names in held.items() for name in names}
    (folder / f"{stem}{ending}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def save_tensors(state, path):
    save_file(state, path, metadata={"format": "pt"})


def turned(state):
    """Every other matrix is a view of its transpose."""
    return {name: tensor.t().contiguous().t() if tensor.dim() == 2 and number % 2 else tensor
            for number, (name, tensor) in enumerate(state.items())}


def load_torch(path):
    return torch.load(path, weights_only=True)


def load_all(read, folder, ending):
    return {name: tensor for path in folder.glob(f"*{ending}") for name, tensor in read(path).items()}


class WithoutIntegers(Net):
    """Torch 2.13 asks torch.finfo for the size of what it consolidates."""

    def __init__(self):
        super().__init__()
        del self.steps


class Form:
    """One way to save a model.

    save(folder, state): on rank 0, or by_all ranks. opened: what is named in the folder, else that itself.
    read(folder): the state dict that the format's own reader gives. views: whether it keeps them.
    by_accelerate: whether its load_checkpoint_in_model finds the model there. model: what it can hold, with
    buffers.
    """

    def __init__(self, name, save, read, opened="", by_all=False, views=False, by_accelerate=True, model=Net):
        self.name, self.save, self.read, self.opened, self.by_all = name, save, read, opened, by_all
        self.views, self.by_accelerate, self.model = views, by_accelerate, model

    def written(self, bench, state, views=True):
        """(what is opened, the state dict that is read from it). views: may be among the tensors."""
        bench.saved += 1
        folder = pathlib.Path(bench.folder, f"{bench.case} {bench.saved}")
        if bench.rank == 0:
            folder.mkdir()
        dist.barrier()
        if self.by_all or bench.rank == 0:
            self.save(folder, turned(state) if views and self.views else state)
        dist.barrier()
        # torch sends the memory below a view, which is in another order.
        read = {name: tensor.contiguous() for name, tensor in self.read(folder).items()}
        return folder / self.opened if self.opened else folder, read


def by_ranks(state):
    """As FSDP2 has it on each of the ranks."""
    mesh = init_device_mesh("cpu", (WORLD,))
    return {name: distribute_tensor(tensor, mesh, [Shard(0) if tensor.dim() else Replicate()])
            for name, tensor in state.items()}


def save_training(folder, state):
    dcp.save({"model": by_ranks(state), "optimizer": {"state": {"up.weight": {"step": torch.tensor(4.0)}}}, "step": 4},
             checkpoint_id=folder)


def save_hugging_face(folder, state, **options):
    writer = dcp.HuggingFaceStorageWriter(path=str(folder), save_distributed=True, **options)
    dcp.save(by_ranks(state), storage_writer=writer)


def read_dcp(folder, key=""):
    state = _load_state_dict_from_keys(keys={key} if key else None, checkpoint_id=folder)
    return state[key] if key else state


def read_hugging_face(folder):
    return _load_state_dict_from_keys(storage_reader=dcp.HuggingFaceStorageReader(str(folder)))


def save_legacy(folder, state):
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)


def save_lightning(folder, state):
    torch.save({"epoch": 3, "state_dict": state, "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(3)}}}]},
               folder / "last.ckpt")


BIN, TENSORS = "pytorch_model.bin", "model.safetensors"
FORMS = [
    Form("safetensors", lambda f, s: save_tensors(s, f / TENSORS), lambda f: load_file(f / TENSORS), TENSORS),
    Form("safetensors in two files", lambda f, s: in_two_files(f, s, "model", ".safetensors", save_tensors),
         lambda f: load_all(load_file, f, ".safetensors")),
    Form("torch", lambda f, s: torch.save(s, f / BIN), lambda f: load_torch(f / BIN), BIN, views=True),
    Form("a folder of torch", lambda f, s: torch.save(s, f / BIN), lambda f: load_torch(f / BIN)),
    Form("torch of another name", lambda f, s: torch.save(s, f / "weights.pth"), lambda f: load_torch(f / "weights.pth"),
         "weights.pth"),
    Form("torch before 1.6", save_legacy, lambda f: load_torch(f / BIN), BIN),
    Form("torch in two files", lambda f, s: in_two_files(f, s, "pytorch_model", ".bin", torch.save),
         lambda f: load_all(load_torch, f, ".bin"), views=True),
    Form("torch in two files by the index", lambda f, s: in_two_files(f, s, "pytorch_model", ".bin", torch.save),
         lambda f: load_all(load_torch, f, ".bin"), f"{BIN}.index.json"),
    Form("Lightning", save_lightning, lambda f: load_torch(f / "last.ckpt")["state_dict"], "last.ckpt",
         by_accelerate=False),
    Form("DCP", lambda f, s: dcp.save(by_ranks(s), checkpoint_id=f), read_dcp, by_all=True, by_accelerate=False),
    Form("DCP of a training", save_training, lambda f: read_dcp(f, "model"), by_all=True, by_accelerate=False),
    Form("DCP as safetensors", save_hugging_face, read_hugging_face, by_all=True, by_accelerate=False),
    Form("DCP as safetensors, consolidated", lambda f, s: save_hugging_face(f, s, enable_consolidation=True),
         read_hugging_face, by_all=True, model=WithoutIntegers),
]


# -- functions -----------------------------------------------------------------


def load_into(bench, form):
    path, read = form.written(bench, numbers(form.model()))
    theirs, mine = filled_before(form.model, read), sharded(form.model)
    bench.load(mine, path)
    settle_buffers(theirs)
    assert_equal(mine, theirs, form.name)


def by_set_model_state_dict(bench, form):
    path, read = form.written(bench, numbers(Bare()))
    theirs, everywhere, first = sharded(Bare), sharded(Bare), sharded(Bare)
    set_model_state_dict(theirs, only_on_first(bench, read), options=BROADCAST)
    ckptd.torch.set_model_state_dict(everywhere, path, address=bench.address)
    ckptd.torch.set_model_state_dict(first, path if bench.rank == 0 else {}, options=BROADCAST, address=bench.address)
    for mine in (everywhere, first):
        assert_equal(mine, theirs, form.name)


def by_dist_module(bench, form):
    path, read = form.written(bench, numbers(Bare()))
    theirs, mine = filled_before(Bare, read), sharded(Bare)
    module = ckptd.torch.DistModule(mine, address=bench.address)
    result = module.load_state_dict(path if bench.rank == 0 else {})
    assert not result.missing_keys and not result.unexpected_keys, result
    assert_equal(mine, theirs, form.name)


def by_accelerate_s_full_state_dict(bench, form):
    path, read = form.written(bench, numbers(Bare()))
    theirs, mine = sharded(Bare), sharded(Bare)
    accelerates(bench, theirs, copied(read))
    ours(bench, mine, path if bench.rank == 0 else {})
    assert_equal(mine, theirs, form.name)


def by_a_lazy_dict(bench, form):
    """It has the names that are in the file, which in Lightning's are deeper."""
    path, read = form.written(bench, numbers(Bare()))
    lazy = ckptd.torch.load_state_dict(path, address=bench.address)
    if bench.rank == 0:
        lazy = lazy.get("state_dict", lazy)
        assert lazy.keys() == read.keys()
        assert all(torch.equal(lazy[name], read[name]) for name in read)
    theirs, mine = sharded(Bare), sharded(Bare)
    set_model_state_dict(theirs, only_on_first(bench, read), options=BROADCAST)
    ckptd.torch.set_model_state_dict(mine, lazy, options=BROADCAST, address=bench.address)
    assert_equal(mine, theirs, form.name)


def by_load_file(bench, form):
    path, read = form.written(bench, numbers(form.model()))
    found = ckptd.torch.load_file(path, address=bench.address)
    assert found.keys() == read.keys()
    assert all(torch.equal(found[name], read[name]) and found[name].dtype == read[name].dtype for name in read)


def by_load_checkpoint_in_model(bench, form):
    state = numbers(Bare())
    path, read = form.written(bench, state)
    same, _ = form.written(bench, state, views=False)
    for device_map in (None, {"": "cpu"}):
        theirs, mine = Bare(), Bare()
        if device_map is None:
            fully_shard(theirs)
            fully_shard(mine)
        how = {"device_map": device_map, "broadcast_from_rank0": device_map is None}
        modeling.load_checkpoint_in_model(theirs, os.fspath(same), **how)
        ckptd.accelerate.load_checkpoint_in_model(mine, os.fspath(path), **how, address=bench.address)
        assert_equal(mine, theirs, f"{form.name}, {device_map}")


def adapters_are_loaded_as_by_peft(bench):
    """Its files leave the adapter's name out."""
    import peft

    def with_adapter():
        torch.manual_seed(1)
        return peft.get_peft_model(Bare(), peft.LoraConfig(r=2, target_modules=["up", "down"], init_lora_weights=False))

    saved = with_adapter()
    with torch.no_grad():
        for number, parameter in enumerate(saved.parameters()):
            parameter.fill_(number)
    for safe, file in ((True, "adapter_model.safetensors"), (False, "adapter_model.bin")):
        folder = pathlib.Path(bench.folder, f"adapter {safe}")
        if bench.rank == 0:
            saved.save_pretrained(folder, safe_serialization=safe)
            assert (folder / file).exists()
        dist.barrier()
        theirs, mine = with_adapter(), with_adapter()
        peft.set_peft_model_state_dict(theirs, peft.load_peft_weights(folder, device="cpu"))
        result = bench.load(mine, folder, strict=False, rename=[(r"\.lora_([AB])\.", r".lora_\1.default.")])
        assert not result.unexpected, result
        assert_equal(mine, theirs, file)


FUNCTIONS = [load_into, by_set_model_state_dict, by_dist_module, by_accelerate_s_full_state_dict, by_a_lazy_dict,
             by_load_file, by_load_checkpoint_in_model]


def case(function, form):
    def run(bench):
        function(bench, form)

    run.__name__ = f"{form.name}, {function.__name__}"
    return run


CASES = {WORLD: [adapters_are_loaded_as_by_peft,
                 *(case(function, form) for form in FORMS for function in FUNCTIONS
                   if function is not by_load_checkpoint_in_model or form.by_accelerate)]}
