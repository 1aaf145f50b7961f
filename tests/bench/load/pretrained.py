"""How long transformers' from_pretrained takes natively and with weights from the daemons.

    .venv/bin/python tests/bench/load/pretrained.py --ranks 4 --rounds 3

From a common start to the slowest rank's touched parameters, files cached and, for
ckptd, the checkpoint resident. The same processes serve all samples: what importing
costs is left out. "beyond construction" is what building the model on meta alone takes,
subtracted. Bytes are compared on each rank.
"""

import argparse
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PATIENCE = 1200
PLANS = ("plain", "tp", "fsdp")
DTYPES = ("float32", "bfloat16")
# 1.52 GB in float32, as the file has it.
SIZES = {"vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 20,
         "num_attention_heads": 16, "num_key_value_heads": 8}


class Rank:
    """One trainer of `world`; all take the same samples at the same time."""

    def __init__(self, folder, rank, world):
        import torch
        import torch.distributed as dist
        import transformers

        torch.set_num_threads(1)
        transformers.logging.disable_progress_bar()
        transformers.logging.set_verbosity_error()
        store = dist.FileStore(str(folder / "store"), world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        self.folder, self.rank, self.world = folder, rank, world
        self.torch, self.dist, self.transformers = torch, dist, transformers
        self.config = transformers.LlamaConfig(**SIZES)

    def options(self, plan):
        if plan == "plain":
            return {}
        from transformers.distributed import DistributedConfig

        return {"distributed_config": DistributedConfig(**{f"{plan}_size": self.world})}

    def slowest(self, seconds):
        every = [None] * self.world
        self.dist.all_gather_object(every, seconds)
        return max(every)

    def construct(self):
        start = time.perf_counter()
        with self.torch.device("meta"):
            self.transformers.AutoModelForCausalLM.from_config(self.config)
        return self.slowest(time.perf_counter() - start)

    def load(self, source, plan, dtype, check):
        """(seconds of the slowest rank, a sum over this rank's bits if `check`)."""
        options = self.options(plan)
        self.dist.barrier()
        start = time.perf_counter()
        model = self.transformers.AutoModelForCausalLM.from_pretrained(source, dtype=dtype, **options)
        parts = [getattr(p, "_local_tensor", p).detach() for p in model.parameters()]
        for part in parts:
            part.reshape(-1)[:: 4096 // part.element_size()].sum()  # every page once
        seconds = self.slowest(time.perf_counter() - start)
        if not check:
            return seconds, None
        kind = {2: self.torch.int16, 4: self.torch.int32}
        return seconds, [int(p.view(kind[p.element_size()]).sum(dtype=self.torch.int64)) for p in parts]

    def measure(self, source, plan, dtype, rounds):
        """Samples of each contender; the first, in which the daemons load, is dropped."""
        import ckptd

        found = {"native": [], "ckptd": [], "construction": []}
        for i in range(rounds + 1):
            seconds, bits = self.load(source, plan, dtype, i == 0)
            found["native"].append(seconds)
            with ckptd.patch():
                seconds, own_bits = self.load(source, plan, dtype, i == 0)
            assert bits == own_bits, f"{plan} as {dtype} differs on rank {self.rank}"
            found["ckptd"].append(seconds)
            found["construction"].append(self.construct())
        return {name: samples[1:] for name, samples in found.items()}


def be_rank(folder, rank, world, source, rounds, only):
    me, results = Rank(folder, rank, world), {}
    for name in (f"{plan} {dtype}" for plan in PLANS for dtype in DTYPES):
        if only in name:
            results[name] = me.measure(source, *name.split(), rounds)
            if rank == 0:
                show(results, name)


def checkpoint(directory):
    """The model's folder, written once."""
    import transformers

    path = directory / "pretrained"
    if not (path / "model.safetensors").exists():
        transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SIZES)).save_pretrained(
            path, max_shard_size="100GB")
    return path


def run_ranks(daemons, folder, world, source, rounds, only):
    environment = {**daemons.environment, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "WORLD_SIZE": str(world),
                   "PYTHONPATH": str(ROOT / "client/python/src")}
    running = [subprocess.Popen([sys.executable, __file__, "--rank", str(rank), "--ranks", str(world), "--rounds",
                                 str(rounds), "--source", str(source), "--folder", str(folder), "--only", only],
                                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)})
               for rank in range(world)]
    deadline = time.monotonic() + PATIENCE
    try:
        # The others would wait long for a rank that has failed.
        while time.monotonic() < deadline:
            ends = [process.poll() for process in running]
            if all(end == 0 for end in ends):
                return
            if any(ends):
                break
            time.sleep(0.1)
    finally:
        for process in running:
            process.kill()
            process.wait()
    sys.exit(f"bench: ranks ended with {ends} (None: still at it)")


def show(results, name):
    native, ours, built = (statistics.median(results[name][k]) for k in ("native", "ckptd", "construction"))
    print(f"{name:16}{native:9.3f}{ours:9.3f}{native / ours:7.1f}x{built:14.3f}{ours - built:11.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", metavar="TEXT", help="just the lines whose names contain TEXT")
    parser.add_argument("--directory", type=pathlib.Path, default=ROOT / "build" / "bench")
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "build" / "bin")
    for name in ("--rank", "--source", "--folder"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        return be_rank(pathlib.Path(options.folder), int(options.rank), options.ranks, options.source, options.rounds,
                       options.only)
    sys.path.insert(0, str(ROOT / "deploy/main_job"))
    import main_job

    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: told to stop"))
    options.directory.mkdir(parents=True, exist_ok=True)
    source = checkpoint(options.directory.resolve())
    with tempfile.TemporaryDirectory() as folder:
        daemons = main_job.Daemons(options.binaries, pathlib.Path(folder), options.ranks, 0)
        try:
            cores = len(os.sched_getaffinity(0))
            print(f"{cores} cores, {options.ranks} ranks, medians of {options.rounds} rounds in seconds")
            print(f"{'':16}{'native':>9}{'ckptd':>9}{'ratio':>8}{'construction':>14}{'beyond it':>11}", flush=True)
            run_ranks(daemons, pathlib.Path(folder), options.ranks, source, options.rounds, options.only)
        finally:
            daemons.stop()


if __name__ == "__main__":
    main()
