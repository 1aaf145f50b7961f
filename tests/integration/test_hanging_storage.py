"""Storage that stops answering: it holds up what needs it, until its timeout, and nothing else."""

import signal
import tempfile
import time

import ckptd
import hanging
import pytest
from faults import Loading, assert_loads, assert_nothing_is_left, sparse
from group import PATIENCE, SOON, Group, wait_until

with tempfile.TemporaryDirectory() as folder:
    reason = hanging.why_not(folder)
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))


def checkpoint_of(group, path):
    """None before the load of that path has begun."""
    for one in group.json("list", "--failed")["checkpoints"]:
        if one["source"] == path:
            return group.json("get", one["name"])


def failure_of(group, path):
    return wait_until(lambda: (checkpoint_of(group, path) or {}).get("failure"), f"the load of {path} to fail")


def test_a_load_that_waits_for_its_storage_fails_at_its_timeout_and_so_does_who_waits_behind_it(start, tmp_path):
    resident, hangs, other = (sparse(tmp_path / name) for name in ("r.safetensors", "h.safetensors", "o.safetensors"))
    group = start(2)
    with ckptd.connect(group.address(0)) as client:
        name = client.load(resident, layout="fsdp:2").name
        with hanging.HangingFile(hangs) as file:
            Loading(group, 0, hangs, "fsdp:2", timeout=8)
            assert file.await_opener() == group.pid(0)
            Loading(group, 0, other, "fsdp:2", timeout=2)
            again = client.load(resident, layout="fsdp:2")
            assert again.resident and again.name == name
            client.acquire(again).close()
            behind, stuck = failure_of(group, other), failure_of(group, hangs)
            assert (behind["reason"], stuck["reason"]) == ("DEADLINE", "DEADLINE")
            assert f"it waited for the load of {hangs}" in behind["message"]
            assert "its files were opened; does their storage answer?" in stuck["message"]
        assert_loads(group, hangs)
    assert_nothing_is_left(group)


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
