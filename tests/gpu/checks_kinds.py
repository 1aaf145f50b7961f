"""Memory by legacy handles, and memory of daemons that hold nothing else while they rest."""

import hashlib

import client
import files
from bench import MIB, SLACK, leases, unload
from gpu_record import Checks
from group import wait_until

checks = Checks()
ask = client.ask


def source_of(bench):
    """(folder, name -> digest of the file's bytes) of random matrices."""
    folder = bench.path()
    size = 8 * MIB if bench.fake else 512 * MIB
    paths = files.random_files(folder, size, 1, MIB if bench.fake else 16 * MIB)
    return str(folder), {
        name: hashlib.sha256(data).hexdigest() for name, data in files.contents(paths[0])
    }


@checks(
    "clients open a shard by its legacy handle, alike and at once, and its memory comes back",
    "numpy",
)
def legacy(bench):
    source, sums = source_of(bench)
    group = bench.warm_group(1)
    before = bench.free()
    readers = [bench.client(group.address(0)) for _ in range(3)]
    for reader, mode in zip(readers, ("shared", "shared", "private")):
        said = ask(reader, "load", source=source, layout="replicate:1", handle="cuda_ipc")
        assert "name" in said, said
        said = ask(reader, "acquire", mode=mode)
        assert (said["copied"] > 0) == (mode == "private"), said
    assert all(ask(reader, "digest") == sums for reader in readers)
    for reader in readers:
        ask(reader, "drop")
        reader.process.communicate(timeout=30)
    wait_until(lambda: leases(group) == 0, "the leases to end", 60)
    unload(group)
    return bench.comes_back(before)


@checks("a daemon at rest holds its shard and nothing else, hands it out, and loads again", "numpy")
def at_rest(bench):
    source, sums = source_of(bench)
    before = bench.free()
    group = bench.group(1, "--idle", "release")
    one = bench.client(group.address(0))
    for _ in range(2):
        said = ask(one, "load", source=source, layout="replicate:1")
        assert "name" in said, said
        shard = int(group.info()["memory"]["used_bytes"])
        facts = bench.comes_back(before - shard, SLACK)
        own = before - shard - bench.free()
        reader = bench.client(group.address(0))
        ask(reader, "load", source=source, layout="replicate:1")
        ask(reader, "acquire")
        assert ask(reader, "digest") == sums
        reader.process.kill()
        wait_until(lambda: leases(group) == 0, "the lease to end", 60)
        unload(group)
    bench.figure("daemon's own memory on the GPU, at rest (--idle release)", own / 1e6, "MB")
    return facts
