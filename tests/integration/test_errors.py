"""Ordinary mistakes: a canonical code, one sentence, a reason, and the daemon lives on."""

import subprocess
import threading
import time

import ckptd
import grpc
import pytest
import torch
import warm
from faults import client_environment
from group import BINARIES, SOON, clean_environment, save


@pytest.fixture
def good(tmp_path):
    return save(tmp_path / "good.safetensors", {"w": torch.arange(8.0), "v": torch.arange(6.0).view(2, 3)})


def load_error(pair, path, layout="fsdp:2", rank=0, **options):
    with ckptd.connect(pair.address(rank)) as client:
        with pytest.raises(ckptd.Error) as caught:
            client.load(str(path), layout=layout, **options)
    return caught.value


def assert_still_works(pair, good):
    for rank in range(2):
        with ckptd.connect(pair.address(rank)) as client:
            with client.acquire(client.load(good, layout="fsdp:2")) as shard:
                assert len(shard.tensors) == 2


def test_a_path_that_is_not_there(pair, tmp_path, good):
    error = load_error(pair, tmp_path / "nothing")
    assert (error.code, error.reason) == ("NOT_FOUND", "SOURCE_NOT_FOUND")
    assert str(tmp_path / "nothing") in error.message
    assert_still_works(pair, good)


def test_a_truncated_file_is_named_with_safetensors_own_error(pair, tmp_path, good):
    path = tmp_path / "cut.safetensors"
    path.write_bytes(open(good, "rb").read()[:-5])
    for rank in range(2):
        error = load_error(pair, path, rank=rank)
        assert (error.code, error.reason) == ("DATA_LOSS", "SOURCE_INVALID")
        assert "MetadataIncompleteBuffer" in error.message and str(path) in error.message
    assert_still_works(pair, good)


def test_an_unknown_layout(pair, good):
    error = load_error(pair, good, layout="zigzag:2")
    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "LAYOUT_INVALID")
    assert "zigzag" in error.message and "fsdp:N" in error.message
    assert_still_works(pair, good)


def test_a_layout_that_does_not_fit_the_model(pair, good):
    rules = '{"mesh": {"shape": [2]}, "rules": [{"match": ["*"], "placements": ["shard(1)"]}]}'
    error = load_error(pair, good, layout=rules)
    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "LAYOUT_MISMATCH")
    assert "w" in error.message
    assert_still_works(pair, good)


def test_a_layout_for_another_world_size(pair, good):
    error = load_error(pair, good, layout="fsdp:4")
    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "WRONG_WORLD_SIZE")
    assert "4" in error.message and "2" in error.message


def test_no_daemon_at_the_address(tmp_path, good):
    began = time.monotonic()
    with pytest.raises(ckptd.Error) as caught:
        with ckptd.connect(f"unix://{tmp_path}/none.sock", wait=1) as client:
            client.load(good, layout="fsdp:2")
    assert caught.value.reason == "DAEMON_UNREACHABLE" and f"{tmp_path}/none.sock" in caught.value.message
    assert time.monotonic() - began < SOON
    answer = subprocess.run([BINARIES / "ckptctl", "--address", f"unix://{tmp_path}/none.sock", "--timeout", "1",
                             "list"], capture_output=True, text=True, env=clean_environment(), timeout=60)
    assert answer.returncode == 3 and str(tmp_path) in answer.stderr


def test_ranks_that_do_not_state_their_tensors_are_named_at_the_deadline(pair, good):
    program = (
        "import sys, torch, ckptd, ckptd.torch\n"
        "from torch import nn\n"
        "m = nn.Module(); m.w = nn.Parameter(torch.empty(8, device='meta')); m.v = nn.Parameter(torch.empty(2, 3, device='meta'))\n"
        "try:\n"
        "    ckptd.torch.load_into(m, sys.argv[1], timeout=5)\n"
        "except ckptd.Error as error:\n"
        "    print(error.code, error.reason, error.message)\n")
    env = {**client_environment(), "CKPTD_ADDRESS": pair.address(0), "RANK": "0", "WORLD_SIZE": "2",
           "OMP_NUM_THREADS": "1"}
    trainer = warm.spawn(["-c", program, good], env, stdout=warm.PIPE, stderr=warm.PIPE)
    out, err = trainer.communicate(240)
    assert "DEADLINE_EXCEEDED" in out, out + err
    assert "ranks 1" in out or "rank 1" in out, out
    assert_still_works(pair, good)


def test_too_little_memory_is_refused_with_the_numbers_before_a_byte_is_read(start, tmp_path):
    group = start(2, "--memory-budget", "8MiB")
    path = save(tmp_path / "large.safetensors", {"w": torch.zeros(6 << 20)})  # 12 MiB a rank
    for rank in range(2):
        error = load_error(group, path, rank=rank)
        assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "NO_MEMORY")
        assert "12" in error.message and "8" in error.message, error.message
    failed = group.json("list", "--failed")["checkpoints"][0]
    assert int(failed["progress"]["read"]["storage_bytes"]) == 0


def test_one_rank_s_error_reaches_the_clients_of_all_ranks(start, tmp_path):
    """Only rank 1 is to receive more than its budget; rank 0's client learns why, and whose it is."""
    group = start(2, "--memory-budget", "8MiB")
    rules = ('{"mesh": {"shape": [2]}, "rules": ['
             '{"match": ["big"], "placements": ["replicate"], "only_ranks": [1]},'
             '{"match": ["*"], "placements": ["replicate"]}]}')
    path = save(tmp_path / "uneven.safetensors", {"big": torch.zeros(6 << 20), "small": torch.zeros(1)})
    for rank in range(2):
        error = load_error(group, path, layout=rules, rank=rank)
        assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "NO_MEMORY")
        assert "rank 1" in error.message, error.message
    small = save(tmp_path / "small.safetensors", {"small": torch.zeros(1)})
    with ckptd.connect(group.address(0)) as client:
        assert client.load(small, layout=rules).name


def health(group, rank):
    """What grpc.health.v1 says of the workload socket: 1 SERVING, 2 NOT_SERVING."""
    with grpc.insecure_channel("unix:" + group.address(rank).removeprefix("unix://")) as channel:
        kind, value = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=60)
    assert kind == 8
    return value


def test_a_daemon_that_is_draining_takes_nothing_new_and_says_which_it_is(start, good):
    group = start(2)
    assert [health(group, 0), health(group, 1)] == [1, 1]
    assert group.ctl("drain", rank=1).returncode == 0
    assert [health(group, 0), health(group, 1)] == [1, 2]
    error = load_error(group, good, layout="fsdp:2", rank=1)
    assert (error.code, error.reason) == ("UNAVAILABLE", "DRAINING")
    assert "rank 1: its daemon is draining" in error.message and error.facts["rank"] == "1"


def test_many_clients_at_once_all_get_the_one_load(pair, tmp_path):
    path = save(tmp_path / "shared.safetensors", {"w": torch.arange(100_000.0)})
    names, errors = set(), []

    def load(rank):
        try:
            with ckptd.connect(pair.address(rank)) as client:
                names.add(client.load(path, layout="fsdp:2").name)
        except ckptd.Error as error:
            errors.append(error)

    threads = [threading.Thread(target=load, args=(i % 2,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors and len(names) == 1


@pytest.mark.parametrize(
    "options, reason",
    [
        (("--memory", "cuda"), "NO_DEVICE"),
        (("--comm", "nccl"), "NO_NCCL"),
        (("--run-dir", "/proc/nowhere"), "CONFIG_INVALID"),
        (("--job", "j" * 200), "CONFIG_INVALID"),  # no path of a socket is so long
    ],
)
def test_launch_gives_up_at_once_what_stays_as_it_is(tmp_path, options, reason):
    ended = subprocess.run(
        [BINARIES / "ckptd", "launch", "--nproc", "2", *options],
        env={**clean_environment(), "CUDA_VISIBLE_DEVICES": "", "CKPTD_RUN_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2 and f"[{reason}]" in ended.stderr, ended.stderr
    assert "restart in" not in ended.stderr and "daemons are ready" not in ended.stderr


@pytest.mark.parametrize("command", [["ckptd", "--help"], ["ckptd", "config"], ["ckptd", "info"], ["ckptctl", "--help"], ["ckptctl", "version"]])
def test_what_cannot_be_written_is_said_and_fails(command):
    program, *arguments = command
    with open("/dev/full", "w") as full:
        ended = subprocess.run([BINARIES / program, *arguments], env=clean_environment(), stdout=full,
                               stderr=subprocess.PIPE, text=True, timeout=60)
    assert ended.returncode == 1 and f"{program}: writing to standard output: " in ended.stderr


@pytest.mark.parametrize(
    "options, sentence",
    [
        (("--rendezvous", "127.0.0.1:0"), "no other rank would know which port that becomes"),
        (("--nnodes", "2"), "say where rank 0 listens with --rendezvous HOST:PORT"),
        (("--node-rank", "1"), "launching on node 1: a job of 1 node has no node of that number"),
    ],
)
def test_launch_refuses_a_place_where_ranks_could_not_find_each_other(tmp_path, options, sentence):
    ended = subprocess.run([BINARIES / "ckptd", "launch", "--nproc", "2", "--run-dir", tmp_path, *options],
                           env=clean_environment(), capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and sentence in ended.stderr and "[CONFIG_INVALID]" in ended.stderr, ended.stderr


def test_a_start_timeout_that_is_no_number_of_seconds_is_refused(tmp_path):
    for wrong in ("nan", "inf", "-5", "0", "1e30"):
        ended = subprocess.run([BINARIES / "ckptd", "launch", "--run-dir", tmp_path, "--start-timeout", wrong],
                               env=clean_environment(), capture_output=True, text=True, timeout=60)
        assert ended.returncode == 2 and "--start-timeout" in ended.stderr, ended.stderr
