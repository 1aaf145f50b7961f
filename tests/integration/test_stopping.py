"""A daemon that is told to stop ends well, whatever it is asked meanwhile."""

import contextlib
import queue
import signal

import grpc
from group import Daemon


@contextlib.contextmanager
def open_call(door):
    """A call at that socket which ends when its client says so: of reflection, which never ends by itself."""
    requests = queue.SimpleQueue()
    requests.put(b"\x3a\x00")  # ListServices
    with grpc.insecure_channel(f"unix:{door}") as channel:
        method = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        stream = method(iter(requests.get, None), timeout=60)
        try:
            assert b"ckptd.v1.CheckpointService" in next(stream)
            yield
        finally:
            requests.put(None)
            stream.cancel()


def test_a_daemon_that_stops_while_a_call_is_open_may_be_told_to_drain(tmp_path_factory):
    daemon = Daemon(tmp_path_factory.mktemp("s"))
    with daemon:
        folder = daemon.run_dir / daemon.job
        with open_call(folder / "rank-0.sock"):
            daemon.process.send_signal(signal.SIGTERM)
            while daemon.process.poll() is None:
                daemon.ctl("--timeout", "1", "drain")
        assert daemon.process.returncode == 0, daemon.log()
        assert list(folder.glob("*.sock")) == []
