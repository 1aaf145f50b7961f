"""One FSDP2 trainer of the main job. Prints one JSON object per line.

Started once per rank with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and
CKPTD_ADDRESS set, as torchrun and `ckptd launch` do.
"""

import argparse
import itertools
import json
import os
import pathlib
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from safetensors import safe_open

import ckptd.torch
import model as llama


def say(event: str, **facts) -> None:
    print(json.dumps({"event": event, "rank": dist.get_rank(), **facts}), flush=True)


def build(shape: llama.Shape, mesh) -> llama.CausalLm:
    with torch.device("meta"):
        model = llama.CausalLm(shape).to(torch.bfloat16)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def read_shard(files: dict, name: str, rank: int, ranks: int) -> torch.Tensor:
    """This rank's rows, by safetensors' own reader and torch's chunk rule."""
    slice_ = files[name].get_slice(name)
    rows = slice_.get_shape()[0]
    chunk = -(-rows // ranks)
    return slice_[min(rows, rank * chunk):min(rows, (rank + 1) * chunk)]


def compare(model, source: pathlib.Path) -> int:
    """Bytes of this rank that are equal to the files'; raises at the first that is not."""
    weight_map = json.loads((source / "model.safetensors.index.json").read_text())["weight_map"]
    opened = {file: safe_open(source / file, "pt") for file in set(weight_map.values())}
    files = {name: opened[file] for name, file in weight_map.items()}
    rank, ranks, total = dist.get_rank(), dist.get_world_size(), 0
    for name, parameter in model.named_parameters():
        local = parameter.to_local().cpu()
        expected = read_shard(files, name, rank, ranks)
        if local.shape != expected.shape or not torch.equal(local.view(torch.uint8), expected.view(torch.uint8)):
            raise SystemExit(f"rank {rank}: {name} differs from the files")
        total += local.numel() * local.element_size()
    return total


def addresses(model) -> dict:
    return {name: parameter.to_local().data_ptr() for name, parameter in model.named_parameters()}


def train(model, optimizer, steps):
    """Trains in the daemon's memory, which nothing of the model leaves; without end for None."""
    before, device = addresses(model), model.model.norm.weight.device
    torch.manual_seed(dist.get_rank())
    for step in itertools.count(1) if steps is None else range(1, steps + 1):
        tokens = torch.randint(0, model.model.embed_tokens.num_embeddings, (1, 17), device=device)
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if addresses(model) != before:
            raise SystemExit(f"rank {dist.get_rank()}: a parameter left the daemon's memory in step {step}")
        say("step", step=step, loss=loss.item())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--hold", action="store_true", help="go on training until killed")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--mode", default="auto", help="how the memory is attached, as of load_into")
    arguments = parser.parse_args()
    device = arguments.device
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    model = build(llama.Shape.of_bytes(arguments.bytes), init_device_mesh(device, (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)  # before the load: it stays valid

    dist.barrier()
    begin = time.perf_counter()
    result = ckptd.torch.load_into(
        model, arguments.source, mode=arguments.mode, init_buffers=llama.remake_buffers)
    seconds = time.perf_counter() - begin
    say("loaded", seconds=seconds, resident=result.resident, bytes=result.nbytes, copied=len(result.copied),
        copied_bytes=result.copied_bytes, checkpoint=result.checkpoint, stages=result.seconds, pid=os.getpid())
    say("compared", bytes=compare(model, arguments.source))

    train(model, optimizer, None if arguments.hold else arguments.steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
