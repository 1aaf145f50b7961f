"""Peers of another job or version, strangers on the peer port, and two daemons at one address."""

import contextlib
import pathlib
import socket
import time

import ckptd
import pytest
from faults import assert_loads, sparse
from group import KEY, PATIENCE, Daemon, Group, wait_until
from noise import SPEECHES, callers, doors, peer_address, show
from peer import call, join_request, message
from ports import free_port


@pytest.fixture(params=["scene", "gpu_scene"], ids=["host", "cuda"])
def any_scene(request):
    """The group of one of the two kinds of memory."""
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"version": "9.9"}, "it runs ckptd 9.9"),
        ({"job": "another"}, 'its job is "another"'),
        ({"world_size": 5}, "a world size of 5"),
        ({"rank": 7}, "members have ranks 1 to 1"),
        ({"rank": -1}, "members have ranks 1 to 1"),
        ({"rank": 0}, "members have ranks 1 to 1"),
        ({}, "holds that rank and is alive"),
    ],
    ids=[
        "version",
        "job",
        "world size",
        "rank past the group",
        "rank below 0",
        "the leader's rank",
        "a held rank",
    ],
)
def test_a_daemon_that_does_not_belong_to_the_group_is_refused_and_told_why(any_scene, fields, says):
    epoch = any_scene.group.info()["epoch"]
    code, sentence = call(peer_address(any_scene.group), "Join", join_request(any_scene.group, **fields))
    assert code == "FAILED_PRECONDITION" and says in sentence, sentence
    assert any_scene.group.info()["epoch"] == epoch
    any_scene.assert_usual()


def test_a_daemon_of_another_job_that_finds_our_leader_says_so(any_scene, tmp_path):
    with Daemon(
        tmp_path, rank=1, ranks=2, rendezvous=peer_address(any_scene.group), job="another"
    ) as lost:
        wait_until(
            lambda: 'its job is "another"' in lost.info(1)["detail"], "the refusal to show"
        )
    any_scene.assert_usual()


FAR = 2**63


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "method, request_of",
    [
        ("Heartbeat", lambda: message("HeartbeatRequest", rank=2**31 - 1, incarnation="who")),
        ("Propose", lambda: message("ProposeRequest", rank=-1, spec={"source": "/x"})),
        (
            "Prepare",
            lambda: message(
                "PrepareRequest",
                epoch=FAR,
                name="checkpoints/x",
                index={"tensors": {"names": ["w"], "dtypes": [99]}},
            ),
        ),
        (
            "Commit",
            lambda: message("CommitRequest", epoch=FAR, name="checkpoints/x", tensor_bytes=FAR),
        ),
        ("Abort", lambda: message("AbortRequest", name="checkpoints/x")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_calls_of_another_group_with_the_same_key_change_nothing(
    any_scene, tmp_path, rank, method, request_of
):
    assert call(peer_address(any_scene.group, rank), method, request_of())[0] != "UNAVAILABLE"
    assert_loads_once(any_scene, tmp_path)


METHODS = (
    "Join Heartbeat Propose CancelLoad Prepare Execute Commit Abort Holds".split()
)


@pytest.mark.parametrize("key", [None, KEY[::-1]], ids=["no key", "another key"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_stranger_on_the_peer_port_is_heard_by_no_service(any_scene, rank, key):
    for method in METHODS:
        request = message(f"{method}Request")
        code, _ = call(peer_address(any_scene.group, rank), method, request, key=key)
        assert code == "UNAVAILABLE", method
    any_scene.assert_usual()


def key_given_to(pid):
    try:
        environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except PermissionError:
        pytest.skip("the environment of a daemon is shown to root alone")
    return next((entry for entry in environment if entry.startswith(b"CKPTD_GROUP_KEY=")), None)


def test_launch_gives_a_group_a_key_that_strangers_lack(start, tmp_path):
    group = start(2)
    for rank in range(2):
        for key in (None, KEY):
            code, _ = call(
                peer_address(group, rank), "Heartbeat", message("HeartbeatRequest"), key=key
            )
            assert code == "UNAVAILABLE", key
    assert_loads(group, sparse(tmp_path / "s.safetensors", 1 << 20))


def test_launch_gives_each_group_a_key_of_its_own(start):
    one, other = ({key_given_to(group.pid(rank)) for rank in range(2)} for group in (start(2), start(2)))
    assert len(one) == len(other) == 1 and one != other


def test_a_key_that_launch_made_is_shown_to_no_trainer_and_in_no_file(tmp_path):
    command = ("sh", "-c", "env | grep ^CKPTD_ | cut -d= -f1; ls -A $CKPTD_RUN_DIR/job")
    group = Group(tmp_path, 2, command=command)
    shown = group.process.communicate(timeout=60)[0].split()
    variables = {line for line in shown if line.startswith("CKPTD_")} - {"CKPTD_ARENA", "CKPTD_KEEPER"}  # which are the tests'
    assert variables == {"CKPTD_ADDRESS", "CKPTD_RUN_DIR", "CKPTD_JOB"}, group.log()
    assert all(line.endswith((".sock", ".lock")) for line in set(shown) if not line.startswith("CKPTD_"))


def test_a_daemon_with_another_key_is_told_so(tmp_path):
    with contextlib.closing(Daemon(tmp_path, ranks=2)) as leader:
        port = wait_until(leader.info, "the leader") and peer_address(leader)
        (tmp_path / "key").write_text(KEY[::-1])
        lost = Daemon(
            tmp_path, "--group-key-file", tmp_path / "key", rank=1, ranks=2, rendezvous=port
        )
        with lost:
            wait_until(lambda: "the same group key" in lost.info(1)["detail"], "the advice")
            assert leader.info()["state"] == "JOINING"


def test_daemons_one_by_one_need_a_key(tmp_path):
    with contextlib.closing(Group(tmp_path, 2, "--nnodes", "2", "--rendezvous", "127.0.0.1:1")) as group:
        assert group.process.wait(PATIENCE) == 2
        assert "openssl rand -hex 32" in group.log()


def test_a_group_that_asks_for_it_does_without_a_key(start, tmp_path):
    group = start(2, "--peer-auth", "none")
    code, _ = call(peer_address(group), "Heartbeat", message("HeartbeatRequest"), key=None)
    assert code != "UNAVAILABLE"
    assert_loads(group, sparse(tmp_path / "s.safetensors", 1 << 20))


def assert_loads_once(any_scene, tmp_path):
    """A load that both ranks take part in, and that is gone afterwards."""
    path = sparse(tmp_path / "next.safetensors", 1 << 20)
    assert_loads(any_scene.group, path)
    for rank in range(2):
        with ckptd.connect(any_scene.group.address(rank)) as client:
            name = next(c.name for c in client.list() if c.source == path)
        any_scene.group.unload(name, rank)


def test_many_mute_callers_at_a_members_memory_do_not_keep_the_leader_out(any_scene, tmp_path):
    group, path = any_scene.group, sparse(tmp_path / "f.safetensors", 40 << 20)
    with callers(doors(group, 1)["memory"], 200):
        assert_loads(group, path)
    (loaded,) = [c for c in group.json("list")["checkpoints"] if c["source"] == path]
    # The bytes for memory that could not be mapped in time are sent.
    assert loaded["progress"].get("streamed_ranks", []) == []


def test_a_daemon_on_a_live_port_is_refused_and_its_owner_goes_on(any_scene, tmp_path):
    with contextlib.closing(
        Daemon(tmp_path, rendezvous=peer_address(any_scene.group), job="another")
    ) as second:
        assert second.process.wait(PATIENCE) == 2
        assert "another daemon has it" in second.log() and peer_address(any_scene.group) in second.log()
    assert not any((tmp_path / "another").glob("*.sock"))
    any_scene.assert_usual()


def test_a_refusal_is_logged_once_of_each_daemon_however_often_it_asks(any_scene):
    def refusals(said):
        return sum(said in line for line in any_scene.group.log().splitlines())

    address, group = peer_address(any_scene.group), any_scene.group
    for who in ("first", "second"):
        for _ in range(20):
            call(address, "Join", join_request(group, incarnation=who, job="a flood"))
    call(address, "Join", join_request(group, incarnation="second", job="the last one"))
    wait_until(lambda: refusals('its job is "the last one"') == 1, "the last refusal to be logged")
    assert refusals('its job is "a flood"') == 2


def test_a_daemon_of_a_rank_that_runs_elsewhere_touches_none_of_its_sockets(tmp_path):
    """As on another host that shares the folder: there the sockets of the first look like dead ones."""
    with Daemon(tmp_path) as first:
        folder = first.run_dir / first.job
        for kind in ("fd", "mem"):
            path = folder / f"rank-0.{kind}.sock"
            path.unlink()
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(path))
        before = {path.name: path.stat().st_ino for path in folder.iterdir()}
        with contextlib.closing(Daemon(tmp_path)) as second:
            assert second.process.wait(PATIENCE) == 2
        said = f"starting rank 0: another daemon holds {folder}/rank-0.lock"
        assert said in second.log() and "with --job" in second.log(), second.log()
        assert {path.name: path.stat().st_ino for path in folder.iterdir()} == before


def test_what_a_killed_daemon_left_behind_does_not_keep_the_next_one_out(tmp_path):
    path, rendezvous = sparse(tmp_path / "s.safetensors", 1 << 20), f"127.0.0.1:{free_port()}"
    with Daemon(tmp_path, rendezvous=rendezvous) as first:
        first.process.kill()
        first.process.wait()
        assert len(list((tmp_path / "job").iterdir())) == 7
        with Daemon(tmp_path, rendezvous=rendezvous) as second:
            assert_loads(second, path)
    assert list((tmp_path / "job").iterdir()) == []


SILENCE = 30  # seconds after which gRPC ends a connection that says nothing


@pytest.mark.parametrize("speech", [b"", SPEECHES["TLS"][:99]], ids=["mute", "half a handshake"])
def test_strangers_at_every_port_keep_nobody_from_attaching_or_coming_again(tmp_path, speech):
    """They are more than a daemon may have descriptors."""
    health = free_port()
    path = sparse(tmp_path / "s.safetensors", 1 << 20)
    few = ("prlimit", "--nofile=1024:1024")
    with Group(tmp_path, 2, "--health-port", health, wrapper=few) as group:
        assert_loads(group, path)
        ports = [doors(group)["peer"], doors(group, 1)["peer"], ("127.0.0.1", health)]
        with contextlib.ExitStack() as strangers:
            began = time.monotonic()
            for port in ports:
                strangers.enter_context(callers(port, 1100, speech))
            assert_loads(group, path)
            assert time.monotonic() - began < SILENCE / 2, "it waited for strangers to be closed"
            group.kill(1)
            assert_loads(group, path)
            assert time.monotonic() - began < SILENCE, "it waited for strangers to be closed"


def test_two_jobs_on_one_host_do_not_see_each_other(start, tmp_path):
    with Group(tmp_path, 2, job="a") as a, Group(tmp_path, 2, job="b") as b:
        paths = {
            group.job: sparse(tmp_path / f"{group.job}.safetensors", 1 << 20) for group in (a, b)
        }
        for group in (a, b):
            assert_loads(group, paths[group.job])
        for group in (a, b):
            assert [c["source"] for c in group.json("list")["checkpoints"]] == [paths[group.job]]
        a.kill(1)
        assert b.json("list", rank=1)["checkpoints"][0]["state"] == "STATE_ACTIVE"


def test_a_token_that_was_not_shown_in_time_is_worthless_and_its_lease_ends(scene, unshown):
    reply, since = unshown
    wait_until(lambda: scene.group.json("leases")["leases"] == [], "the lease to end", 2 * PATIENCE)
    assert 25 < time.monotonic() - since
    assert show(reply.token, reply.memfd.fd_socket) == (16, 0)


def test_names_that_uris_would_read_otherwise_are_the_daemon_s_own(tmp_path_factory):
    base = tmp_path_factory.mktemp("u")  # the paths of sockets are short
    first = base / "a1"
    first.mkdir()
    with Daemon(first) as one:
        wait_until(one.ready, "the first daemon")
        for name in ("%61%31", "a1?b", "a1#b", "a1 b"):
            folder = base / name
            folder.mkdir()
            with Daemon(folder, "--nccl-library", "/m/\udcff") as other:  # told to others as text
                wait_until(other.ready, f"a daemon in {name}")
                with ckptd.connect(other.address(0)) as client:
                    assert client.list() == []
            assert one.ready()[0]["pid"] == one.process.pid, name
