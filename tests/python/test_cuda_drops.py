"""When memory of a GPU is given back that nothing uses any more, and who waits for that."""

import ctypes
import gc
import threading
import time

import pytest
from ckptd import _deferred_free
from fake_daemon import FakeDaemon

RELEASED = ["cuMemUnmap", "cuMemRelease", "cuMemAddressFree", "cuDevicePrimaryCtxRelease"]


@pytest.fixture
def daemon(tmp_path, gpus):
    with FakeDaemon(str(tmp_path), gpu=1) as running:
        yield running


def test_everything_is_given_back_in_order_and_then_the_lease(daemon, client, source, calls):
    shard = client.acquire(client.load(source[0]))
    view = shard.tensors["big"]
    before = len(calls())
    del shard
    gc.collect()
    assert ctypes.string_at(view.pointer, view.nbytes) == source[1]["big"].tobytes()
    daemon.wait_for(lambda: daemon.leases == 1)
    assert calls()[before:] == []
    del view
    gc.collect()
    daemon.wait_for(lambda: daemon.leases == 0)
    after = calls()[before:]
    assert [name for name in after if name in RELEASED] == RELEASED
    assert after.index("cuCtxSynchronize") < after.index("cuMemUnmap")


@pytest.mark.parametrize("comes_next", ["memory is dropped", "memory is mapped"])
def test_memory_that_goes_while_a_cuda_graph_is_recorded_is_given_back_afterwards(
        daemon, client, source, calls, collect, monkeypatch, comes_next):
    torch = pytest.importorskip("torch")
    checkpoint = client.load(source[0])
    held = [client.acquire(checkpoint), client.acquire(checkpoint)]
    before = len(calls())
    with monkeypatch.context() as recording:
        recording.setattr(torch.cuda, "is_initialized", lambda: True)
        recording.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        del held[0]
        gc.collect()
        assert calls()[before:] == [] and daemon.leases == 2, "waiting for the GPU would spoil the graph"
    if comes_next == "memory is dropped":
        held.clear()
        gc.collect()
        daemon.wait_for(lambda: daemon.leases == 0)
    else:
        held.append(client.acquire(checkpoint))
        daemon.wait_for(lambda: daemon.leases == 2)
        collect()
    assert [name for name in calls()[before:] if name in RELEASED][:4] == RELEASED


@pytest.fixture
def other_rank(monkeypatch):
    """Cleared, the GPU waits for another rank to launch its part of a collective."""
    from cuda.bindings import driver as cu

    launched, wait = threading.Event(), cu.cuCtxSynchronize

    def synchronize():
        assert launched.wait(60)
        return wait()

    launched.set()
    monkeypatch.setattr(cu, "cuCtxSynchronize", synchronize)
    yield launched
    launched.set()


def test_a_thread_that_drops_memory_does_not_wait_for_a_gpu_that_waits_for_another_rank(
        daemon, client, source, calls, other_rank, monkeypatch):
    monkeypatch.setattr(_deferred_free, "_SHORT_WAIT", 1.0)
    checkpoint = client.load(source[0])
    held, before = [client.acquire(checkpoint) for _ in range(20)], len(calls())
    other_rank.clear()
    gc.freeze()  # collections look at the shards alone, and take no time
    began = time.monotonic()
    while held and time.monotonic() - began < 10:
        del held[0]
        gc.collect()
    gc.unfreeze()
    assert not held, "each waited for itself, if not for the other rank"
    assert "cuMemUnmap" not in calls()[before:] and daemon.leases == 20
    other_rank.set()
    daemon.wait_for(lambda: daemon.leases == 0)
    assert calls()[before:].count("cuMemUnmap") == 20


@pytest.fixture
def dropped(client, source, calls, other_rank, monkeypatch):
    """calls() since a shard was dropped whose GPU gets on as soon as somebody waits for it."""
    held, before = [client.acquire(client.load(source[0], mode="private"), "private")], len(calls())
    other_rank.clear()
    held.clear()
    gc.collect()
    assert "cuMemRelease" not in calls()[before:]
    drain = _deferred_free.drain
    monkeypatch.setattr(_deferred_free, "drain", lambda *seconds: [other_rank.set(), drain(*seconds)])
    return lambda: calls()[before:]


def test_a_private_copy_has_the_room_of_what_was_dropped(client, source, dropped):
    with client.acquire(client.get("checkpoints/1"), "private"):
        assert dropped().index("cuMemRelease") < dropped().index("cuMemCreate")


def test_a_load_has_the_room_of_what_was_dropped(client, source, dropped, monkeypatch):
    seen, call = [], client._call
    monkeypatch.setattr(client, "_call", lambda *args: [seen.append(dropped()), call(*args)][1])
    client.load(source[0])
    assert "cuMemRelease" in seen[-1]


def test_a_thread_without_a_context_may_drop_the_memory(client, source, calls, collect):
    from cuda.bindings import driver as cu

    held, contexts = [client.acquire(client.load(source[0]))], []

    def drop():
        held.clear()
        collect()
        contexts.append(int(cu.cuCtxGetCurrent()[1]))

    thread = threading.Thread(target=drop)
    thread.start()
    thread.join(60)
    assert contexts == [0] and calls().count("cuMemUnmap") >= 1
