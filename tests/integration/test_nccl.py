"""Daemons whose bytes travel by NCCL: real processes, over the fake NCCL and the fake driver."""

import concurrent.futures
import json
import os
import re
import signal
import subprocess
import time

import fake_cuda
import fake_nccl
import pytest
from group import BINARIES, KEY, clean_environment, wait_until
from nccl_bench import HEARTBEATS, LIMIT, NCCL, SLOW, begin, exchanged, failure, holding, load, sample, tensor_bytes

pytest.importorskip("cuda.bindings.driver")
pytestmark = pytest.mark.skipif(fake_nccl.why_not() is not None, reason=str(fake_nccl.why_not()))

@pytest.mark.parametrize("reader", ["rank0", "per_node", "all"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_trainers_get_the_bytes_that_pytorch_would_have_given_them(cuda, ranks, reader):
    bench = cuda(ranks, daemon=(*NCCL, "--reader", reader), nccl={}, files=5)
    with bench.trainers("exclusive") as trainers:
        assert all(answer["same"] for answer in trainers.ask("compare"))
        assert all(answer["same"] for answer in trainers.ask("train"))
        trainers.ask("drop")
        assert trainers.end() == [0] * ranks
    assert exchanged(bench), "nothing travelled by NCCL"


@pytest.mark.parametrize("reader", ["rank0", "all"])
@pytest.mark.parametrize("layout", ["fsdp:3", "replicate:3"])
def test_nothing_is_sent_or_published_before_the_gpu_has_done_its_work(cuda, tmp_path, layout, reader):
    """What is queued on a stream runs late: who does not wait for it sends, casts or verifies what was there before."""
    bench = cuda(3, daemon=(*NCCL, "--reader", reader), nccl={}, gpus={"lazy": 1})
    source, state = sample(tmp_path, rows=2570)
    for dtype in ("", "bfloat16"):
        load(bench, source, layout, dtype=dtype)
    assert exchanged(bench, "ncclSend") or exchanged(bench, "ncclBroadcast")


@pytest.mark.parametrize("reader", ["rank0", "all"])
@pytest.mark.parametrize("layout", ["fsdp:4", "hsdp:2x2", "replicate:4"])
def test_storage_is_read_once_and_each_slice_sent_once(cuda, tmp_path, layout, reader):
    bench = cuda(4, daemon=(*NCCL, "--reader", reader), nccl={})
    source, state = sample(tmp_path)
    checkpoint = load(bench, source, layout)
    assert int(checkpoint["progress"]["read"]["storage_bytes"]) == tensor_bytes(state)
    copies = {"fsdp:4": 1, "hsdp:2x2": 2, "replicate:4": 4}[layout]
    received = exchanged(bench, "ncclRecv")
    if layout == "replicate:4":
        # The library knows best how to bring the same to all.
        assert not received and exchanged(bench, "ncclBroadcast")
        return
    moved = sum(line["bytes"] for line in received)
    # Every rank's shard but the parts that it reads itself; padding between tensors is sent along.
    most = tensor_bytes(state) * copies * (3 / 4) * 1.02
    assert most * 0.95 < moved <= most
    assert moved == sum(line["bytes"] for line in exchanged(bench, "ncclSend"))
    if layout == "hsdp:2x2" and reader == "rank0":
        # One replica of each shard is sent to by the reader, it passes on to the other.
        by_reader = sum(line["bytes"] for line in exchanged(bench, "ncclSend") if line["rank"] == 0)
        assert by_reader <= tensor_bytes(state) * 1.02


@pytest.mark.parametrize("reader", ["rank0", "all"])
def test_a_large_tensor_that_all_ranks_hold_whole_is_read_once_and_broadcast(cuda, tmp_path, reader):
    bench = cuda(4, daemon=(*NCCL, "--reader", reader), nccl={})
    source, state = sample(tmp_path)
    whole = ("layer.3.weight", "layer.7.weight")
    layout = {
        "world_size": 4, "meshes": {"dp": {"shape": [4]}},
        "rules": [{"match": name} for name in whole],
        "default": {"mesh": "dp", "placements": ["shard(0)"]},
    }  # fmt: skip
    rules = tmp_path / "layout.json"
    rules.write_text(json.dumps(layout))
    checkpoint = load(bench, source, f"@{rules}")
    assert int(checkpoint["progress"]["read"]["storage_bytes"]) == tensor_bytes(state)
    of_whole = sum(state[name].numel() * 4 for name in whole)
    # Each rank is asked for each of its parts.
    assert sum(line["bytes"] for line in exchanged(bench, "ncclBroadcast")) == 4 * of_whole
    moved = sum(line["bytes"] for line in exchanged(bench, "ncclSend"))
    assert moved <= (tensor_bytes(state) - of_whole) * 3 / 4 * 1.02


@pytest.mark.parametrize("reader", ["rank0", "all"])
def test_all_ranks_ask_for_the_same_operations_in_the_same_order(cuda, tmp_path, reader):
    bench = cuda(4, daemon=(*NCCL, "--reader", reader), nccl={})
    for layout in ("fsdp:4", "hsdp:2x2", "replicate:4"):
        load(bench, sample(tmp_path / layout[:4], count=4)[0], layout)
        bench.unload()
    sent, received, broadcast = ({}, {}, {})
    for line in exchanged(bench):
        sent.setdefault((line["rank"], line["peer"]), []).append(line["bytes"])
    for line in exchanged(bench, "ncclRecv"):
        received.setdefault((line["peer"], line["rank"]), []).append(line["bytes"])
    for line in exchanged(bench, "ncclBroadcast"):
        broadcast.setdefault(line["rank"], []).append((line["root"], line["bytes"]))
    assert sent == received
    # Every reader has some for every rank that is not itself.
    assert set(sent) >= {(a, b) for a in range(4 if reader == "all" else 1) for b in range(4) if a != b and b % 2}
    assert sorted(broadcast) == [0, 1, 2, 3]
    assert all(asked == broadcast[0] for asked in broadcast.values())


def test_by_itself_nccl_carries_only_what_cannot_be_mapped(cuda, tmp_path):
    source, _ = sample(tmp_path, count=2)
    bench = cuda(2, nccl={})
    load(bench, source, "fsdp:2")
    assert not exchanged(bench)
    bench.unload()
    # Memory of this kind has no descriptor that another daemon could map.
    load(bench, source, "fsdp:2", "--handle", "cuda_ipc")
    assert exchanged(bench) and "rank 1 gets its bytes by NCCL" in bench.group.log()


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
def test_beside_a_client_that_holds_a_shard_nccl_carries_only_what_it_is_asked_to(cuda, tmp_path, rank, asked):
    source, _ = sample(tmp_path, count=2)
    bench = cuda(2, daemon=NCCL if asked else (), nccl={})
    with holding(bench, rank, bench.source, "fsdp:2"):
        before = len(exchanged(bench))
        load(bench, source, "fsdp:2", "--handle", "cuda_ipc")
        assert (len(exchanged(bench)) > before) == asked
        assert (f"a client holds a shard of rank {rank}, and NCCL" in bench.group.log()) != asked
    wait_until(lambda: bench.leases() == 0, "the lease to end")
    bench.unload()


def test_a_communicator_is_kept_for_the_next_load_or_given_back_as_configured(cuda, tmp_path):
    source, _ = sample(tmp_path, count=2)
    bench = cuda(2, daemon=NCCL, nccl={})
    for _ in range(3):
        load(bench, source, "fsdp:2")
        bench.unload()
    assert len(exchanged(bench, "ncclCommInitRankConfig")) == 2


def test_with_idle_release_nothing_is_left_of_it_between_loads(cuda, tmp_path):
    source, _ = sample(tmp_path, count=2)
    bench = cuda(2, daemon=(*NCCL, "--idle", "release"), nccl={})
    pids = [bench.group.pid(rank) for rank in range(2)]
    for _ in range(2):
        load(bench, source, "fsdp:2")
        assert [bench.contexts(pid) for pid in pids] == [0, 0]
        bench.unload()
    assert len(exchanged(bench, "ncclCommInitRankConfig")) == 4
    assert len(exchanged(bench, "ncclCommDestroy")) == 4


def test_the_trainers_environment_does_not_reach_the_daemons_nccl(cuda, tmp_path, monkeypatch):
    # Either would end in a violation: ids of somebody else, and calls that never return.
    monkeypatch.setenv("NCCL_COMM_ID", "127.0.0.1:1")
    monkeypatch.setenv("NCCL_COMM_BLOCKING", "1")
    bench = cuda(2, daemon=NCCL, nccl={})
    load(bench, sample(tmp_path, count=1)[0], "fsdp:2")


@pytest.mark.parametrize(
    "options, said",
    [
        (("--memory", "host", "--comm", "nccl"), "--memory is host"),
        (("--memory", "cuda", "--comm", "nccl", "--nccl-library", "/nowhere/libnccl.so.2"), "/nowhere/libnccl.so.2"),
        (("--comm", "rdma"), "use auto, host or nccl"),
    ],
)
def test_what_cannot_be_had_is_an_error_at_the_start(tmp_path, options, said):
    fake = fake_cuda.FakeCuda(tmp_path, gpus=1, bytes=0x10000000)
    answer = subprocess.run(
        [BINARIES / "ckptd", "run", "--world-size", "2", "--run-dir", str(tmp_path / "r"), *options],
        env={**clean_environment(), **fake.environment("daemon"), "CKPTD_GROUP_KEY": KEY},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert answer.returncode in (1, 2) and said in answer.stderr


def slow(cuda, *faults, ranks=4, **options):
    """A bench on which a load of sample() takes some seconds."""
    return cuda(ranks, daemon=(*NCCL, *HEARTBEATS), nccl={"link_bytes_per_second": SLOW, "faults": faults, **options})


@pytest.mark.parametrize("comm, said", [("nccl", "; between GPUs NCCL 2."), ("host", "; without NCCL: --comm is host")])
def test_who_asks_is_told_which_nccl_carries_bytes_or_why_none_does(cuda, comm, said):
    assert said in cuda(2, daemon=("--comm", comm), nccl={}).info()["why"]


# As over a network, where NCCL notices a death, and as on NVLink, where it does not.
@pytest.mark.parametrize(
    "ranks, victim, number, seen",
    [
        *((4, victim, *end) for victim in (1, 3) for end in [(signal.SIGKILL, 0), (signal.SIGKILL, 1), (signal.SIGSTOP, 0)]),
        (2, 1, signal.SIGKILL, 0),
        (2, 1, signal.SIGSTOP, 0),
        (3, 2, signal.SIGKILL, 0),
    ],
)  # fmt: skip
def test_a_rank_that_is_lost_in_the_middle_is_named_and_the_next_load_works(cuda, tmp_path, ranks, victim, number, seen):
    bench = slow(cuda, ranks=ranks, deaths_seen=seen)
    source, _ = sample(tmp_path)
    pid = bench.group.pid(victim)
    name = begin(bench, source, f"fsdp:{ranks}")
    since = time.monotonic()
    os.kill(pid, number)
    try:
        for rank in set(range(ranks)) - {victim}:
            why = failure(bench, name, since, rank)
            assert f"rank {victim}" in why["message"], why
    finally:
        if number == signal.SIGSTOP:
            os.kill(pid, signal.SIGCONT)
    wait_until(bench.group.ready, "the group to be complete again")
    load(bench, sample(tmp_path, count=1)[0], f"fsdp:{ranks}")


@pytest.mark.parametrize(
    "fault",
    [
        "ncclRecv rank=2 nth=1 after_bytes=1000 late=6",
        "ncclSend rank=0 nth=2 error=3",
        "ncclCommInitRankConfig rank=1 nth=1 error=2",
    ],
)
def test_what_nccl_answers_ends_the_load_on_all_ranks_and_the_next_one_works(cuda, tmp_path, fault):
    bench = cuda(4, daemon=(*NCCL, *HEARTBEATS), nccl={"faults": [fault]})
    source, _ = sample(tmp_path)
    since = time.monotonic()
    answer = bench.group.ctl("load", source, "--layout", "fsdp:4")
    assert answer.returncode == 1 and "NCCL" in answer.stderr and "--comm host" in answer.stderr, answer.stderr
    assert time.monotonic() - since < LIMIT
    load(bench, source, "fsdp:4")


@pytest.mark.parametrize("call", ["ncclSend rank=0", "ncclRecv rank=2"])
def test_all_hear_that_a_rank_has_failed_before_its_nccl_has_let_go(cuda, tmp_path, call):
    faults = [f"{call} nth=1 error=3", "ncclCommAbort hang=1"]
    bench = cuda(3, daemon=(*NCCL, *HEARTBEATS), nccl={"faults": faults})
    source, _ = sample(tmp_path)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(bench.group.ctl, "load", source, "--layout", "fsdp:3")
        wait_until(lambda: bench.nccl.trace('"result":3'), "the mistake")
        since = time.monotonic()
        answer = asked.result()
    assert answer.returncode == 1 and "NCCL answers 3" in answer.stderr, answer.stderr
    assert time.monotonic() - since < 4, "an abort is waited for for 5 s"


@pytest.mark.parametrize("reader", ["rank0", "all"])
def test_the_rank_that_failed_is_told_and_not_those_that_lost_their_connection_to_it(cuda, tmp_path, reader):
    # As over a network: who is connected to rank 2 hears from NCCL that it has gone.
    bench = cuda(4, daemon=(*NCCL, *HEARTBEATS, "--reader", reader),
                 nccl={"deaths_seen": 1, "faults": ["ncclRecv rank=2 nth=1 after_bytes=1000 late=1"]})
    source, _ = sample(tmp_path)
    name = begin(bench, source)
    since = time.monotonic()
    for rank in range(4):
        why = failure(bench, name, since, rank)
        assert why["reason"] == "DEVICE_FAILED" and why["rank"] == 2, why


# With one file all that rank 0 sends is soon on its way, and only rank 2 could tell that it does not arrive.
@pytest.mark.parametrize("files,reader", [(1, "rank0"), (5, "rank0"), (1, "all"), (5, "all")])
def test_a_link_that_stands_still_is_named_and_given_up_and_the_next_load_works(cuda, tmp_path, files, reader):
    bench = cuda(4, daemon=(*NCCL, *HEARTBEATS, "--reader", reader),
                 nccl={"faults": ["ncclRecv rank=2 nth=1 after_bytes=1000 hang=1"]})
    source, _ = sample(tmp_path, files=files)
    since = time.monotonic()
    answer = bench.group.ctl("load", source, "--layout", "fsdp:4")
    assert answer.returncode == 4 and '"reason":"DEADLINE"' in answer.stderr, answer.stderr
    named = re.findall(r'"rank":"(\d+)"', answer.stderr)
    if (files, reader) == (5, "all"):
        # They send to each other: who has to wait for rank 2 before it does more than rank 2 is as far as that,
        # and NCCL tells no more. Whether all come to that is a matter of moments; nobody else is blamed.
        assert named in ([], ["2"]) and "no rank has read or received anything" in answer.stderr, answer.stderr
    else:
        assert named == ["2"], answer.stderr
    assert time.monotonic() - since < LIMIT
    load(bench, source, "fsdp:4")


def test_a_reader_whose_gpu_has_no_room_for_what_it_sends_says_so_and_the_next_load_works(cuda, tmp_path):
    # Its own shard is the first that it allocates.
    bench = cuda(2, "cuMemCreate nth=2 error=2 role=daemon", daemon=NCCL, nccl={})
    source, _ = sample(tmp_path, count=2)
    answer = bench.group.ctl("load", source, "--layout", "fsdp:2")
    assert answer.returncode == 1 and "allocating memory to send from (--comm host needs none)" in answer.stderr, answer.stderr
    bench.group.ctl("load", source, "--layout", "fsdp:2")  # the second allocation of rank 1
    load(bench, source, "fsdp:2")


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_when_the_leader_is_killed_in_the_middle_all_others_say_so_in_time(cuda, tmp_path, ranks):
    bench = slow(cuda, ranks=ranks)
    leader = bench.group.pid(0)
    name = begin(bench, sample(tmp_path)[0], f"fsdp:{ranks}")
    since = time.monotonic()
    os.kill(leader, signal.SIGKILL)
    for rank in range(1, ranks):
        why = failure(bench, name, since, rank)
        assert "rank 0" in why["message"], why
