"""Groups over two hosts: network namespaces, each daemon with sockets of its own host."""

import pathlib
import re
import time

import ckptd
import flat_statements
import numpy as np
import pytest
import torch
from group import SOON, save, wait_until
from hosts import check_rows, load_in_background, total, wait_for_bytes, why_not
from slices import as_bytes, rows

reason = why_not()
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))
SLOW = "10mbit"  # no load of `big` ends before somebody has done something about it


def test_every_rank_of_two_hosts_maps_its_rows_read_once(spread, source):
    path, tensors = source
    group = spread([0, 0, 1, 1])
    name = check_rows(group, path, tensors, "fsdp:4")
    progress = group.json("get", name)["progress"]
    assert int(progress["read"]["storage_bytes"]) == total(tensors)
    assert progress["streamed_ranks"] == [2, 3]


def test_only_what_a_host_needs_crosses_the_cable(spread, network, big):
    path, tensors = big
    group = spread([0, 1])
    before = network.bytes_received(1)
    check_rows(group, path, tensors, "fsdp:2")
    crossed = network.bytes_received(1) - before
    assert total(tensors) / 2 < crossed < total(tensors) / 2 * 1.1


def test_floating_tensors_are_cast_by_the_rank_that_gets_them(spread, source):
    path, tensors = source
    group = spread([0, 1])
    with ckptd.connect(group.address(1)) as client:
        with client.acquire(client.load(path, layout="fsdp:2", dtype="BF16")) as shard:
            for name in ("layer.0.weight", "large", "layer.1.weight"):
                expected = as_bytes(rows(tensors[name].to(torch.bfloat16), 1, 2))
                assert bytes(shard.tensors[name].buffer) == expected, name


def test_a_restarted_daemon_of_the_other_host_gets_its_rows_again(spread, source):
    path, tensors = source
    group = spread([0, 1])
    name = check_rows(group, path, tensors, "fsdp:2")
    group.kill(1)
    assert check_rows(group, path, tensors, "fsdp:2") == name


def test_a_cut_in_mid_transfer_names_the_rank_to_both_hosts_long_before_their_deadline(spread, network, big):
    path, _ = big
    group = spread([0, 1])
    network.limit(SLOW)
    waiting = [load_in_background(group, path, "fsdp:2", rank) for rank in (0, 1)]
    wait_for_bytes(group, waiting)
    network.cut()
    began = time.monotonic()
    for thread, _ in waiting:
        thread.join()
    assert time.monotonic() - began < SOON
    for rank, (_, answers) in enumerate(waiting):
        assert isinstance(answers[0], ckptd.Error), answers
        assert answers[0].reason == "RANK_LOST", answers[0]
        assert f"rank {1 - rank}" in answers[0].message, answers[0]
    network.mend()
    group.wait_ready()
    network.limit("1gbit")
    with ckptd.connect(group.address(1)) as client:
        assert client.load(path, layout="fsdp:2").name


def test_a_daemon_killed_in_mid_transfer_is_named_to_the_others(spread, network, big):
    path, _ = big
    group = spread([0, 1])
    network.limit(SLOW)
    thread, answers = load_in_background(group, path, "fsdp:2")
    wait_for_bytes(group)
    began = time.monotonic()
    group.kill(1)
    thread.join()
    assert time.monotonic() - began < SOON
    assert isinstance(answers[0], ckptd.Error) and answers[0].reason == "RANK_LOST", answers
    assert "rank 1" in answers[0].message
    with ckptd.connect(group.address(0)) as client:
        network.limit("1gbit")
        assert client.load(path, layout="fsdp:2").name


def test_memory_is_given_back_after_a_cut(spread, network, big):
    path, _ = big
    group = spread([0, 1])
    network.limit(SLOW)
    thread, _ = load_in_background(group, path, "fsdp:2")
    wait_for_bytes(group)
    network.cut()
    thread.join()
    wait_until(lambda: int(group.json("info", rank=1)["memory"]["used_bytes"]) == 0, "rank 1's memory to be free")
    network.mend()


def test_daemons_of_one_host_that_cannot_see_each_others_sockets_use_streams(spread, source):
    path, tensors = source
    # As containers of one Kubernetes node: one boot id, no common file system.
    group = spread([0, 1], names=("node", "node"))
    (group.run_dir_of(1) / group.job / "rank-1.mem.sock").unlink()
    name = check_rows(group, path, tensors, "fsdp:2")
    assert group.json("get", name)["progress"]["streamed_ranks"] == [1]


def read_by(group):
    """Bytes that each daemon has read by system calls so far: of files, none of sockets."""
    counted = (pathlib.Path(f"/proc/{group.pid(rank)}/io").read_text() for rank in range(group.ranks))
    return np.array([int(re.search(r"^rchar: (\d+)$", text, re.M)[1]) for text in counted])


HEADER_READ = 100_000  # bytes at most by each reader, beside few of /proc by every daemon


@pytest.mark.parametrize("policy, shares, streamed", [
    ("rank0", [1, 0, 0, 0], [2, 3]),
    ("per_node", [1, 0, 1, 0], []),
    ("all", [1 / 4] * 4, [0, 1, 2, 3]),
])
def test_storage_is_read_as_often_as_the_reader_policy_says(spread, source, policy, shares, streamed):
    path, tensors = source
    group = spread([0, 0, 1, 1], "--reader", policy, "--read", "buffer")
    before = read_by(group)
    for rank in range(4):
        with ckptd.connect(group.address(rank)) as client:
            checkpoint = client.load(path, layout="replicate:4")
            with client.acquire(checkpoint) as shard:
                for name, tensor in tensors.items():
                    assert bytes(shard.tensors[name].buffer) == as_bytes(tensor), (rank, name)
        assert group.ctl("verify", checkpoint.name, rank=rank).returncode == 0
    beyond = read_by(group) - before - np.array(shares) * total(tensors)
    block = 1 << 20 if policy == "all" else 0  # parts are of whole blocks
    assert (abs(beyond) < HEADER_READ + block).all(), beyond
    assert abs(beyond.sum()) < HEADER_READ * sum(share > 0 for share in shares), beyond
    progress = group.json("get", checkpoint.name)["progress"]
    assert int(progress["read"]["storage_bytes"]) == sum(shares) * total(tensors)
    assert int(progress["bytes_done"]) == int(progress["bytes_total"]) == 4 * total(tensors)
    assert progress["streamed_ranks"] == streamed


@pytest.mark.parametrize("policy", ["per_node", "all"])
def test_each_rank_of_a_group_with_several_readers_maps_its_rows(spread, source, policy):
    path, tensors = source
    group = spread([0, 0, 1, 1], "--reader", policy)
    name = check_rows(group, path, tensors, "fsdp:4")
    group.unload(name, 2)
    check_rows(group, path, tensors, "fsdp:4")


def test_what_members_read_is_seen_by_all_while_they_read(spread, network, big):
    path, tensors = big
    # Heartbeats wait in the same queue as the bytes.
    group = spread([0, 1], "--reader", "all", "--heartbeat-timeout", "60")
    network.limit(SLOW)
    waiting = [load_in_background(group, path, "fsdp:2", rank) for rank in (0, 1)]

    def news_of_rank_1(rank):
        """Only rank 1 sends bytes to rank 0, and only it says so."""
        (checkpoint,) = group.json("list", rank=rank)["checkpoints"] or [{"progress": {}}]
        now = checkpoint["progress"]
        assert checkpoint.get("state", "STATE_LOADING") == "STATE_LOADING", checkpoint
        return now if now.get("streamed_ranks") == [0, 1] and int(now["bytes_done"]) else None

    wait_for_bytes(group)
    for rank in range(2):
        now = wait_until(lambda: news_of_rank_1(rank), f"rank {rank} to see what rank 1 reads")
        assert int(now["bytes_done"]) < int(now["bytes_total"]) == total(tensors)
    network.limit("1gbit")
    for thread, answers in waiting:
        thread.join()
        assert answers[0].progress.streamed_ranks == (0, 1)
        assert answers[0].progress.bytes_done == total(tensors)


def test_with_a_reader_per_host_no_weights_cross_the_cable(spread, network, big):
    path, tensors = big
    group = spread([0, 1], "--reader", "per_node")
    before = network.bytes_received(1)
    check_rows(group, path, tensors, "fsdp:2")
    assert network.bytes_received(1) - before < total(tensors) / 20


def test_a_reader_that_sees_other_files_fails_the_load_by_name(spread, source, tmp_path, monkeypatch):
    path, _ = source
    group = spread([0, 1], "--reader", "per_node", unshared=tmp_path)
    with ckptd.connect(group.address(0)) as client:
        with pytest.raises(ckptd.Error) as caught:
            client.load(path, layout="fsdp:2")
    assert caught.value.reason == "SOURCE_NOT_FOUND"
    assert "rank 1" in caught.value.message, caught.value.message


def test_a_reader_killed_in_mid_transfer_is_named_to_all(spread, network, big):
    path, _ = big
    group = spread([0, 0, 1, 1], "--reader", "all")
    network.limit(SLOW)
    waiting = [load_in_background(group, path, "fsdp:4", rank) for rank in (0, 1, 3)]
    wait_for_bytes(group, waiting)
    began = time.monotonic()
    group.processes[2].kill()
    group.processes[2].wait()
    for thread, _ in waiting:
        thread.join()
    assert time.monotonic() - began < SOON
    for _, answers in waiting:
        assert isinstance(answers[0], ckptd.Error), answers
        assert answers[0].reason == "RANK_LOST" and "rank 2" in answers[0].message, answers[0]


@pytest.mark.parametrize("reader", ["rank0", "per_node", "all"])
def test_flat_parameters_come_in_streams(spread, tmp_path, reader):
    hosts = [0, 1, 1]
    group, values = spread(hosts, "--reader", reader), flat_statements.tensors()
    path = save(tmp_path / "f.safetensors", {n: torch.from_numpy(v) for n, v in values.items()})
    layouts = [flat_statements.statement(rank, len(hosts)) for rank in range(len(hosts))]
    loads = [load_in_background(group, path, layout, rank) for rank, layout in enumerate(layouts)]
    for rank, (thread, answers) in enumerate(loads):
        thread.join(60)
        with ckptd.connect(group.address(rank)) as client:
            with client.acquire(answers[0]) as shard:
                for name in flat_statements.FLATS:
                    theirs = flat_statements.expected(name, values, rank, len(hosts))
                    assert np.array_equal(flat_statements.received(shard, name), theirs), (rank, name)
            assert not client.verify(answers[0]).mismatched
            progress = client.get(answers[0]).progress
    assert progress.storage_bytes == sum(v.nbytes for v in values.values())
    assert progress.streamed_ranks or reader != "rank0"
