"""Whoever reads the log may stand still or end: loads go on, and signals are obeyed."""

import fcntl
import os
import signal

import ckptd
import pytest
from faults import sparse
from group import Group


class PipedGroup(Group):
    """A group whose stderr is a pipe of one page; `reader` is its other end."""

    def __init__(self, folder, ranks, *options):
        self.reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        self.piped = writer
        # sh hands the pipe on; Group's own log file stays empty.
        super().__init__(folder, ranks, *options,
                         wrapper=("sh", "-c", f'exec "$0" "$@" 2>/proc/{os.getpid()}/fd/{writer}'))

    def wait_ready(self):
        try:
            return super().wait_ready()
        finally:
            os.close(self.piped)


@pytest.fixture
def piped(tmp_path):
    with PipedGroup(tmp_path, 2, "--log-level", "trace") as group:
        yield group


def test_a_log_that_nobody_reads_holds_up_neither_loads_nor_the_end(piped, tmp_path):
    path = sparse(tmp_path / "a.safetensors", 1 << 20)
    with ckptd.connect(piped.address(0)) as client:
        for _ in range(20):
            name = client.load(path, layout="replicate:2", timeout=60).name
            for rank in range(2):
                piped.unload(name, rank)
    piped.process.send_signal(signal.SIGTERM)
    assert piped.process.wait(60) == 0


def test_launch_outlives_the_reader_of_its_log(piped):
    os.close(piped.reader)
    piped.kill(1)
    assert piped.process.poll() is None
