"""GPU memory that daemons name by 64 bytes (legacy CUDA IPC), and real trainers on it."""

import os
import signal
import sys

import ckptd
import pytest
from cuda_bench import WHY_NOT
from faults import Program, ticket
from group import wait_until
from noise import show

pytest.importorskip("cuda.bindings.driver")
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
CUDA_IPC = 3
OPEN, CLOSE = "cuIpcOpenMemHandle", "cuIpcCloseMemHandle"


def load(bench, rank=0, **options):
    with ckptd.connect(bench.group.address(rank)) as client:
        return client.load(bench.source, layout=f"fsdp:{bench.group.ranks}", **options)


def assert_each_is_closed_once(bench, pids):
    """What was opened was closed as often, and nothing was copied on a GPU but for `private`."""
    for pid in pids:
        opened = bench.fake.calls(OPEN, pid, result=0)
        closed = bench.fake.calls(CLOSE, pid, result=0)
        assert len(opened) == 1 and len(closed) == 1, (opened, closed)
        assert opened[0]["address"] == closed[0]["address"]


def test_readers_share_the_memory_that_they_open(cuda):
    # By NCCL a daemon would need memory that the bytes pass through.
    bench, ranks = cuda(2, daemon=("--comm", "host")), 2
    with bench.trainers("shared", "cuda_ipc") as one, bench.trainers("shared", "cuda_ipc") as two:
        for loaded in (*one.loaded, *two.loaded):
            assert loaded["handle"] == "cuda_ipc" and loaded["copied_bytes"] == 0
        assert all(answer["same"] for answer in one.ask("compare") + two.ask("compare"))
        assert all(answer["same"] for answer in two.ask("forward"))
        assert bench.held() == sum(int(bench.info(rank)["used_bytes"]) for rank in range(ranks))
        for trainers in (one, two):
            trainers.ask("drop")
            assert trainers.end() == [0] * ranks
            assert [bench.fake.leaks(pid) for pid in trainers.pids] == [0] * ranks
            assert_each_is_closed_once(bench, trainers.pids)
    wait_until(lambda: bench.leases() == 0, "all leases to end")
    # Nobody but clients opens it: daemons send each other the bytes, and say so.
    (checkpoint,) = bench.group.json("list")["checkpoints"]
    assert checkpoint["progress"]["streamed_ranks"] == [1]
    bench.unload()
    wait_until(lambda: bench.held() == 0, "the daemons' memory to be free")
    daemons = [bench.group.pid(rank) for rank in range(ranks)]
    for pid in daemons:
        made = [line["address"] for line in bench.fake.calls("cuMemAlloc", pid, result=0)]
        freed = [line["address"] for line in bench.fake.calls("cuMemFree", pid, result=0)]
        assert len(made) == 1 and made == freed
        assert bench.fake.calls(OPEN, pid) == []
    assert bench.fake.calls("cuMemcpyDtoDAsync") == [] and bench.fake.calls("cuMemcpyDtoD") == []
    assert bench.fake.calls("cuMemCreate") == []


def test_a_private_trainer_copies_and_keeps_nothing_open(cuda):
    bench = cuda(1)
    with bench.trainers("private", "cuda_ipc") as trainers:
        assert trainers.loaded[0]["copied_bytes"] > 0 and trainers.loaded[0]["handle"] == "cuda_ipc"
        assert_each_is_closed_once(bench, trainers.pids)
        assert trainers.ask("train") == [{"same": True}]
        # Its memory is its own: the daemon may go.
        bench.group.kill(0)
        assert trainers.ask("train") == [{"same": True}]
        trainers.ask("drop")
        assert trainers.end() == [0] and bench.fake.leaks(trainers.pids[0]) == 0


# Takes a copy that does not end, and lives on.
STANDS_STILL = """
import sys, ckptd
from ckptd import _cuda
_cuda._PATIENCE = 0.1
with ckptd.connect(sys.argv[1]) as client:
    try:
        client.acquire(client.load(sys.argv[2], layout="fsdp:1", handle="cuda_ipc"), "private")
    except ckptd.Error as error:
        print(error.reason, flush=True)
sys.stdin.read()
"""


def test_memory_that_a_copy_may_still_read_stays_leased_as_long_as_its_process_lives(cuda):
    bench = cuda(1, "cuStreamQuery error=600 role=trainer")
    own = {**bench.group.environment, **bench.fake.environment("trainer"),
           "PYTHONPATH": os.pathsep.join(sys.path)}  # fmt: skip
    with Program(STANDS_STILL, bench.group.address(0), bench.source, environment=own) as program:
        assert program.hear() == "DEADLINE"
        (checkpoint,) = bench.group.json("list")["checkpoints"]
        assert bench.group.error("unload", checkpoint["name"])["reason"] == "LEASED"
    wait_until(lambda: bench.leases() == 0, "its lease to end")
    bench.unload()


def test_such_memory_cannot_be_taken_and_the_sentence_says_what_can(cuda):
    bench = cuda(1)
    with pytest.raises(ckptd.FailedPrecondition) as caught:
        load(bench, mode="exclusive", handle="cuda_ipc")
    assert caught.value.reason == "HANDLE_KIND" and "VMM_FD" in caught.value.message
    assert bench.held() == 0 and bench.fake.calls("cuMemAlloc") == []


def test_a_host_daemon_has_no_such_handles(tmp_path_factory):
    from group import Group, save
    import torch

    folder = tmp_path_factory.mktemp("h")
    path = save(folder / "m.safetensors", {"w": torch.zeros(3)})
    with Group(folder, 1) as group, ckptd.connect(group.address(0)) as client:
        with pytest.raises(ckptd.FailedPrecondition) as caught:
            client.load(path, layout="fsdp:1", handle="cuda_ipc")
        assert caught.value.reason == "HANDLE_KIND" and "MEMFD" in caught.value.message
        assert client.load(path, layout="fsdp:1", handle="memfd").handle == "memfd"


def test_a_client_that_does_not_name_the_kind_is_refused_with_what_to_try(cuda):
    bench = cuda(1)
    checkpoint = load(bench, handle="cuda_ipc")
    assert checkpoint.handle == "cuda_ipc"
    assert bench.group.json("list")["checkpoints"][0]["handle_kind"] == "HANDLE_KIND_CUDA_IPC"
    with ckptd.connect(bench.group.address(0)) as client:
        for kinds in ([], [1, 2]):
            with pytest.raises(ckptd.FailedPrecondition) as caught:
                ticket(client, checkpoint, kinds=kinds)
            assert caught.value.reason == "HANDLE_KIND"
            assert "HANDLE_KIND_CUDA_IPC" in caught.value.message
        assert bench.leases() == 0
        reply = ticket(client, checkpoint, kinds=[1, CUDA_IPC])
        assert len(reply.cuda_ipc.handle) == 64 and reply.cuda_ipc.allocation_bytes % (2 << 20) == 0
        assert reply.cuda_ipc.device_uuid == bench.info()["device_uuid"]
        # The token gets no descriptor: what it gets is the lease.
        assert show(reply.token, reply.cuda_ipc.fd_socket) == (0, 0)


@pytest.mark.parametrize("attribute", ["attribute__102", "attribute__103"])
def test_a_gpu_without_descriptors_serves_who_asks_for_its_handles_and_nobody_else(cuda, attribute):
    bench = cuda(1, gpus={attribute: 0})
    for options in ({}, {"mode": "exclusive"}, {"handle": "vmm_fd"}):
        with pytest.raises(ckptd.FailedPrecondition) as caught:
            load(bench, **options)
        assert caught.value.reason == "HANDLE_KIND" and "--handle cuda_ipc" in caught.value.message
    assert bench.held() == 0
    for mode in ("shared", "private"):
        with bench.trainers(mode, "cuda_ipc") as trainers:
            assert trainers.ask("compare") == [{"same": True}]
    assert bench.fake.calls("cuMemCreate") == []


def test_the_two_kinds_are_two_checkpoints_of_one_source(cuda):
    bench = cuda(1)
    by_name = load(bench, handle="cuda_ipc")
    by_descriptor = load(bench)
    assert by_descriptor.name != by_name.name and by_descriptor.differs == ("handle_kind",)
    assert load(bench, handle="vmm_fd").name == by_descriptor.name
    again = load(bench, handle="cuda_ipc")
    assert again.name == by_name.name and again.resident
    bench.unload()


# Opens a shard, closes it, and keeps a view; tells what it sees each time it is asked.
KEEPER = """
import ctypes, gc, sys, ckptd
with ckptd.connect(sys.argv[1]) as client:
    try:
        shard = client.acquire(client.load(sys.argv[2], layout="fsdp:1", handle="cuda_ipc"))
    except ckptd.Error as error:
        print(error.reason, error.message, flush=True)
        sys.exit()
view = next(shard.tensors[name] for name in sorted(shard.tensors) if shard.tensors[name].nbytes)
first = ctypes.string_at(view.pointer, view.nbytes)
shard.close()
print(shard.closed, view.writable, flush=True)
for line in sys.stdin:
    if line == "drop\\n":
        view = shard = None
        gc.collect()
        print("dropped", flush=True)
    elif line == "spoil\\n":
        ctypes.memset(view.pointer, first[0] ^ 1, 1)
        print("spoilt", flush=True)
    else:
        print(ctypes.string_at(view.pointer, view.nbytes) == first, flush=True)
"""


def keeping(bench):
    own = {**bench.group.environment, **bench.fake.environment("trainer"),
           "PYTHONPATH": os.pathsep.join(sys.path)}  # fmt: skip
    return Program(KEEPER, bench.group.address(0), bench.source, environment=own)


@pytest.fixture
def keeper(cuda):
    """(bench, program with the shard open and a view of it)."""
    bench = cuda(1)
    with keeping(bench) as program:
        # A view needs the lease, so closing the shard leaves it.
        assert program.hear() == "False False"
        yield bench, program


def test_memory_that_is_open_is_not_freed_whatever_operators_and_other_loads_do(keeper, tmp_path):
    bench, program = keeper
    name = bench.group.json("list")["checkpoints"][0]["name"]
    assert bench.leases() == 1 and bench.group.error("unload", name)["reason"] == "LEASED"
    held = bench.held()
    bench.group.json("unload", name, "--force")
    assert bench.held() == held and program.ask("look") == "True"
    load(bench, handle="cuda_ipc")
    assert program.ask("look") == "True"
    assert program.ask("drop") == "dropped"
    wait_until(lambda: bench.leases() == 0, "its lease to end")
    wait_until(lambda: bench.held() == held, "its memory to be free")
    bench.unload()
    assert bench.fake.violations() == []


def test_nothing_keeps_a_reader_from_writing_and_verifying_finds_it(keeper):
    bench, program = keeper
    with ckptd.connect(bench.group.address(0)) as client:
        (checkpoint,) = client.list()
        assert client.verify(checkpoint).mismatched == ()
        assert program.ask("spoil") == "spoilt"
        assert len(client.verify(checkpoint).mismatched) == 1
    assert program.ask("drop") == "dropped"
    wait_until(lambda: bench.leases() == 0, "its lease to end")
    bench.unload()


def test_a_killed_client_s_lease_ends_and_the_memory_can_go(keeper):
    bench, program = keeper
    os.kill(program.pid, signal.SIGKILL)
    wait_until(lambda: bench.leases() == 0, "its lease to end")
    bench.unload()
    wait_until(lambda: bench.held() == 0, "the memory to be free")


@pytest.mark.parametrize(
    "fault, reason, says",
    [
        ("cuIpcOpenMemHandle error=201", "HANDLE_KIND", "PID namespace"),
        ("cuMemGetAddressRange error=1", "DEVICE_FAILED", "how large"),
    ],
)
def test_the_lease_of_a_client_whose_driver_refuses_ends_at_once(cuda, fault, reason, says):
    bench = cuda(1, f"{fault} role=trainer")
    with keeping(bench) as program:
        refused = program.hear()
        assert refused.startswith(f"{reason} ") and says in refused
        program.process.communicate(timeout=60)
        assert bench.fake.leaks(program.pid) == 0
        calls = [bench.fake.calls(name, program.pid, result=0) for name in (OPEN, CLOSE)]
        assert len(calls[0]) == len(calls[1]), calls
    wait_until(lambda: bench.leases() == 0, "its lease to end")
    bench.unload()


def test_a_gpu_that_has_too_little_refuses_the_load_with_the_numbers(cuda):
    bench = cuda(1, "cuMemAlloc error=2 role=daemon")
    with pytest.raises(ckptd.ResourceExhausted) as caught:
        load(bench, handle="cuda_ipc")
    assert caught.value.reason == "NO_MEMORY"
    assert bench.held() == 0 and int(bench.info()["used_bytes"]) == 0
