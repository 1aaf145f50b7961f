"""How much of a link a load to another host uses, beside iperf3 on the same link in the same run.

    .venv/bin/python tests/bench/link_bench.py --rates 1gbit,5gbit --size 512MB

Two network namespaces stand for the hosts; all traffic stays inside. A rate of `none` is the bare veth
pair, which is no network but a memory copy between two kernels' stacks on one machine. Loads run with a
group key, encrypted, and with --peer-auth none; iperf3 never encrypts. Needs root, iproute2 and iperf3.
Prints one line per rate; ends with 1 when a rate-limited one is below --floor.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
for folder in ("tests/integration", "tests/testing", "client/python/src"):
    sys.path.insert(0, str(ROOT / folder))

import ckptd  # noqa: E402
from group import save, wait_until  # noqa: E402
from hosts import SpreadGroup, TwoHosts, why_not  # noqa: E402

STREAMS = 4
AUTHS = {"with a key": (), "open": ("--peer-auth", "none")}


def bytes_of(text):
    units = {"MB": 10**6, "GB": 10**9}
    return int(float(text[:-2]) * units[text[-2:]])


def iperf3(network, seconds):
    """Bits per second from host 0 to host 1, over as many connections as a load uses."""
    server = subprocess.Popen([*network.inside(1), "iperf3", "--server", "--one-off"], stdout=subprocess.DEVNULL)
    try:
        def measure():
            done = subprocess.run([*network.inside(0), "iperf3", "--client", network.addresses[1], "--json",
                                   "--parallel", str(STREAMS), "--time", str(seconds)],
                                  capture_output=True, text=True, timeout=seconds + 30)
            # Until its server listens, the client ends well, with an error in its answer.
            return json.loads(done.stdout)["end"].get("sum_received")
        return wait_until(measure, "iperf3 to connect", 10)["bits_per_second"]
    finally:
        server.kill()
        server.wait()


def transfer_seconds(group, name):
    stages = group.json("get", name)["progress"]["stages"]
    return next(stage["seconds"] for stage in stages if stage["stage"] == "TRANSFERRING")


def load(group, path, size, loads):
    """Best bits per second of `loads` loads in which rank 1, on the other host, gets all bytes."""
    best = 0
    for _ in range(loads + 1):  # the first one faults memory in
        with ckptd.connect(group.address(1)) as client:
            name = client.load(path, layout="replicate:2").name
        progress = group.json("get", name)["progress"]
        assert progress["streamed_ranks"] == [1], progress
        best = max(best, size * 8 / transfer_seconds(group, name))
        for rank in (0, 1):
            group.json("unload", name, rank=rank)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="1gbit,2500mbit,5gbit,none")
    parser.add_argument("--size", default="512MB")
    parser.add_argument("--loads", type=int, default=3)
    parser.add_argument("--floor", type=float, default=0.7)
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(f"link_bench.py: {reason}")
    import torch
    low = []
    with tempfile.TemporaryDirectory() as folder:
        count = max(1, bytes_of(options.size) // (4096 * 4096 * 2))
        tensors = {f"w{i}": torch.randn(4096, 4096).to(torch.bfloat16) for i in range(count)}
        size = count * 4096 * 4096 * 2
        path = save(pathlib.Path(folder) / "m.safetensors", tensors)
        for rate in options.rates.split(","):
            with TwoHosts() as network:
                if rate != "none":
                    network.limit(rate)
                ours = {}
                for auth, flags in AUTHS.items():
                    hosts = pathlib.Path(tempfile.mkdtemp(dir=folder))
                    budget = f"{2 * size // 2**20 + 256}MiB"
                    with SpreadGroup(hosts, network, [0, 1], *flags, budget=budget, segments="64MiB") as group:
                        ours[auth] = load(group, path, size, options.loads)
                theirs = iperf3(network, 3)
            reached = "; ".join(f"ckptd {auth} {rate_of / 1e9:.2f} Gbit/s, ratio {rate_of / theirs:.2f}"
                                for auth, rate_of in ours.items())
            print(f"{rate:>9}: iperf3 {theirs / 1e9:.2f} Gbit/s; {reached}", flush=True)
            low += [f"{rate} {auth}" for auth in AUTHS if rate != "none" and ours[auth] < options.floor * theirs]
    if low:
        sys.exit(f"link_bench.py: below {options.floor} of iperf3 at {', '.join(low)}")


if __name__ == "__main__":
    main()
