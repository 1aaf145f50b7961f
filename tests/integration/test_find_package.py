"""A program of somebody else's finds and links the C++ client at an install prefix, and uses it."""

import os
import pathlib
import subprocess

import pytest
from cuda_bench import WHY_NOT
from group import BINARIES, sanitized, wait_until
from slices import as_bytes, rows

HERE = pathlib.Path(__file__).resolve().parent
RANK, RANKS = 1, 2

pytestmark = pytest.mark.skipif(sanitized(), reason="a sanitized library is for sanitized programs")
on_gpus = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))


@pytest.fixture(scope="module")
def client_user(tmp_path_factory):
    """The program, built against the installed package by a CMake project that knows nothing else of ckptd."""
    folder = tmp_path_factory.mktemp("u")
    answer = subprocess.run(["sh", HERE / "find_package" / "run.sh", BINARIES.parent, folder],
                            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1200,
                            env={**os.environ, "LC_ALL": "C"})
    assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-3000:]
    return folder / "user" / "client_user"


class User:
    """One run of it. A context manager: once it is there it says what it acquired."""

    def __init__(self, program, group, environment, source, mode, kind, folder):
        folder.mkdir()
        self.folder = folder
        self.process = subprocess.Popen(
            [program, source, f"fsdp:{RANKS}", mode, kind, folder], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env={**group.environment, **environment, "CKPTD_ADDRESS": group.address(RANK)})
        self.says = self.process.stdout.readline()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate(timeout=60)

    def tensors(self):
        """What it reads of its shard now. It ends thereby."""
        said, _ = self.process.communicate("\n", timeout=60)
        assert self.process.returncode == 0, said
        return {path.name: path.read_bytes() for path in self.folder.iterdir()}


def shard_of(tensors):
    return {name: as_bytes(rows(tensor, RANK, RANKS)) for name, tensor in tensors.items()}


def test_a_foreign_cmake_project_builds_against_the_installed_package(client_user):
    assert client_user.exists()


@pytest.mark.parametrize("mode", ["shared", "private", "exclusive"])
def test_its_program_reads_its_shard_in_host_memory(client_user, start, source, tmp_path, mode):
    path, tensors = source
    group = start(RANKS)
    with User(client_user, group, {}, path, mode, "any", tmp_path / "out") as user:
        assert user.says == f"{mode.upper()} on , copied 0\n"
        group.kill(RANK)  # what it has is its own
        assert user.tensors() == shard_of(tensors)


class OnGpus:
    """The program beside daemons on fake GPUs, and what it asked the driver for."""

    def __init__(self, program, bench, folder):
        from safetensors.torch import load_file
        self.program, self.bench, self.folder = program, bench, folder
        self.shard = shard_of(load_file(bench.source))
        self.uuid = bench.info(RANK)["device_uuid"]

    def use(self, mode, kind):
        return User(self.program, self.bench.group, self.bench.client_environment, self.bench.source, mode, kind,
                    self.folder / f"{mode}-{kind}")

    def copies(self, user):
        return self.bench.fake.calls("cuMemcpyDtoDAsync", user.process.pid, result=0)

    def leaks(self, user):
        return self.bench.fake.leaks(user.process.pid)


@pytest.fixture
def on_fake_gpus(client_user, cuda, tmp_path):
    return OnGpus(client_user, cuda(RANKS), tmp_path)


@on_gpus
@pytest.mark.parametrize("mode", ["shared", "exclusive"])
def test_its_program_imports_a_gpus_memory_which_outlives_the_daemon(on_fake_gpus, mode):
    bench = on_fake_gpus.bench
    with on_fake_gpus.use(mode, "vmm_fd") as user:
        assert user.says == f"{mode.upper()} on {on_fake_gpus.uuid}, copied 0\n"
        bench.group.kill(RANK)
        assert user.tensors() == on_fake_gpus.shard
        assert on_fake_gpus.copies(user) == [] and on_fake_gpus.leaks(user) == 0


@on_gpus
@pytest.mark.parametrize("kind", ["vmm_fd", "cuda_ipc"])
def test_its_program_copies_a_private_shard_once_on_the_gpu(on_fake_gpus, kind):
    with on_fake_gpus.use("private", kind) as user:
        assert user.says.startswith(f"PRIVATE on {on_fake_gpus.uuid}, copied ")
        (copy,) = on_fake_gpus.copies(user)
        assert int(user.says.rpartition(" ")[2]) == copy["bytes"] > 0
        assert on_fake_gpus.bench.state(RANK) == ["STATE_ACTIVE"]
        assert user.tensors() == on_fake_gpus.shard
        assert on_fake_gpus.leaks(user) == 0


@on_gpus
def test_its_program_opens_what_the_daemon_names_by_its_handle_and_closes_it_with_the_lease(on_fake_gpus):
    bench = on_fake_gpus.bench
    with on_fake_gpus.use("shared", "cuda_ipc") as user:
        assert user.says == f"SHARED on {on_fake_gpus.uuid}, copied 0\n" and bench.leases() == 1
        assert user.tensors() == on_fake_gpus.shard
        wait_until(lambda: bench.leases() == 0, "the lease to end")
        calls = [bench.fake.calls(name, user.process.pid, result=0) for name in ("cuIpcOpenMemHandle",
                                                                                 "cuIpcCloseMemHandle")]
        assert [len(some) for some in calls] == [1, 1] and on_fake_gpus.leaks(user) == 0


@on_gpus
def test_its_program_is_told_that_such_memory_cannot_be_taken(on_fake_gpus):
    with on_fake_gpus.use("exclusive", "cuda_ipc") as user:
        assert user.says.startswith("HANDLE_KIND: ") and "VMM_FD" in user.says
        assert user.process.wait(60) == 1
