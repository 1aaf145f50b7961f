"""How fast ckptd fills an FSDP2 model, beside packages that specialise in loading.

    tests/bench/run rivals --bytes 1.6GB --ranks 4 --rounds 3

Beside it are fastsafetensors and meta-pytorch's torch_checkpointing, which are installed into build/bench-rivals. How
transformers shards while it reads is measured by `tests/bench/run pretrained`. Files are cached, digests are off, and
the daemons hold nothing of them.
"""

import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(ROOT / "deploy/main_job")]

import main_job  # noqa: E402
import make_checkpoint  # noqa: E402

import arguments  # noqa: E402
import contenders  # noqa: E402
import peers  # noqa: E402
import report  # noqa: E402
import rounds  # noqa: E402
import running  # noqa: E402
import sources  # noqa: E402


def install():
    """Without what they depend on: torch and safetensors are here, and stay as they are."""
    wanted = [f"{name}=={version}" for name, version in peers.PACKAGES.items()]
    if all(any(peers.FOLDER.glob(f"{name}-{version}.dist-info")) for name, version in peers.PACKAGES.items()):
        return
    running.say(f"installing {', '.join(wanted)}")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(peers.FOLDER)]
    if subprocess.run([*command, *wanted]).returncode != 0:
        raise main_job.Failure(f"installing {', '.join(wanted)} failed; see what pip says above, then try again")


def run(options, say):
    install()
    source = options.directory / f"llama-{options.bytes}"
    nbytes = make_checkpoint.make(source, options.bytes)
    start = running.starter(options.binaries, options.directory)

    def write(path):
        with start(options.ranks, 0) as daemons:
            rounds.Bench(daemons, source, options.bytes, options.ranks, of_peer=path).run_ranks(peers.SAVE, False)

    saved = sources.made(options.directory / f"torch_checkpointing-{options.bytes}-{options.ranks}", write)
    with start(options.ranks, nbytes // options.ranks * 51 // 50 + (4 << 20)) as daemons:
        bench = rounds.Bench(daemons, source, options.bytes, options.ranks, of_peer=saved / "saved")
        names = [contenders.SAFETENSORS, *peers.LOADS]
        return {"bytes": nbytes, "loads": rounds.run(bench, names, options.rounds, rounds.WARM_FLOOR, False, say)}


def main():
    options = arguments.parse(arguments.of_loads("rivals", __doc__))
    try:
        found = run(options, running.say)
    except main_job.Failure as failure:
        sys.exit(f"bench: {failure}")
    running.say("")
    print(f"{len(os.sched_getaffinity(0))} cores, {found['bytes'] / 1e9:.2f} GB in bf16, {options.ranks} ranks; median "
          f"and range of {options.rounds} rounds, bytes compared on each rank")
    for name, samples in found["loads"].items():
        print(report.row(name, samples))
    table = report.Table()
    report.rivals(table, found["loads"])
    print(f"\nbeside others\n{table.text()}")
    if options.json:
        options.json.write_text(json.dumps({**found, "table": table.lines}, indent=1))


if __name__ == "__main__":
    arguments.run(main)
