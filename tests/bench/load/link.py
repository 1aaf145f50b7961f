"""How much of a link a load to another host uses, beside iperf3 on the same link in the same run.

    tests/bench/run link --rates 1gbit,none --size 512MB

Two network namespaces stand for the hosts; all traffic stays inside. A rate of `none` is the bare veth
pair, which is no network but a memory copy between two kernels' stacks on one machine. Each round measures
iperf3, a load with a group key, encrypted, and one with --peer-auth none; iperf3 never encrypts. A load
is the stage in which bytes move. Needs root, iproute2 and iperf3. Ends with 1 where a rate-limited link
misses its target.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
for folder in ("tests/integration", "tests/testing", "client/python/src", "deploy/main_job"):
    sys.path.insert(0, str(ROOT / folder))

import ckptd  # noqa: E402
from group import save, wait_until  # noqa: E402
from hosts import PORT, SpreadGroup, TwoHosts, transfer_seconds, why_not  # noqa: E402

import make_checkpoint  # noqa: E402

import arguments  # noqa: E402
import report  # noqa: E402

STREAMS = 4
IPERF3, SECONDS = "iperf3", 3
AUTHS = {"ckptd, with a key": (), "ckptd, open": ("--peer-auth", "none")}
TENSOR = 4096 * 4096 * 2


def rates_of(text):
    """Rates as tc writes them, or none."""
    rates = text.split(",")
    for rate in rates:
        if not re.fullmatch(r"none|[1-9][0-9.]*[kmg]bit", rate):
            raise argparse.ArgumentTypeError(f"{rate!r} is no rate: write 1gbit, 500mbit or none")
    return rates


def iperf3(network):
    """Bits per second from host 0 to host 1, over as many connections as a load uses."""
    server = subprocess.Popen([*network.inside(1), "iperf3", "--server", "--one-off"], stdout=subprocess.DEVNULL)
    try:
        def measure():
            done = subprocess.run([*network.inside(0), "iperf3", "--client", network.addresses[1], "--json",
                                   "--parallel", str(STREAMS), "--time", str(SECONDS)],
                                  capture_output=True, text=True, timeout=SECONDS + 30)
            # Until its server listens, the client ends well, with an error in its answer.
            return json.loads(done.stdout)["end"].get("sum_received")
        return wait_until(measure, "iperf3 to connect", 10)["bits_per_second"]
    finally:
        server.kill()
        server.wait()


def load(group, path, size):
    """Bits per second of a load in which rank 1, on the other host, gets all bytes."""
    with ckptd.connect(group.address(1)) as client:
        name = client.load(path, layout="replicate:2").name
    # One rank knows before the other.
    wait_until(lambda: all(group.json("get", name, rank=rank)["state"] == "STATE_ACTIVE" for rank in (0, 1)), "both ranks")
    progress = group.json("get", name)["progress"]
    assert progress["streamed_ranks"] == [1], progress
    seconds = transfer_seconds(group, name)
    for rank in (0, 1):
        group.json("unload", name, rank=rank)
    return size * 8 / seconds


def measure(rate, path, size, rounds, folder):
    """name -> bits per second of each round, after one that is dropped: it faults memory in."""
    found = {name: [] for name in (IPERF3, *AUTHS)}
    budget = f"{2 * size // 2**20 + 256}MiB"
    with TwoHosts() as network, contextlib.ExitStack() as running:
        if rate != "none":
            network.limit(rate)
        groups = {}
        for port, (name, flags) in enumerate(AUTHS.items(), PORT):
            hosts = pathlib.Path(tempfile.mkdtemp(dir=folder))
            groups[name] = running.enter_context(SpreadGroup(hosts, network, [0, 1], *flags, budget=budget,
                                                             segments="64MiB", port=port))
        for number in range(rounds + 1):
            for name, samples in found.items():
                print(f"{rate}, round {number}/{rounds}: {name}", file=sys.stderr, flush=True)
                got = iperf3(network) if name == IPERF3 else load(groups[name], path, size)
                samples += [got] * (number > 0)
    return found


def show(result, rounds, target):
    """The table of what is to be reached."""
    print(f"{len(os.sched_getaffinity(0))} cores, {result['bytes'] / 1e9:.2f} GB from one host to another, "
          f"{STREAMS} connections; median and range of {rounds} rounds")
    table = report.Table()
    for rate, found in result["links"].items():
        print(f"\nlink of {rate}" if rate != "none" else "\nno limit: two kernels' stacks on one machine")
        for name, samples in found.items():
            low, middle, high = (f(samples) / 1e9 for f in (min, statistics.median, max))
            print(f"  {name:42} {middle:8.2f} Gbit/s   {low:.2f} - {high:.2f}")
        theirs = statistics.median(found[IPERF3])
        for name in AUTHS:
            table.at_least(f"{rate}: {name}, vs iperf3", statistics.median(found[name]) / theirs, target)
    print(f"\nwhat is to be reached\n{table.text()}")
    return table


def read_arguments():
    parser = argparse.ArgumentParser(prog="tests/bench/run link", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=rates_of, default="1gbit,2500mbit,5gbit,none",
                        help="of the links, as tc writes them, or none (default %(default)s)")
    parser.add_argument("--size", type=make_checkpoint.parse_bytes, default="512MB",
                        help="of the checkpoint (default 512MB)")
    parser.add_argument("--rounds", type=arguments.count, default=3,
                        help="measured rounds (default 3), after one to warm up")
    parser.add_argument("--target", type=float, default=0.7, help="of what iperf3 moves (default 0.7)")
    parser.add_argument("--json", type=arguments.output, help="write all samples here")
    return arguments.parse(parser)


def main():
    options = read_arguments()
    if reason := why_not():
        sys.exit(f"bench: {reason}")
    import torch
    count = max(1, options.size // TENSOR)
    result = {"bytes": count * TENSOR, "links": {}}
    with tempfile.TemporaryDirectory() as folder:
        tensors = {f"w{i}": torch.randn(4096, 4096).to(torch.bfloat16) for i in range(count)}
        path = save(pathlib.Path(folder) / "m.safetensors", tensors)
        for rate in options.rates:
            result["links"][rate] = measure(rate, path, result["bytes"], options.rounds, folder)
    table = show(result, options.rounds, options.target)
    result["table"] = table.lines
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))
    sys.exit(any(fine is False and not what.startswith("none") for what, _, _, fine in table.lines))


if __name__ == "__main__":
    arguments.run(main)
