"""On machines of several NUMA nodes host memory lies on the rank's own."""

import pathlib
import re
import subprocess

import ckptd
import pytest
from faults import MARK, content, sparse
from group import BINARIES, PATIENCE, Daemon, clean_environment

MIB = 1 << 20
NODES = pathlib.Path("/sys/devices/system/node/has_memory")


def node():
    """The last node that has memory."""
    if not NODES.exists():
        pytest.skip("this kernel shows no NUMA nodes")
    return re.split("[-,]", NODES.read_text().strip())[-1]


def policies(pid):
    """Of the daemon's segments, as the kernel has them: "default", "prefer:1" and the like."""
    maps = pathlib.Path(f"/proc/{pid}/numa_maps")
    if not maps.exists():
        pytest.skip("this kernel does not say where memory lies")
    return {line.split()[1] for line in maps.read_text().splitlines() if "memfd:ckptd" in line}


def assert_serves(group, folder):
    with ckptd.connect(group.address(0)) as client:
        loaded = client.load(sparse(folder / "some.safetensors", 11 * MIB), layout="replicate:1")
        with client.acquire(loaded) as shard:
            assert content(shard.tensors["mark"]) == MARK


def test_memory_of_a_daemon_comes_from_the_node_it_is_told(tmp_path):
    with Daemon(tmp_path, "--numa", node()) as group:
        assert_serves(group, tmp_path)
        assert f"on NUMA node {node()}" in group.info()["memory"]["why"]
        # Kernels say "prefer" or "prefer (many)", and the node.
        assert all(re.fullmatch(rf"prefer.*:{node()}", policy) for policy in policies(group.pid(0)))
        assert policies(group.pid(0))


def test_memory_comes_from_anywhere_where_nobody_cares(tmp_path):
    with Daemon(tmp_path, "--numa", "off") as group:
        assert_serves(group, tmp_path)
        assert "NUMA" not in group.info()["memory"]["why"]
        assert policies(group.pid(0)) == {"default"}


@pytest.mark.parametrize("wanted", ["1023", "near"])
def test_a_node_that_is_not_there_is_refused_with_those_that_are(tmp_path, wanted):
    command = [BINARIES / "ckptd", "run", "--run-dir", tmp_path, "--numa", wanted]
    ended = subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, timeout=PATIENCE
    )
    assert ended.returncode != 0
    assert f"--numa {wanted}" in ended.stderr
    assert "a node of this machine that has memory" in ended.stderr
