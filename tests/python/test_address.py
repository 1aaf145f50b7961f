"""Which daemon is called."""

import os
import pwd
import socket

import pytest
from ckptd import _address, _trusted_path
from ckptd._errors import InvalidArgument, PermissionDenied


@pytest.mark.parametrize(
    "text", ["unix:///run/x/rank-0.sock", "unix:/run/x/rank-0.sock", "/run/x/rank-0.sock"]
)
def test_every_spelling_of_a_unix_socket_is_understood(text):
    assert _address.resolve(text).path == "/run/x/rank-0.sock"


def test_the_argument_beats_the_environment(monkeypatch):
    monkeypatch.setenv("CKPTD_ADDRESS", "/from/environment.sock")
    assert _address.resolve("/from/argument.sock").path == "/from/argument.sock"


def test_the_environment_beats_the_default(monkeypatch):
    monkeypatch.setenv("CKPTD_ADDRESS", "/from/environment.sock")
    assert _address.resolve().path == "/from/environment.sock"


def test_placeholders_are_torchrun_s_ranks(monkeypatch):
    monkeypatch.setenv("RANK", "11")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert _address.resolve("/x/{rank}-{local_rank}.sock").path == "/x/11-3.sock"


def test_slurm_s_ranks_are_taken_without_torchrun(monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "5")
    monkeypatch.setenv("SLURM_LOCALID", "1")
    assert _address.resolve("/x/{rank}-{local_rank}.sock").path == "/x/5-1.sock"


@pytest.fixture
def process_group():
    dist = pytest.importorskip("torch.distributed")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=2, world_size=4)
    yield
    dist.destroy_process_group()


def test_the_process_group_s_rank_beats_the_launcher_s(monkeypatch, process_group):
    monkeypatch.setenv("RANK", "11")
    monkeypatch.setenv("WORLD_SIZE", "12")
    assert _address.resolve("/x/{rank}.sock").path == "/x/2.sock"
    assert (_address.rank(), _address.world_size()) == (2, 4)


def test_where_no_process_group_was_made_the_launcher_s_rank_counts(monkeypatch):
    pytest.importorskip("torch.distributed")
    monkeypatch.setenv("RANK", "11")
    monkeypatch.setenv("WORLD_SIZE", "12")
    assert (_address.rank(), _address.world_size()) == (11, 12)


def test_placeholders_are_zero_alone():
    assert _address.resolve("/x/{rank}-{local_rank}.sock").path == "/x/0-0.sock"


def test_a_given_rank_beats_the_environment_s(monkeypatch):
    monkeypatch.setenv("RANK", "11")
    assert _address.resolve("/x/{rank}.sock", 2).path == "/x/2.sock"


def test_the_default_is_in_the_run_folder_of_the_job(monkeypatch):
    monkeypatch.setenv("CKPTD_RUN_DIR", "/somewhere")
    monkeypatch.setenv("CKPTD_JOB", "llama")
    monkeypatch.setenv("RANK", "4")
    assert _address.resolve().path == "/somewhere/llama/rank-4.sock"


def test_the_job_is_slurm_s_where_none_is_named(monkeypatch):
    monkeypatch.setenv("CKPTD_RUN_DIR", "/somewhere")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    assert _address.resolve().path == "/somewhere/4711/rank-0.sock"


def test_the_default_uses_the_user_s_runtime_folder(monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert _address.resolve().path == "/run/user/7/ckptd/default/rank-0.sock"


@pytest.mark.parametrize("uid,folder", [(0, "/run/ckptd"), (7, "/home/me/.ckptd/run")])
def test_the_default_without_a_runtime_folder_depends_on_the_user(monkeypatch, uid, folder):
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert _address.resolve().path == f"{folder}/default/rank-0.sock"


@pytest.mark.parametrize("text", ["localhost:9000", "relative.sock", "unix:relative.sock"])
def test_an_address_that_cannot_carry_descriptors_is_refused(text):
    with pytest.raises(InvalidArgument, match="absolute path"):
        _address.resolve(text)


def test_a_path_too_long_for_a_socket_is_refused_by_its_length():
    with pytest.raises(InvalidArgument, match="longer than the 107 bytes"):
        _address.resolve("/" + "x" * 107)


def test_a_rank_that_is_no_number_is_refused_by_name(monkeypatch):
    monkeypatch.setenv("RANK", "two")
    with pytest.raises(InvalidArgument, match="RANK='two'"):
        _address.resolve("/x/{rank}.sock")


def test_a_socket_path_with_odd_characters_reaches_grpc_escaped():
    assert _address.resolve("/x/a b%.sock").target == "unix:/x/a%20b%25.sock"


def listen_as(path, uid):
    """A child that listens at `path` as user `uid`: (its pid, end of a pipe that ends it)."""
    ready, tell = os.pipe()
    wait, end = os.pipe()
    pid = os.fork()
    if pid == 0:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            os.setuid(uid)  # the kernel notes who calls listen
            listener.listen()
            os.write(tell, b"1")
            os.close(end)
            os.read(wait, 1)
        os._exit(0)
    os.close(tell)
    os.close(wait)
    assert os.read(ready, 1) == b"1"
    os.close(ready)
    return pid, end


@pytest.fixture
def others(tmp_path):
    """(address of a socket that another user listens on, that user)."""
    uid = 65534 if os.geteuid() == 0 else os.geteuid()
    pid, end = listen_as(str(tmp_path / "s"), uid)
    yield _address.resolve(str(tmp_path / "s")), uid
    os.close(end)
    os.waitpid(pid, 0)


def test_a_socket_of_another_user_is_refused(others, monkeypatch):
    address, uid = others
    for user in (uid + 1, 0):
        monkeypatch.setattr(os, "geteuid", lambda: user)
        with pytest.raises(PermissionDenied, match=f"neither this user nor root.*CKPTD_DAEMON_UID={uid}"):
            _address.wait_until_listening(address, 5)


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_socket_that_another_user_could_replace_is_refused(tmp_path, mode):
    folder = tmp_path / "open"
    (folder / "job").mkdir(parents=True)
    (tmp_path / "way").symlink_to(folder)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "job/s"))
        listener.listen()
        for path in (folder / "job/s", tmp_path / "way/job/s", folder / "job/../job/s"):
            address = _address.resolve(str(path))
            folder.chmod(0o755)
            assert not _address.wait_until_listening(address, 5)
            folder.chmod(mode)
            if mode & 0o1000:
                assert not _address.wait_until_listening(address, 5), "as in /tmp"
            else:
                with pytest.raises(PermissionDenied, match=f"other users may write in {folder} "):
                    _address.wait_until_listening(address, 5)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("given", ["theirs", "theirs/way", "theirs/way/s"])
def test_a_socket_on_the_way_to_which_something_is_another_users_is_refused(tmp_path, given, monkeypatch):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs").chmod(0o1777)
    (tmp_path / "job").mkdir()
    (tmp_path / "theirs/way").symlink_to(tmp_path / "job")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "job/s"))
        listener.listen()
        address = _address.resolve(str(tmp_path / "theirs/way/s"))
        os.chown(tmp_path / given, 43_000, -1, follow_symlinks=False)
        with pytest.raises(PermissionDenied, match="belongs to user 43000, so another user could"):
            _address.wait_until_listening(address, 5)
        monkeypatch.setenv("CKPTD_DAEMON_UID", "43000")
        assert not _address.wait_until_listening(address, 5)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_folder_may_be_written_by_its_owners_private_group(tmp_path):
    games = pwd.getpwnam("games")
    tmp_path.chmod(0o775)
    os.chown(tmp_path, games.pw_uid, games.pw_gid)
    assert _trusted_path.why_unsafe(str(tmp_path), [games.pw_uid]) is None
    os.chown(tmp_path, games.pw_uid, 43_000)
    assert "other users may write" in _trusted_path.why_unsafe(str(tmp_path), [games.pw_uid])


def test_a_socket_that_is_gone_while_its_path_is_looked_at_is_refused(tmp_path):
    assert "cannot be looked at (No such file" in _trusted_path.why_unsafe(str(tmp_path / "gone/s"), [os.geteuid()])
    (tmp_path / "round").symlink_to("round")
    assert "leads nowhere" in _trusted_path.why_unsafe(str(tmp_path / "round/s"), [os.geteuid()])


@pytest.mark.parametrize("name", [False, True])
def test_a_socket_of_the_user_that_was_named_is_taken_for_a_foreign_one(others, monkeypatch, name):
    address, uid = others
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    monkeypatch.setenv("CKPTD_DAEMON_UID", pwd.getpwuid(uid).pw_name if name else str(uid))
    assert _address.wait_until_listening(address, 5)
    monkeypatch.setenv("CKPTD_DAEMON_UID", str(uid + 2))
    with pytest.raises(PermissionDenied, match="neither this user nor root"):
        _address.wait_until_listening(address, 5)


def test_a_user_that_is_none_is_refused_by_its_name(others, monkeypatch):
    address, uid = others
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    monkeypatch.setenv("CKPTD_DAEMON_UID", "nobody by this name")
    with pytest.raises(InvalidArgument, match="CKPTD_DAEMON_UID='nobody by this name'"):
        _address.wait_until_listening(address, 5)


def test_a_daemon_of_this_user_and_namespace_is_not_foreign(others, monkeypatch):
    address, uid = others
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert not _address.wait_until_listening(address, 5)
    monkeypatch.setattr(_address, "_is_in_inner_namespace", lambda pid: True)
    assert _address.wait_until_listening(address, 5)
