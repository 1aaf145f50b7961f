"""One trainer of pretrained.py, through all samples of a line: python pretrained_rank.py SPEC.json RANK.

Writes FOLDER/found-RANK.json and waits to be ended. Rank 0 writes what it is at into FOLDER/progress.
"""

import contextlib
import gc
import json
import os
import pathlib
import subprocess
import sys
import time

import accelerate.utils
import torch
import torch.distributed as dist
import transformers
from accelerate.utils import fsdp_utils

import ckptd
import ckptd.accelerate

# What `accelerate launch` sets for a plugin with cpu_ram_efficient_loading.
LAUNCHED = {"ACCELERATE_USE_FSDP": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}
PAGE, PATIENCE = 4096, 120
BITS = {2: torch.int16, 4: torch.int32}


class OnTheHost:
    """What fsdp2_prepare_model asks of an Accelerator, which without a GPU passes over its FSDP plugin."""

    device = torch.device("cpu")
    torch_device_mesh = None
    mixed_precision = "no"

    def __init__(self, rank):
        # Asked for, though the process group is there.
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "1")
        accelerate.PartialState(cpu=True)
        plugin = accelerate.FullyShardedDataParallelPlugin(
            fsdp_version=2, cpu_ram_efficient_loading=True, auto_wrap_policy="transformer_based_wrap")
        self.is_main_process = rank == 0
        self.state = type("State", (), {"fsdp_plugin": plugin})


@contextlib.contextmanager
def launched():
    """The environment of ranks that `accelerate launch` has started."""
    before = {name: os.environ.get(name) for name in LAUNCHED}
    os.environ.update(LAUNCHED)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def by_daemons():
    """What a user writes around the native code."""
    with ckptd.patch(), ckptd.accelerate.patch():
        yield


def local_parts(model):
    return [getattr(p, "_local_tensor", p).detach() for p in model.parameters()]


class Rank:
    """One trainer of `world`; all take the same samples at the same time."""

    def __init__(self, spec, rank):
        self.spec, self.rank, self.world = spec, rank, spec["ranks"]
        self.config = transformers.LlamaConfig(**spec["sizes"])

    def load(self, plan, dtype):
        """The model by the native code of that plan, whoever is patched."""
        auto, source = transformers.AutoModelForCausalLM, self.spec["source"]
        if plan == "plain":
            return auto.from_pretrained(source, dtype=dtype)
        if plan != "accelerate":
            from transformers.distributed import DistributedConfig

            config = DistributedConfig(**{f"{plan}_size": self.world})
            return auto.from_pretrained(source, dtype=dtype, distributed_config=config)
        with launched():
            accelerator = OnTheHost(self.rank)
            # By its module, where patches are.
            return fsdp_utils.fsdp2_prepare_model(accelerator, auto.from_pretrained(source, dtype=dtype))

    def slowest(self, seconds):
        every = [None] * self.world
        dist.all_gather_object(every, seconds)
        return max(every)

    def construct(self):
        start = time.perf_counter()
        with torch.device("meta"):
            transformers.AutoModelForCausalLM.from_config(self.config)
        return self.slowest(time.perf_counter() - start)

    def settle(self):
        """Until what was handed over for good is back in this rank's arena, which costs cores."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            info = subprocess.run([self.spec["ckptctl"], "--output", "json", "--rank", str(self.rank), "info"],
                                  capture_output=True, text=True, check=True, timeout=PATIENCE)
            memory = json.loads(info.stdout)["memory"]
            if int(memory["arena_bytes"]) >= int(memory["arena_target_bytes"]):
                return
            time.sleep(0.05)
        raise TimeoutError(f"the arena was not whole again after {PATIENCE} s: {memory}")

    def sample(self, check):
        """(seconds of the slowest rank, sums over this rank's bits if `check`)."""
        gc.collect()  # models before this one, which hold themselves
        self.settle()
        dist.barrier()
        start = time.perf_counter()
        parts = local_parts(self.load(*self.spec["name"].split()))
        for part in parts:
            part.reshape(-1)[:: PAGE // part.element_size()].sum()  # every page once
        seconds = self.slowest(time.perf_counter() - start)
        if not check:
            return seconds, None
        return seconds, [int(p.view(BITS[p.element_size()]).sum(dtype=torch.int64)) for p in parts]

    def say(self, text):
        if self.rank == 0:
            pathlib.Path(self.spec["folder"], "progress").write_text(text)

    def measure(self):
        """Samples of each contender; the first, in which the daemons load, is dropped."""
        found = {"native": [], "ckptd": [], "construction": []}
        for number in range(self.spec["rounds"] + 1):
            self.say(f"round {number}/{self.spec['rounds']}" if number else "warming up")
            native, bits = self.sample(check=number == 0)
            with by_daemons():
                ours, own_bits = self.sample(check=number == 0)
            if bits != own_bits:
                raise SystemExit(f"{self.spec['name']}: other bytes than natively on rank {self.rank}")
            for kind, seconds in (("native", native), ("ckptd", ours), ("construction", self.construct())):
                found[kind] += [seconds] * (number > 0)
        return found


def main(spec_path, rank):
    spec = json.loads(pathlib.Path(spec_path).read_text())
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    store = dist.FileStore(spec["store"], spec["ranks"])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=spec["ranks"])
    found = Rank(spec, rank).measure()
    written = pathlib.Path(spec["folder"], f"found-{rank}.part")
    written.write_text(json.dumps(found))
    written.rename(written.with_suffix(".json"))
    sys.stdin.read()  # the first to leave would break the others' last collective
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
