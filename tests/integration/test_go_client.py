"""The Go client, built with Debian's packages alone: its own tests, and its program beside daemons."""

import contextlib
import json
import os
import pathlib
import pwd
import random
import re
import socket
import subprocess
import tempfile

import pytest
import safetensors
from group import PATIENCE, ROOT, clean_environment, wait_until

FOLDER = ROOT / "client/go"
BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
        "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
        "C64": 64, "F64": 64, "I64": 64, "U64": 64}
LARGE = 1310720  # elements of F32: three segments, and a digest over blocks


def go_tests(beside_a_daemon):
    names = [name for path in FOLDER.glob("*_test.go") if (path.name == "daemon_test.go") == beside_a_daemon
             for name in re.findall(r"^func (Test\w+)\(", path.read_text(), flags=re.M)]
    assert names
    return sorted(names)


class Go:
    """The output of client/go/build, in build/go so that the next run need not compile it again."""

    def __init__(self):
        self.out = ROOT / "build/go"
        self.run([FOLDER / "build", self.out])
        settings = self.run([FOLDER / "build", "--env", self.out]).split()
        self.settings = dict(setting.split("=", 1) for setting in settings)
        self.program = self.out / "ckptd-tensors"
        self.tests = self.out / "ckptd.test"
        self.run(["go", "test", "-c", "-tags", "daemon", "-o", self.tests, "ckptd"], self.settings)

    @staticmethod
    def run(command, environment=None):
        answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10 * PATIENCE,
                                env={**clean_environment(), **(environment or {})})
        assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-3000:]
        return answer.stdout


@pytest.fixture(scope="module")
def go():
    return Go()


@pytest.fixture(scope="module")
def every_dtype(tmp_path_factory):
    """(path, name -> (dtype, shape, bytes) as Python's safetensors reads it)."""
    shapes = {dtype: (dtype, [8, 4]) for dtype in BITS}
    shapes |= {"large": ("F32", [LARGE]), "ein ü/\"": ("BF16", [3, 5]), "scalar": ("I64", []), "empty": ("F32", [0, 4])}
    header, at = {}, 0
    for name, (dtype, shape) in shapes.items():
        count = BITS[dtype]
        for extent in shape:
            count *= extent
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + count // 8]}
        at += count // 8
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    content = len(text).to_bytes(8, "little") + text + random.Random(5).randbytes(at)
    path = tmp_path_factory.mktemp("m") / "model.safetensors"
    path.write_bytes(content)
    return path, {name: (t["dtype"], t["shape"], bytes(t["data"])) for name, t in safetensors.deserialize(content)}


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]


def tensors(go, group, *options):
    """(name -> (dtype, shape, bytes) as the program maps it, what it says meanwhile)."""
    out = pathlib.Path(group.run_dir) / "tensors"
    answer = subprocess.run([go.program, "-out", out, *map(str, options)], env=group.environment, stdin=subprocess.DEVNULL,
                            capture_output=True, text=True, timeout=PATIENCE)
    assert answer.returncode == 0, answer.stderr
    content, found = out.read_bytes(), {}
    for line in lines_of(answer.stdout):
        assert line["verified"] and re.fullmatch("[0-9a-f]{16}", line["digest"]), line
        found[line["name"]] = (line["dtype"], line["shape"], content[:line["bytes"]])
        content = content[line["bytes"]:]
    assert content == b""
    return found, answer.stderr


@pytest.mark.parametrize("name", go_tests(beside_a_daemon=False))
def test_a_go_test_of_a_part_passes(go, name):
    go.run([go.tests, "-test.run", f"^{name}$", "-test.v", "-test.timeout", f"{PATIENCE}s"], go.settings)


@pytest.mark.parametrize("name", go_tests(beside_a_daemon=True))
def test_a_go_test_beside_a_daemon_passes(go, pair, every_dtype, name):
    environment = {**pair.environment, "CKPTD_TEST_SOURCE": str(every_dtype[0])}
    said = go.run([go.tests, "-test.run", f"^{name}$", "-test.v", "-test.timeout", f"{PATIENCE}s"], environment)
    assert f"--- PASS: {name}" in said


@pytest.mark.parametrize("mode", ["shared", "private", "exclusive"])
def test_tensors_of_every_dtype_are_those_that_pythons_safetensors_reads(go, pair, every_dtype, mode):
    path, expected = every_dtype
    assert set(BITS) <= {dtype for dtype, _, _ in expected.values()}
    found, _ = tensors(go, pair, "-mode", mode, "-layout", "replicate:2", "-rank", 1, path)
    assert found == expected


def test_a_rank_of_a_sharded_layout_gets_its_rows_and_progress_is_shown(go, pair, every_dtype):
    path, expected = every_dtype
    address = pair.address("{rank}").replace("unix://", "unix:")
    shares, said = [], ""
    for rank in range(2):
        found, more = tensors(go, pair, "-address", address, "-layout", "fsdp:2", "-rank", rank, path)
        shares.append(found)
        said += more
    for name in [*BITS, "large"]:
        dtype, shape, content = expected[name]
        half = [shape[0] // 2, *shape[1:]]
        assert [share[name][:2] for share in shares] == [(dtype, half)] * 2
        assert shares[0][name][2] + shares[1][name][2] == content
    done, total = re.findall(r"^ACTIVE \w+: (\d+) of (\d+) bytes$", said, flags=re.M)[-1]
    assert done == total and int(total) >= 4 * LARGE


@contextlib.contextmanager
def holding(go, group, path, rank):
    """The program, with a shard that it keeps."""
    process = subprocess.Popen([go.program, "-hold", "-layout", "replicate:2", "-rank", str(rank), path], env=group.environment,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr:
            if line.startswith("holding "):
                break
        yield process, line.split()[-1]
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


def leases(group, rank):
    return [lease["name"] for lease in group.json("leases", rank=rank).get("leases", [])]


def test_the_lease_of_a_program_that_is_killed_ends(go, pair, every_dtype):
    with holding(go, pair, every_dtype[0], 0) as (process, lease):
        wait_until(lambda: leases(pair, 0) == [lease], "those of earlier programs to end")
        process.kill()
        wait_until(lambda: leases(pair, 0) == [], "the lease to end")


def test_mapped_memory_outlives_the_daemon(go, pair, every_dtype):
    path, expected = every_dtype
    with holding(go, pair, path, 1) as (process, _):
        pair.kill(1)
        said, errors = process.communicate("", timeout=PATIENCE)
        assert process.returncode == 0, errors
        found = lines_of(said)
        assert len(found) == 2 * len(expected) and all(line["verified"] for line in found)


def error_of(go, environment, *options, **process):
    answer = subprocess.run([go.program, *map(str, options)], env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                            text=True, timeout=PATIENCE, **process)
    assert answer.returncode == 1, answer.stderr
    return json.loads(answer.stderr.splitlines()[-1])["error"]


@pytest.mark.parametrize("layout, absent, code, reason", [
    ("replicate:2", True, "NOT_FOUND", "SOURCE_NOT_FOUND"),
    ("fsdp:3", False, "INVALID_ARGUMENT", "WRONG_WORLD_SIZE"),
    ("fsdp:two", False, "INVALID_ARGUMENT", "LAYOUT_INVALID"),
])
def test_an_error_has_its_code_reason_and_sentence(go, pair, every_dtype, layout, absent, code, reason):
    path = f"{every_dtype[0]}.absent" if absent else every_dtype[0]
    error = error_of(go, pair.environment, "-layout", layout, path)
    assert (error["code"], error["reason"]) == (code, reason) and " " in error["message"]


def test_a_daemon_that_is_not_there_is_named_with_its_socket(go, tmp_path, every_dtype):
    environment = {**clean_environment(), "CKPTD_RUN_DIR": str(tmp_path), "SLURM_PROCID": "3"}
    error = error_of(go, environment, "-timeout", "50ms", every_dtype[0])
    assert error["code"] == "UNAVAILABLE" and error["reason"] == "DAEMON_UNREACHABLE"
    assert error["facts"]["address"] == os.path.join(tmp_path, "default", "rank-3.sock")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two other users")
def test_a_socket_of_another_user_is_refused_unless_that_user_is_named(go, every_dtype):
    games = pwd.getpwnam("games")  # a user with a group of its own
    with tempfile.TemporaryDirectory(prefix="ckptd-") as folder, socket.socket(socket.AF_UNIX) as listener:
        os.chmod(folder, 0o755)
        listener.bind(f"{folder}/s")
        os.chmod(f"{folder}/s", 0o666)
        os.seteuid(games.pw_uid)  # the kernel notes who listens
        try:
            listener.listen()
        finally:
            os.seteuid(0)

        def why(user=65534, **more):
            return error_of(go, {**clean_environment(), **more}, "-timeout", "1s", "-address", f"{folder}/s", every_dtype[0],
                            user=user)

        def denied(**more):
            refused = why(**more)
            assert (refused["code"], refused["reason"]) == ("PERMISSION_DENIED", "DAEMON_UNREACHABLE")
            return refused["message"]

        for user in (65534, 0):
            assert f"user {games.pw_uid} listens there" in denied(user=user)
        # Nobody answers there, and so it is by a folder that the user's private group may write in.
        for gid, mode in ((0, 0o755), (games.pw_gid, 0o775)):
            os.chown(folder, games.pw_uid, gid)
            os.chmod(folder, mode)
            assert why(CKPTD_DAEMON_UID="games")["code"] in ("DEADLINE_EXCEEDED", "UNAVAILABLE")
        for mode in (0o777, 0o757):
            os.chmod(folder, mode)
            assert f"other users may write in {folder}" in denied(CKPTD_DAEMON_UID="games")
        os.chmod(folder, 0o755)
        os.chown(folder, 1001, -1)
        assert f"{folder} belongs to user 1001" in denied(CKPTD_DAEMON_UID="games")


def test_the_build_names_the_package_of_a_program_that_is_missing(tmp_path):
    for name in ("bash", "dirname", "mkdir"):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    answer = subprocess.run([FOLDER / "build", tmp_path / "out"], env={"PATH": str(tmp_path)}, capture_output=True, text=True,
                            timeout=PATIENCE)
    assert answer.returncode == 1 and "there is no go" in answer.stderr and "apt-get install" in answer.stderr
