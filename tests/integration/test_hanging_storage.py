"""Storage that stops answering: it holds up what needs it, until its timeout, and nothing else."""

import concurrent.futures
import signal
import tempfile
import time

import ckptd
import fuse_files
import hanging
import pytest
from faults import Loading, assert_loads, assert_nothing_is_left, sparse
from group import PATIENCE, SOON, Group, wait_until

with tempfile.TemporaryDirectory() as folder:
    reason = hanging.why_not(folder) or fuse_files.why_not(folder)
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))
MIB = 1 << 20


def checkpoint_of(group, path):
    """None before the load of that path has begun."""
    for one in group.json("list", "--failed")["checkpoints"]:
        if one["source"] == path:
            return group.json("get", one["name"])


def failure_of(group, path):
    return wait_until(lambda: (checkpoint_of(group, path) or {}).get("failure"), f"the load of {path} to fail")


def test_a_load_that_waits_for_its_storage_fails_at_its_timeout_and_others_pass_it(start, tmp_path):
    resident, hangs, other = (sparse(tmp_path / name) for name in ("r.safetensors", "h.safetensors", "o.safetensors"))
    group = start(2)
    with ckptd.connect(group.address(0)) as client:
        name = client.load(resident, layout="fsdp:2").name
        with hanging.HangingFile(hangs) as file:
            Loading(group, 0, hangs, "fsdp:2", timeout=8)
            assert file.await_opener() == group.pid(0)
            behind = Loading(group, 0, other, "fsdp:2")
            again = client.load(resident, layout="fsdp:2")
            assert again.resident and again.name == name
            client.acquire(again).close()
            assert behind.outcome(SOON).source == other
            assert checkpoint_of(group, hangs)["state"] == "STATE_LOADING"
            stuck = failure_of(group, hangs)
            assert stuck["reason"] == "STORAGE_STALLED"
            assert f"the timeout passed while {hangs} has not answered for" in stuck["message"]
        assert_loads(group, hangs)
    assert_nothing_is_left(group)


def served(tmp_path):
    """A file of 8 MiB on storage of its own, which can stop answering."""
    (tmp_path / "mount").mkdir()
    return fuse_files.FuseFile(tmp_path / "mount", sparse(tmp_path / "served.safetensors", 8 * MIB))


def state_of(group, rank, path):
    states = [one["state"] for one in group.json("list", "--failed", rank=rank)["checkpoints"] if one["source"] == path]
    return states[-1] if states else None


def test_a_file_that_stops_answering_in_a_transfer_holds_up_nothing_else(start, tmp_path):
    resident, healthy = (sparse(tmp_path / name, 4 * MIB) for name in ("r.safetensors", "h.safetensors"))
    group = start(2)
    with served(tmp_path) as file, ckptd.connect(group.address(0)) as client:
        name = client.load(resident, layout="fsdp:2").name
        file.hang(MIB)
        stuck, began = Loading(group, 0, file.path, "fsdp:2", timeout=8), time.monotonic()
        file.await_reader(SOON)
        assert client.load(healthy, layout="fsdp:2").source == healthy
        assert state_of(group, 0, file.path) == state_of(group, 1, file.path) == "STATE_LOADING"
        assert client.verify(name)
        assert client.inspect(healthy)
        client.acquire(client.load(resident, layout="fsdp:2")).close()

        error = stuck.outcome(SOON)
        wait_until(lambda: {state_of(group, rank, file.path) for rank in (0, 1)} == {"STATE_FAILED"}, "all to leave it")
        assert time.monotonic() - began < 8 + 5
        assert isinstance(error, ckptd.DeadlineExceeded), error
        failure = failure_of(group, file.path)
        assert failure["reason"] == "STORAGE_STALLED"
        assert f"the timeout passed while {file.path} has not answered for" in failure["message"]

        held = int(group.info(0)["memory"]["used_bytes"])
        assert "are kept for reads that have not returned: " + file.path in group.info(0)["detail"]
        with pytest.raises(ckptd.DeadlineExceeded, match="it is not begun while " + file.path):
            client.load(file.path, layout="fsdp:2")
        file.let_go()
        wait_until(lambda: int(group.info(0)["memory"]["used_bytes"]) < held, "its memory to be given back")
        wait_until(lambda: not group.info(0).get("detail"), "nothing to be kept any more")
        assert_loads(group, file.path)
    assert_nothing_is_left(group)


def test_a_query_whose_file_hangs_is_passed_by_others_and_says_which_file(start, tmp_path):
    healthy = sparse(tmp_path / "h.safetensors")
    group = start(1)
    with served(tmp_path) as file, ckptd.connect(group.address(0)) as client:
        name = client.load(healthy, layout="fsdp:1").name
        file.hang()
        with concurrent.futures.ThreadPoolExecutor() as others, ckptd.connect(group.address(0)) as other:
            asked = others.submit(other.inspect, file.path, 6)
            file.await_reader(SOON)
            assert client.verify(name)
            assert client.inspect(healthy)
            with pytest.raises(ckptd.DeadlineExceeded, match=file.path + " has not answered for") as error:
                asked.result(SOON)
        assert error.value.reason == "STORAGE_STALLED"


def test_who_watches_a_load_in_which_nothing_changes_hears_that_its_daemon_lives(start, tmp_path):
    path = sparse(tmp_path / "h.safetensors")
    group = start(1)
    with hanging.HangingFile(path) as file:
        Loading(group, 0, path, "fsdp:1")
        file.await_opener()
        with ckptd.connect(group.address(0)) as client:
            watch = client.watch(checkpoint_of(group, path)["name"], timeout=PATIENCE)
            first, second, third = (next(watch) for _ in range(3))
        assert first.state == "LOADING" and second == third


def test_a_load_that_waits_for_its_storage_is_cancelled_at_once(start, tmp_path):
    path = sparse(tmp_path / "h.safetensors")
    group = start(2)
    with hanging.HangingFile(path) as file:
        loading = Loading(group, 0, path, "fsdp:2")
        file.await_opener()
        assert group.json("unload", "--force", checkpoint_of(group, path)["name"])["cancelled"] is True
        error = loading.outcome(SOON)
        assert isinstance(error, ckptd.Aborted) and error.reason == "LOAD_CANCELLED", error
    assert_loads(group, path)
    assert_nothing_is_left(group)


def test_a_daemon_whose_storage_does_not_answer_stops_all_the_same(tmp_path):
    path = sparse(tmp_path / "h.safetensors")
    group = Group(tmp_path, 1)
    group.wait_ready()
    with hanging.HangingFile(path) as file:
        Loading(group, 0, path, "fsdp:1")
        file.await_opener()
        began = time.monotonic()
        group.process.send_signal(signal.SIGTERM)
        assert group.process.wait(PATIENCE) == 1
        assert time.monotonic() - began < SOON
    assert "it has not finished after 8.0 s, so the process ends now" in group.log()
    with Group(tmp_path, 1) as successor:
        assert_loads(successor, path)
