"""One rank that loads small models of many architectures in three ways, natively and from the daemons.

architectures_worker.py FOLDER RANK WORLD KIND... writes FOLDER/rank-R.json: "kind, way" ->
null, what differs, CONVERTED where load_into names from_pretrained, or the error that both have.
"""

import json
import os
import pathlib
import sys
import traceback

import ckptd
import ckptd.torch
import tiny_models
import torch
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers.distributed import DistributedConfig
from transformers_cases import difference, facts_of

transformers.logging.disable_progress_bar()
transformers.logging.set_verbosity_error()

CONVERTED = "from_pretrained does it"


def parts_of(model, rank, world, sharded):
    """name -> (type, this rank's part of it as FSDP2 cuts), ours or of a whole model."""
    found = {}
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]:
        cut = isinstance(tensor, torch.nn.Parameter)
        tensor = tensor.detach()
        if sharded:
            part = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        else:
            chunks = tensor.chunk(world) if cut else [tensor] * world
            part = chunks[rank] if rank < len(chunks) else tensor[:0]
        found[name] = (str(tensor.dtype), tuple(part.shape), part.contiguous().reshape(-1).view(torch.uint8).tolist())
    return found


def by_load_into(kind, path, rank, world, address):
    native = tiny_models.auto(kind).from_pretrained(path)
    with torch.device("meta"):
        model = tiny_models.auto(kind).from_config(tiny_models.config(kind))
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    try:
        ckptd.torch.load_into(model, path, address=address, timeout=60)
    except ckptd.Error as error:
        return CONVERTED if f"use {type(native).__name__}.from_pretrained under ckptd.patch()" in str(error) else str(error)
    return difference(parts_of(native, rank, world, False), parts_of(model, rank, world, True), "model")


def by_from_pretrained(kind, path, address, **sizes):
    def load():
        try:
            model = tiny_models.auto(kind).from_pretrained(path, distributed_config=DistributedConfig(**sizes))
        except Exception as error:  # what an architecture has not, it has not under the patch either
            return {"error": type(error).__name__}
        return facts_of(model)

    native = load()
    with ckptd.patch(address=address, timeout=60):
        found = difference(native, load(), "model")
    return found or (f"{native['error']} natively" if "error" in native else None)


def main():
    folder, rank, world = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    address = os.environ["CKPTD_TEST_ADDRESS"]
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(str(folder / "store"), world)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)
    results = {}
    for kind in sys.argv[4:]:
        path = folder / kind
        if rank == 0:
            tiny_models.made(kind).save_pretrained(path)
        torch.distributed.barrier()
        for way, load in (
            ("load_into", lambda: by_load_into(kind, path, rank, world, address)),
            ("fsdp", lambda: by_from_pretrained(kind, path, address, fsdp_size=world)),
            ("tp", lambda: by_from_pretrained(kind, path, address, tp_size=world)),
        ):
            try:
                results[f"{kind}, {way}"] = load()
            except Exception:  # told to the test by name
                results[f"{kind}, {way}"] = traceback.format_exc()
        (folder / f"rank-{rank}.json").write_text(json.dumps(results))
    torch.distributed.destroy_process_group()


main()
