"""Daemons that keep shards in GPU memory, and real trainers on them, over the fake driver."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading

import pytest
import torch
from cuda_bench import HERE, WHY_NOT
from faults import Program
from group import Group, save, wait_until

pytest.importorskip("cuda.bindings.driver")
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_trainers_take_the_memory_and_train_in_place(cuda, ranks):
    bench = cuda(ranks)
    with bench.trainers("exclusive") as trainers:
        devices = [loaded["device"] for loaded in trainers.loaded]
        assert devices == [bench.info(rank)["device_uuid"] for rank in range(ranks)]
        assert len(set(devices)) == ranks
        for loaded in trainers.loaded:
            assert loaded["mode"] == "exclusive" and loaded["copied"] == {} and loaded["copied_bytes"] == 0
        assert all(answer["same"] for answer in trainers.ask("compare"))
        for rank in range(ranks):  # which a daemon notes once it has handed the memory over
            wait_until(lambda: bench.state(rank) == ["STATE_TAKEN"], f"the shard of rank {rank} to be taken")
        # The daemons have nothing left: all that is held is the trainers'.
        wait_until(lambda: all(int(bench.info(rank)["used_bytes"]) == 0 for rank in range(ranks)), "daemons without memory")
        assert bench.held() > 0
        assert all(answer["same"] for answer in trainers.ask("train"))
        trainers.ask("drop")
        wait_until(lambda: bench.held() == 0, "the memory to come back")
        assert trainers.end() == [0] * ranks
        assert [bench.fake.leaks(pid) for pid in trainers.pids] == [0] * ranks
    assert bench.fake.calls("cuMemcpyDtoDAsync") == [] and bench.fake.calls("cuMemcpyDtoD") == []
    assert len(bench.fake.calls("cuMemExportToShareableHandle")) == ranks


@pytest.mark.parametrize("visible,part", [("0,1", 0.8 / 2), ("0", 0.8)])
def test_daemons_divide_gpus_that_all_of_them_see_and_have_one_that_is_the_only_one_for_themselves(
    cuda, visible, part
):
    def group(*arguments, environment):
        return Group(*arguments, environment={**environment, "CUDA_VISIBLE_DEVICES": visible})

    gpu = 64 << 20
    bench = cuda(4, gpu_bytes=gpu, group=group)
    assert [int(bench.info(rank)["budget_bytes"]) for rank in range(4)] == [int(gpu * part)] * 4


@pytest.mark.parametrize("rdma", [1, 0])
def test_memory_is_made_for_network_cards_wherever_the_gpu_has_it(cuda, rdma):
    bench = cuda(1, gpus={"attribute__110": rdma})
    with bench.trainers("private"):
        made = [call.get("rdma", 0) for call in bench.fake.calls("cuMemCreate", result=0)]
    assert made == [rdma, rdma], "the daemon's, and the trainer's copy"


# An image of another kind, PTX of a newer toolkit, no compiler for it, and one that must not be used.
@pytest.mark.parametrize("error", [200, 222, 221, 223])
def test_a_driver_too_old_for_the_kernels_leaves_their_work_to_the_processor(cuda, error):
    bench = cuda(1, f"cuModuleLoadData error={error} role=daemon")
    if not bench.fake.calls("cuModuleLoadData"):
        pytest.skip("this build has no kernels")
    assert "no copy kernels" in bench.info(0)["why"]
    assert "the processor does their work" in bench.group.log()
    with bench.trainers("shared") as trainers:
        assert all(answer["same"] for answer in trainers.ask("compare"))


def test_readers_share_one_memory_that_the_driver_keeps_from_being_written(cuda):
    bench = cuda(2)
    with bench.trainers("shared") as one, bench.trainers("shared") as two:
        held = bench.held()
        for trainers in (one, two):
            assert all(loaded["mode"] == "shared" and not loaded["copied_bytes"] for loaded in trainers.loaded)
        assert all(answer["same"] for answer in one.ask("compare"))
        assert [answer["error"] != 0 for answer in one.ask("write")] == [True, True]
        # Another process's context is whole, and the bytes are what they were.
        assert all(answer["same"] for answer in two.ask("compare"))
        assert all(answer["same"] for answer in two.ask("forward"))
        assert bench.leases() == 4
        two.ask("drop")
        wait_until(lambda: bench.leases() == 2, "two leases to end")
        assert bench.held() == held
        assert two.end() == [0, 0] and [bench.fake.leaks(pid) for pid in two.pids] == [0, 0]
    assert len(bench.fake.calls("cuMemExportToShareableHandle")) == 2
    assert bench.fake.calls("cuMemcpyDtoDAsync") == []
    wait_until(lambda: bench.leases() == 0, "all leases to end")
    bench.unload()
    wait_until(lambda: bench.held() == 0, "the daemons' memory to be free")


def test_a_private_trainer_copies_once_says_so_and_leaves_the_daemon_s_as_it_was(cuda):
    bench = cuda(2)
    with bench.trainers("private") as trainers:
        assert all(loaded["copied_bytes"] > 0 for loaded in trainers.loaded)
        assert all(answer["same"] for answer in trainers.ask("train"))
        assert [bench.state(rank) for rank in range(2)] == [["STATE_ACTIVE"], ["STATE_ACTIVE"]]
        copies = bench.fake.calls("cuMemcpyDtoDAsync", result=0)
        assert sorted(line["pid"] for line in copies) == sorted(trainers.pids)
        trainers.ask("drop")
        assert trainers.end() == [0, 0]
        assert [bench.fake.leaks(pid) for pid in trainers.pids] == [0, 0]
    # The next one finds the weights of the file, not those that were trained.
    with bench.trainers("private") as trainers:
        assert all(answer["same"] for answer in trainers.ask("compare"))


def test_a_trainer_goes_on_when_its_daemon_is_killed(cuda):
    bench = cuda(1)
    with bench.trainers("exclusive") as trainers:
        assert trainers.ask("train") == [{"same": True}]
        bench.group.kill(0)
        assert trainers.ask("train") == [{"same": True}]
        trainers.ask("drop")
        wait_until(lambda: bench.held() == 0, "the memory to come back")
        assert trainers.end() == [0]


def test_what_a_killed_trainer_took_comes_back_from_the_host_tier(cuda):
    bench = cuda(2, daemon=["--host-tier", "64MiB"])
    with bench.trainers("exclusive") as trainers:
        assert all(answer["same"] for answer in trainers.ask("train"))
        for pid in trainers.pids:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: bench.held() == 0, "the trainers' memory to come back")
    assert all(int(bench.info(rank)["host_tier_used_bytes"]) > 0 for rank in range(2))
    # The weights of the file, not those that were trained; and nobody read the file.
    with bench.trainers("exclusive") as again:
        assert all(answer["same"] for answer in again.ask("compare"))
        for rank in range(2):
            newest = bench.group.json("list", rank=rank)["checkpoints"][0]["progress"]
            assert int(newest["read"]["storage_bytes"]) == 0
            assert int(newest["restored_bytes"]) == int(newest["bytes_done"]) > 0


def test_a_daemon_is_at_rest_again_when_a_load_has_failed_whose_bytes_were_sent_to_it(cuda, tmp_path):
    slow = {"lazy_ms": 0, "link_bytes_per_second": 8 << 20}
    bench = cuda(2, daemon=["--idle", "release", "--comm", "host"], gpus=slow)
    receiver = bench.group.pid(1)
    assert bench.contexts(receiver) == 0
    # Memory by name has no descriptors: its bytes are sent.
    source = save(tmp_path / "large.safetensors", {"w": torch.zeros(2, 16 << 20)})
    load = threading.Thread(target=bench.group.ctl, args=("load", source, "--layout", "fsdp:2", "--handle", "cuda_ipc"))
    load.start()
    wait_until(lambda: bench.fake.calls("cuMemcpyHtoDAsync", pid=receiver, result=0), "bytes to come")
    assert bench.contexts(receiver) > 0
    bench.group.kill(0)
    load.join()
    assert bench.group.pid(1) == receiver
    wait_until(lambda: bench.contexts(receiver) == 0, "the receiver to be at rest")
    assert int(bench.info(1)["staging_bytes"]) == 0


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
def test_a_daemon_at_rest_holds_no_context_and_serves_as_before(cuda, mode):
    bench = cuda(2, daemon=["--idle", "release"])
    pids = [bench.group.pid(rank) for rank in range(2)]

    def contexts():
        return [bench.contexts(pid) for pid in pids]

    assert contexts() == [0, 0]
    with bench.trainers(mode) as trainers:
        assert all(answer["same"] for answer in trainers.ask("compare"))
        assert contexts() == [0, 0] and bench.held() > 0
        if mode == "shared":
            name = bench.group.json("list")["checkpoints"][0]["name"]
            assert [bench.group.json("verify", name, rank=rank)["mismatched"] for rank in range(2)] == [[], []]
            assert contexts() == [0, 0]
            with bench.trainers(mode) as more:
                assert all(answer["same"] for answer in more.ask("compare"))
    with bench.trainers(mode) as again:
        assert all(answer["same"] for answer in again.ask("compare"))
    assert contexts() == [0, 0]


# 810: MPS has ended this client, for what another one did.
@pytest.mark.parametrize("error", [700, 810])
def test_a_daemon_whose_gpu_fails_says_so_asks_nothing_more_of_it_and_is_replaced(cuda, error):
    bench = cuda(2, f"cuMemcpyHtoDAsync nth=1 sticky={error} role=daemon")
    bench.fake.script()  # daemons that start from now on have sound GPUs
    bench.group.known_ends = re.compile("exit code 1, restart")
    before = bench.group.pid(0)
    answer = bench.group.ctl("load", bench.source, "--layout", "fsdp:2")
    failure = json.loads(answer.stderr.splitlines()[-1])["error"]
    assert failure["reason"] == "DEVICE_FAILED", failure
    assert "start it again" in failure["message"], failure
    assert error != 700 or "CUDA_ERROR_ILLEGAL_ADDRESS" in failure["message"]
    wait_until(
        lambda: (lambda infos: infos and infos[0]["pid"] != before)(bench.group.ready()),
        "another daemon of rank 0",
    )
    # Its threads may each have been in a call meanwhile; nobody began one afterwards.
    late = [line["call"] for line in bench.fake.trace(before) if line.get("after_sticky")]
    assert len(late) <= 4, late
    with bench.trainers("exclusive") as trainers:
        assert all(answer["same"] for answer in trainers.ask("compare"))


def test_a_daemon_whose_gpu_is_gone_for_a_while_is_started_until_it_is_back(cuda):
    bench = cuda(2)
    bench.group.known_ends = re.compile(r"signal 9 \(Killed\), restart|exit code 2, restart")
    before = bench.group.pid(1)
    bench.fake.script("cuInit error=999 role=daemon")
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: bench.group.log().count("exit code 2, restart") >= 2, "two that found no GPU")
    bench.fake.script()
    wait_until(
        lambda: (lambda infos: infos and infos[1]["pid"] != before)(bench.group.ready()), "another daemon of rank 1"
    )
    with bench.trainers("exclusive") as trainers:
        assert all(answer["same"] for answer in trainers.ask("compare"))


@pytest.mark.parametrize("mode", ["exclusive", "private", "shared"])
def test_a_killed_trainer_s_memory_comes_back(cuda, mode):
    bench = cuda(1)
    with bench.trainers(mode) as trainers:
        if mode == "exclusive":
            wait_until(lambda: bench.state() == ["STATE_TAKEN"], "the daemon to note that it was taken")
        daemons = int(bench.info()["used_bytes"])
        assert (daemons > 0) == (mode != "exclusive") and (bench.held() > daemons) == (mode != "shared")
        os.kill(trainers.pids[0], signal.SIGKILL)
        wait_until(lambda: bench.leases() == 0, "the lease to end")
        wait_until(lambda: bench.held() == daemons, "the trainer's memory to come back")
    with bench.trainers(mode) as again:
        assert again.ask("compare") == [{"same": True}]


def test_a_trainer_on_another_gpu_is_told_which_one_it_needs(cuda):
    bench = cuda(1)
    with bench.trainers("shared", CUDA_VISIBLE_DEVICES="1") as trainers:
        (refused,) = trainers.loaded
        assert refused["reason"] == "NO_DEVICE" and bench.info()["device_uuid"] in refused["message"]
        assert "-000000000002" in refused["message"] and "CUDA_VISIBLE_DEVICES" in refused["message"]
        assert trainers.end() == [0] and bench.fake.leaks(trainers.pids[0]) == 0
    wait_until(lambda: bench.leases() == 0, "its lease to end")
    bench.unload()


@pytest.mark.parametrize("mode", ["shared", "exclusive"])
def test_a_driver_that_refuses_the_import_leaves_nothing_behind(cuda, mode):
    bench = cuda(1, "cuMemImportFromShareableHandle error=304 role=trainer")
    with bench.trainers(mode) as trainers:
        (refused,) = trainers.loaded
        assert refused["reason"] == "DEVICE_FAILED" and "CUDA_ERROR_OPERATING_SYSTEM" in refused["message"]
        assert trainers.end() == [0] and bench.fake.leaks(trainers.pids[0]) == 0
    wait_until(lambda: bench.leases() == 0, "its lease to end")
    bench.unload()
    wait_until(lambda: bench.held() == 0, "all memory to be free")


# The other one: no room on that GPU for what mapping its memory takes.
@pytest.mark.parametrize("error, name", [(304, "OPERATING_SYSTEM"), (2, "OUT_OF_MEMORY")])
def test_a_leader_whose_driver_refuses_a_peer_s_memory_sends_it_the_bytes_and_says_so(cuda, error, name):
    bench = cuda(2, f"cuMemImportFromShareableHandle error={error} role=daemon")
    with bench.trainers("shared") as trainers:
        assert all(answer["same"] for answer in trainers.ask("compare"))
        (checkpoint,) = bench.group.json("list")["checkpoints"]
        assert checkpoint["progress"]["streamed_ranks"] == [1]
    said = [line for line in bench.group.log().splitlines() if "mapping the memory of rank 1" in line]
    assert said and f"CUDA_ERROR_{name}" in said[0] and "run directory" not in said[0]


def test_the_bytes_are_those_of_host_memory(cuda, tmp_path, tmp_path_factory):
    import ctypes

    import ckptd

    bench = cuda(1)
    # The driver is opened in a process of its own: this one has none.
    code = """
import ctypes, sys, ckptd
with ckptd.connect(sys.argv[1]) as client:
    print(client.device())
    with client.acquire(client.load(sys.argv[2], layout="fsdp:1")) as shard:
        for name in sorted(shard.tensors):
            view = shard.tensors[name]
            print(name, view.dtype, view.shape, view.offset, view.digest,
                  ctypes.string_at(view.pointer, view.padded_nbytes).hex())
print("end")
"""
    mixed = save(tmp_path / "mixed.safetensors", {
        "a": torch.randn(33, 7).to(torch.bfloat16), "b": torch.arange(5), "c": torch.zeros(0, 3),
        "large": torch.randn(1100, 700), "flag": torch.tensor([True, False])})  # fmt: skip
    environment = {**bench.group.environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    with Program(code, bench.group.address(0), mixed, environment=environment) as program:
        assert program.hear() == bench.info()["device_uuid"]
        on_gpu = list(iter(program.hear, "end"))
    expected = []
    with Group(tmp_path_factory.mktemp("h"), 1) as host, ckptd.connect(host.address(0)) as client:
        assert client.device() is None
        with client.acquire(client.load(mixed, layout="fsdp:1")) as shard:
            for name in sorted(shard.tensors):
                view = shard.tensors[name]
                content = ctypes.string_at(view.pointer, view.padded_nbytes).hex()
                expected.append(f"{name} {view.dtype} {view.shape} {view.offset} {view.digest} {content}".strip())
    assert on_gpu == expected and len(expected) == 5


COLUMNS = {
    "world_size": 2,
    "mesh": {"shape": [2]},
    "rules": [
        {"match": "*.narrow", "placements": ["shard(1)"]},
        {"match": "*.wide", "placements": ["shard(1)"], "dtype": "F32"},
        {"match": "*", "placements": ["shard(0)"], "dtype": "F32"},
    ],
}


# The fake's memory is memory of the process that maps it.
READ_SHARD = """
import ctypes, pickle, sys, ckptd
with ckptd.connect(sys.argv[1]) as client, client.acquire(sys.argv[2]) as shard:
    found = {}
    for name, view in shard.tensors.items():
        pointer, _ = view.__cuda_array_interface__["data"]
        found[name] = ctypes.string_at(pointer, view.nbytes)
    sys.stdout.buffer.write(pickle.dumps(found))
"""


def read_shard(bench, rank, name):
    """The bytes of each tensor, as a trainer beside that rank maps them."""
    own = {**os.environ, **bench.group.environment, **bench.fake.environment("trainer")}
    own["PYTHONPATH"] = str(HERE.parents[1] / "client/python/src")
    command = [sys.executable, "-c", READ_SHARD, bench.group.address(rank), name]
    done = subprocess.run(command, env=own, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return pickle.loads(done.stdout)


@pytest.mark.parametrize("digest", ["on", "off"])
def test_gpus_take_narrow_columns_and_widened_elements_out_of_blocks_themselves(cuda, digest):
    bench = cuda(2)
    kernels = all("no copy kernels" not in bench.info(rank)["why"] for rank in range(2))
    generator = torch.Generator().manual_seed(3)
    tensors = {
        "a.narrow": torch.randn(1024, 512, generator=generator),
        "a.wide": torch.randn(512, 1024, generator=generator).bfloat16(),
        "a.rows": torch.randn(512, 1024, generator=generator).bfloat16(),
    }
    source = save(bench.folder / "columns.safetensors", tensors)
    layout = bench.folder / "columns.json"
    layout.write_text(json.dumps(COLUMNS))
    loaded = bench.group.json("load", source, "--layout", str(layout), "--digest", digest)
    name = loaded.get("checkpoint", loaded)["name"]
    for rank in range(2):
        expected = {
            "a.narrow": tensors["a.narrow"].chunk(2, 1)[rank],
            "a.wide": tensors["a.wide"].float().chunk(2, 1)[rank],
            "a.rows": tensors["a.rows"].float().chunk(2)[rank],
        }
        found = read_shard(bench, rank, name)
        for tensor, value in expected.items():
            assert found[tensor] == value.contiguous().numpy().tobytes(), tensor
    launches = len(bench.fake.calls("cuLaunchKernel", result=0))
    assert (launches > 0) == kernels
