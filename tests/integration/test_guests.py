"""Clients of another user than the daemon's: who may come in, what they may load, and whom they cannot hurt."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import ckptd
import pytest
import warm
from ckptd import _participant, _rpc
from group import BINARIES, Daemon, Group, clean_environment, save, save_in_files, wait_until
from noise import doors
from process_state import open_links
from ranks import CASES, PATHS
from users import run_as

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start programs of other users")

OWNER, GROUP = 61000, 62000  # of daemons that are not root's
NAMED = {"CKPTD_DAEMON_UID": str(OWNER)}  # whose daemons a client takes; tests, which are root, have to say so, too
ALICE, BOB, MALLORY = 61001, 61002, 61003  # Mallory is in the group, and not among those who may attach

# Programs of clients. `address` is of a rank's daemon.
LOAD = """
def run(address, path, passes="yes", mode="shared"):
    with ckptd.connect(address) as client:
        if passes == "no":
            client._passing.foreign = False  # as a client that cannot open the file
        checkpoint = client.load(path, mode=mode, layout="replicate:1", timeout=60)
        with client.acquire(checkpoint, mode) as shard:
            return [checkpoint.name, checkpoint.served_from, bytes(shard.tensors["w"].buffer).hex()]
"""
LIST = """
def run(address):
    with ckptd.connect(address) as client:
        return [checkpoint.name for checkpoint in client.list()]
"""
USE = """
def run(address, name, method):
    with ckptd.connect(address) as client:
        return str(getattr(client, method)(name))
"""
ADMINISTER = """
def run(address):
    channel = grpc.insecure_channel(address)
    call = channel.unary_unary("/ckptd.v1.AdminService/DrainDaemon")
    try:
        return call(b"", timeout=30).hex()
    except grpc.RpcError as error:
        from ckptd import _errors
        details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
        raise (_errors.from_details(details) if details else _errors.Unknown(str(error))) from None
"""

W = torch.arange(64.0)
BYTES = W.numpy().tobytes().hex()


@pytest.fixture(scope="module")
def place():
    """A folder that everybody may enter."""
    with tempfile.TemporaryDirectory(prefix="ckptd-") as folder:
        os.chmod(folder, 0o755)
        yield pathlib.Path(folder)


@pytest.fixture(scope="module")
def group(place):
    """Root's daemon, for Alice and Bob, too."""
    with Group(place, 1, "--allow-gid", GROUP, "--allow-uid", f"{ALICE},{BOB}") as started:
        yield started


@pytest.fixture
def write(place):
    """write(name, mode, owner) -> the path of a file with the tensor "w", in a folder of its own that all may enter."""
    folders = []

    def make(name="m.safetensors", mode=0o644, owner=0, tensors=None):
        folder = pathlib.Path(tempfile.mkdtemp(dir=place))
        folders.append(folder)
        folder.chmod(0o755)
        path = save(folder / name, tensors or {"w": W})
        os.chown(path, owner, owner)
        os.chmod(path, mode)
        return path

    yield make
    for folder in folders:
        shutil.rmtree(folder)


def denied(answer, reason):
    assert answer.get("code") == "PERMISSION_DENIED" and answer["reason"] == reason, answer
    return answer["message"]


# --- who may come in ---

def test_the_folder_and_the_sockets_for_trainers_are_the_groups_and_the_others_are_not(group):
    folder = group.run_dir / group.job
    found = {path.name: (oct(path.stat().st_mode & 0o777), path.stat().st_gid) for path in [folder, *folder.iterdir()]}
    assert found.pop("job") == ("0o750", GROUP)
    assert found.pop("rank-0.sock") == found.pop("rank-0.fd.sock") == ("0o660", GROUP)
    assert {name: mode for name, (mode, _) in found.items() if mode != "0o600"} == {}


def test_members_of_the_group_come_in_and_others_find_the_folder_closed(group, write):
    path = write()
    assert run_as(ALICE, [GROUP], LOAD, group.address(0), path)["value"][2] == BYTES
    assert run_as(BOB, [], LOAD, group.address(0), path, gid=GROUP)["value"][2] == BYTES
    assert "--allow-gid" in denied(run_as(ALICE, [], LOAD, group.address(0), path), "DAEMON_UNREACHABLE")


def test_a_member_who_is_not_named_is_told_so_by_each_socket(group, write):
    message = denied(run_as(MALLORY, [GROUP], LOAD, group.address(0), write()), "CALLER_NOT_ALLOWED")
    assert "--allow-uid" in message
    refused = run_as(MALLORY, [GROUP], """
from ckptd import _fds
def run(path):
    _fds.receive(path, "0" * 32, 0, _rpc.Deadline(10), os.close)
""", doors(group)["fd"])
    assert (refused["code"], "--allow-uid" in refused["message"]) == ("PERMISSION_DENIED", True), refused


def test_administration_is_for_the_daemons_user_and_root_even_where_the_door_stands_open(group):
    admin = doors(group)["admin"]
    closed = run_as(ALICE, [GROUP], ADMINISTER, f"unix:{admin}")
    assert closed["code"] == "UNKNOWN" and "Permission denied" in closed["message"], closed
    try:
        os.chmod(admin, 0o666)
        for user in (ALICE, MALLORY):
            denied(run_as(user, [GROUP], ADMINISTER, f"unix:{admin}"), "CALLER_NOT_ALLOWED")
    finally:
        os.chmod(admin, 0o600)
    assert group.info(0)["state"] == "READY"


# --- what they may load ---

def test_a_guest_loads_what_it_could_read_and_the_daemon_is_no_deputy_for_the_rest(group, write):
    assert run_as(ALICE, [GROUP], LOAD, group.address(0), write(), "no")["value"][2] == BYTES
    assert run_as(ALICE, [GROUP], LOAD, group.address(0), write(mode=0o640, owner=GROUP), "no")["value"][2] == BYTES
    for secret in (write(mode=0o600), write(mode=0o640), write(mode=0o600, owner=BOB)):
        message = denied(run_as(ALICE, [GROUP], LOAD, group.address(0), secret), "SOURCE_FORBIDDEN")
        assert secret in message and f"uid {ALICE}" in message
        with ckptd.connect(group.address(0)) as own:
            assert own.load(secret, layout="replicate:1").state == "ACTIVE"
        # Nor is it, once it is resident.
        denied(run_as(ALICE, [GROUP], LOAD, group.address(0), secret), "SOURCE_FORBIDDEN")


@pytest.mark.parametrize("method", ["inspect", "plan"])
def test_questions_about_files_are_judged_as_loads_are(group, write, method):
    ask = f"""
def run(address, path):
    with ckptd.connect(address) as client:
        return str(client.{method}(path))
"""
    assert "value" in run_as(ALICE, [GROUP], ask, group.address(0), write())
    denied(run_as(ALICE, [GROUP], ask, group.address(0), write(mode=0o600)), "SOURCE_FORBIDDEN")


def test_a_guest_gets_nothing_of_other_processes(group):
    environment = f"/proc/{group.pid(0)}/environ"
    for path in (environment, "/proc/self/maps", f"/proc/{group.pid(0)}/fd/3"):
        denied(run_as(ALICE, [GROUP], LOAD, group.address(0), path, "no"), "SOURCE_FORBIDDEN")


# --- whom they cannot hurt ---

def test_what_was_loaded_for_one_user_is_not_there_for_another(group, write):
    path = write()
    with ckptd.connect(group.address(0)) as own:
        owners = own.load(path, layout="replicate:1")
    alices = run_as(ALICE, [GROUP], LOAD, group.address(0), path)["value"][0]
    bobs = run_as(BOB, [GROUP], LOAD, group.address(0), path)["value"][0]
    assert len({owners.name, alices, bobs}) == 3
    for name in (owners.name, alices):
        for method in ("get", "acquire", "verify", "watch"):
            source = USE if method != "watch" else USE.replace("str(", "list(")
            denied(run_as(BOB, [GROUP], source, group.address(0), name, method), "CALLER_NOT_ALLOWED")
    seen = run_as(BOB, [GROUP], LIST, group.address(0))["value"]
    assert bobs in seen and not {owners.name, alices} & set(seen)
    with ckptd.connect(group.address(0)) as own:
        assert own.verify(alices).mismatched == (), "the daemon's user looks after all of it"


def test_what_is_resident_is_lent_to_a_guest_that_may_read_it_and_nothing_is_read_again(group, write):
    path = write()
    with ckptd.connect(group.address(0)) as own:
        resident = own.load(path, layout="replicate:1")
    for passes in ("yes", "no"):
        name, served_from, content = run_as(ALICE, [GROUP], LOAD, group.address(0), path, passes)["value"]
        assert (served_from, content) == (resident.name, BYTES)
    assert group.json("get", name)["progress"].get("read", {}).get("storage_bytes", 0) == 0


def test_a_guest_that_takes_memory_takes_its_own(group, write):
    path = write()
    with ckptd.connect(group.address(0)) as own:
        kept = own.load(path, layout="replicate:1", mode="exclusive")
        taken = run_as(ALICE, [GROUP], LOAD, group.address(0), path, "yes", "exclusive")
        assert taken["value"][1:] == [None, BYTES] or taken["value"][1:] == ["", BYTES], taken
        with own.acquire(kept, "exclusive") as shard:
            assert bytes(shard.tensors["w"].buffer).hex() == BYTES


# --- roots ---

def test_sources_outside_of_the_roots_are_refused_to_everybody_and_links_inside_work(place, write):
    root, cache = place / "models", place / "hub/models--org--name"
    (cache / "blobs").mkdir(parents=True)
    (cache / "snapshots/main").mkdir(parents=True)
    inside, outside = save(root / "m.safetensors", {"w": W}), write()
    save(cache / "blobs/3f9a", {"w": W})
    hub = cache / "snapshots/main/model.safetensors"
    hub.symlink_to("../../blobs/3f9a")
    (root / "out.safetensors").symlink_to(outside)
    (root / "folder").symlink_to(pathlib.Path(outside).parent)
    for path in (*root.rglob("*.safetensors"), *cache.rglob("*")):
        path.chmod(0o755)
    with Group(place, 1, "--allow-root", root, "--allow-root", place / "hub", "--allow-gid", GROUP, job="roots") as group:
        with ckptd.connect(group.address(0)) as own:
            for path in (inside, hub, hub.parent):
                assert own.load(path, layout="replicate:1").state == "ACTIVE"
                assert run_as(ALICE, [GROUP], LOAD, group.address(0), path, "no")["value"][2] == BYTES
            for path in (outside, root / "out.safetensors", root / "folder", place, "/etc/passwd"):
                with pytest.raises(ckptd.PermissionDenied, match="--allow-root") as refused:
                    own.load(path, layout="replicate:1")
                assert refused.value.reason == "SOURCE_OUTSIDE_ROOTS"
                denied(run_as(ALICE, [GROUP], LOAD, group.address(0), path, "no"), "SOURCE_OUTSIDE_ROOTS")
            # A file that it has opened itself is no business of the daemon's.
            assert run_as(ALICE, [GROUP], LOAD, group.address(0), outside)["value"][2] == BYTES


# --- a daemon that is not root's ---

@pytest.fixture(scope="module")
def unprivileged():
    """Words in front of a command that runs as the daemons' user, who is in the group."""
    words = ("setpriv", f"--reuid={OWNER}", f"--regid={OWNER}", f"--groups={GROUP}")
    if subprocess.run([*words, BINARIES / "ckptd", "--version"], capture_output=True).returncode != 0:
        pytest.skip("other users may not run the programs of this build")
    return words


@pytest.fixture(scope="module")
def sidecar(unprivileged):
    """A job's folder and daemons as in a pod: another user's, and nothing shared but the folder. All of them read."""
    with tempfile.TemporaryDirectory(prefix="ckptd-") as folder:
        os.chown(folder, OWNER, GROUP)
        os.chmod(folder, 0o755)
        with Group(folder, 2, "--allow-gid", GROUP, "--reader", "all", wrapper=unprivileged, environment=NAMED) as started:
            yield started


@pytest.fixture
def as_guest(sidecar):
    """The environment of a guest."""
    return {**clean_environment(), **NAMED}


def test_a_private_file_is_loaded_because_its_owner_passes_it(sidecar, write, as_guest):
    load = LOAD.replace('"replicate:1"', '"replicate:2"')
    private = write(mode=0o600, owner=ALICE)
    by_path = run_as(ALICE, [GROUP], load, sidecar.address(0), private, "no", environment=as_guest)
    assert f"uid {OWNER}" in denied(by_path, "SOURCE_UNREADABLE")
    loaded = run_as(ALICE, [GROUP], load, sidecar.address(0), private, environment=as_guest)
    assert loaded["value"][2] == BYTES
    # Bob gets nothing, whatever the daemon has: he cannot open it, and so cannot pass it.
    denied(run_as(BOB, [GROUP], load, sidecar.address(0), private, environment=as_guest), "SOURCE_FORBIDDEN")


def test_a_rank_without_its_shard_is_filled_from_what_the_job_that_asks_has_passed(sidecar, write, as_guest):
    load = LOAD.replace('"replicate:1"', '"replicate:2"')
    private = write(mode=0o600, owner=ALICE)

    def load_in(job):
        environment = {**as_guest, "MASTER_PORT": job}
        return run_as(ALICE, [GROUP], load, sidecar.address(0), private, environment=environment)["value"]

    first = load_in("1")
    sidecar.unload(first[0], 1)
    assert load_in("2") == first
    assert sidecar.json("get", first[0], rank=1)["state"] == "STATE_ACTIVE"


def test_every_reader_knows_the_guest_and_its_groups(sidecar, write, as_guest):
    load = LOAD.replace('"replicate:1"', '"fsdp:2"')
    w = torch.arange(1 << 20, dtype=torch.float32)
    path = write(mode=0o640, owner=GROUP, tensors={"w": w})
    loaded = run_as(ALICE, [GROUP], load, sidecar.address(1), path, "no", environment=as_guest)
    assert bytes.fromhex(loaded["value"][2]) == w.chunk(2)[1].numpy().tobytes()
    denied(run_as(ALICE, [GROUP], load, sidecar.address(1), write(mode=0o600, owner=OWNER), "no", environment=as_guest),
           "SOURCE_FORBIDDEN")


def test_files_of_an_index_and_a_config_are_passed_with_their_folder(sidecar, place, as_guest):
    folder = pathlib.Path(tempfile.mkdtemp(dir=place))
    save_in_files(folder, {"w": W, "v": torch.ones(3)}, 2)
    (folder / "config.json").write_text(json.dumps({"transformers_weights": "model.safetensors.index.json"}))
    for path in (folder, *folder.iterdir()):
        os.chown(path, ALICE, ALICE)
        path.chmod(0o700)
    load = LOAD.replace('"replicate:1"', '"replicate:2"')
    assert run_as(ALICE, [GROUP], load, sidecar.address(0), folder, environment=as_guest)["value"][2] == BYTES


def test_a_guest_that_fails_fails_for_itself(sidecar, write, as_guest, monkeypatch):
    """Two of its ranks take part in a load. One fails, the other hears of it, and another user's rank beside that does not."""
    path = write()
    fail = """
def run(address, another, path):
    from ckptd import _participant
    with ckptd.connect(address) as client, ckptd.connect(another) as other:
        with _participant.participate(other, path, _rpc.Deadline(60), False) as hears:
            try:
                with _participant.participate(client, path, _rpc.Deadline(60), False):
                    raise ckptd.NotFound("a mistake")
            except ckptd.NotFound:
                hears._call.result(timeout=60)
"""
    monkeypatch.setenv("CKPTD_DAEMON_UID", NAMED["CKPTD_DAEMON_UID"])
    with ckptd.connect(sidecar.address(1)) as own:
        with _participant.participate(own, path, _rpc.Deadline(60), False) as participant:
            heard = run_as(ALICE, [GROUP], fail, sidecar.address(0), sidecar.address(1), path, environment=as_guest)
            assert "a mistake" in heard["message"]
            assert own.load(path, layout="replicate:2", _participant=participant).state == "ACTIVE"
            assert participant.failure is None


def test_a_client_takes_no_weights_of_a_user_that_it_was_not_told_of(sidecar, write):
    answer = run_as(ALICE, [GROUP], LOAD, sidecar.address(0), write(), environment=clean_environment())
    assert f"CKPTD_DAEMON_UID={OWNER}" in denied(answer, "DAEMON_UNREACHABLE")


def test_trainers_in_a_container_of_their_own_load_private_files_and_spread_state_dicts(sidecar, as_guest):
    """Another user, other PID, mount and IPC namespaces; the group and one folder are all that is shared."""
    with tempfile.TemporaryDirectory(prefix="ckptd-") as folder:
        folder = pathlib.Path(folder)
        (folder / "models").mkdir(mode=0o755)
        os.chown(folder, ALICE, ALICE)
        environment = {**as_guest, "CKPTD_ADDRESS": sidecar.address("{rank}"), "OMP_NUM_THREADS": "1",
                       "PYTHONPATH": os.pathsep.join(map(str, PATHS))}
        arguments = [CASES / "pod_trainers.py", folder, ALICE, GROUP, folder / "models"]
        with open(folder / "stderr", "w") as stderr:
            trainers = warm.spawn(arguments, environment, stdout=warm.DEVNULL, stderr=stderr)
        try:
            trainers.wait(180)
        finally:
            trainers.kill()
        said = (folder / "stderr").read_text()
        for rank in range(2):
            file = folder / f"rank-{rank}.json"
            assert file.exists(), said
            done = json.loads(file.read_text())
            assert "failed" not in done, done["failed"] + said + sidecar.log()[-3000:]
            assert done["resident again"] and str(folder / "models/private") in done["sources"]
            assert any(source.startswith("/ckptd-state-dict-") for source in done["sources"])
    # The daemons see none of these files, and keep no descriptor.
    for rank in range(2):
        wait_until(lambda pid=sidecar.pid(rank): not any("safetensors" in link or "state-dict" in link
                                                         for link in open_links(pid)),
                   f"the daemon of rank {rank} to close what was passed")


def test_a_daemon_that_is_not_in_the_group_says_so_at_its_start(unprivileged):
    alone = [word for word in unprivileged if not word.startswith("--groups")] + ["--clear-groups"]
    with tempfile.TemporaryDirectory(prefix="ckptd-") as folder:
        os.chown(folder, OWNER, OWNER)
        done = subprocess.run([*alone, BINARIES / "ckptd", "run", "--run-dir", folder, "--rendezvous", "127.0.0.1:0",
                               "--allow-gid", str(GROUP), "--peer-auth", "none"],
                              env=clean_environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert f"to group {GROUP}: Operation not permitted" in done.stderr and "[CONFIG_INVALID]" in done.stderr


def test_a_restarted_daemon_finds_its_folder_again(unprivileged):
    with tempfile.TemporaryDirectory(prefix="ckptd-") as folder:
        os.chown(folder, OWNER, GROUP)
        for _ in range(2):
            with Daemon(folder, "--allow-gid", GROUP, wrapper=unprivileged, environment=NAMED) as daemon:
                assert (daemon.run_dir / daemon.job).stat().st_mode & 0o777 == 0o750
