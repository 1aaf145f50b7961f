"""Daemons that were stopped in the middle of a load and go on long after it was given up."""

import os
import signal
import struct
import threading

import ckptd
from faults import Loading, stage_of
from group import PATIENCE, Daemon, Group, wait_until
from holds import HEARTBEATS
from noise import peer_address

SIZE = 512 << 20
OPTIONS = ("--reader", "all", "--reader-threads", "1", *HEARTBEATS)


def filled(path, value):
    """A safetensors file whose one tensor has `value` in each byte."""
    text = b'{"all":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (SIZE, SIZE)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(SIZE >> 20):
            file.write(bytes([value]) * (1 << 20))
    return str(path)


def ready(*daemons):
    wait_until(lambda: all((d.ready() or [{}])[0].get("state") == "READY" for d in daemons), "the group")


def wait_for_bytes(client, path):
    """Until they move, or have all come: a load may be quicker than this process gets to look."""
    wait_until(lambda: stage_of(client, path) in ("TRANSFERRING", "PUBLISHING", "ACTIVE"), "bytes to move")


def stop_in_a_load(client, leader, member, path):
    """Stops a member while it reads; the load has failed then. One that was quicker is unloaded and begun again."""
    for _ in range(20):
        loading = Loading(leader, 0, path, "replicate:2")
        wait_for_bytes(client, path)
        os.kill(member.process.pid, signal.SIGSTOP)
        outcome = loading.outcome(PATIENCE)
        if isinstance(outcome, ckptd.Error):
            return
        os.kill(member.process.pid, signal.SIGCONT)
        for one in (leader, member):
            one.unload(outcome.name, one.rank)
    raise AssertionError("no load was stopped in its middle")


def test_a_reader_that_was_stopped_and_goes_on_changes_nothing_of_a_later_load(tmp_path):
    first, second = filled(tmp_path / "first.safetensors", 0x22), filled(tmp_path / "second.safetensors", 0x11)
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    with Daemon(folders[0], *OPTIONS, ranks=2) as leader:
        member = {"ranks": 2, "rank": 1, "rendezvous": peer_address(leader)}
        with Daemon(folders[1], *OPTIONS, **member) as stopped:
            ready(leader, stopped)
            with ckptd.connect(leader.address(0)) as client:
                try:
                    stop_in_a_load(client, leader, stopped, first)
                    with Daemon(folders[2], *OPTIONS, **member) as instead:
                        ready(leader, instead)
                        found = client.load(second, layout="replicate:2", timeout=60)
                        assert client.verify(found).ok
                        os.kill(stopped.process.pid, signal.SIGCONT)
                        with ckptd.connect(stopped.address(1)) as late:
                            wait_until(lambda: stage_of(late, first) == "FAILED", "it to give its load up")
                        assert client.verify(found).ok
                        with ckptd.connect(instead.address(1)) as other:
                            assert other.verify(found).ok
                finally:
                    os.kill(stopped.process.pid, signal.SIGCONT)


def test_who_takes_a_shard_that_is_being_verified_gets_it_and_the_daemon_stays(tmp_path):
    path, ended = filled(tmp_path / "all.safetensors", 0x33), []

    def verify(daemon, name):
        with ckptd.connect(daemon.address(0)) as client:
            try:
                ended.append(client.verify(name, timeout=2 * PATIENCE).ok)
            except ckptd.Error as error:
                ended.append(error.reason)

    with Daemon(tmp_path) as daemon, ckptd.connect(daemon.address(0)) as client:
        pid = daemon.ready()[0]["pid"]
        answers, rounds = set(), 0
        while "TAKEN" not in answers:
            assert (rounds := rounds + 1) <= 20, "no verification was overtaken"
            ended.clear()
            found = client.load(path, layout="replicate:1", mode="exclusive")
            verifying = [threading.Thread(target=verify, args=(daemon, found.name)) for _ in range(4)]
            for thread in verifying:
                thread.start()
            # They are done one after the other: the next one is at it by now.
            wait_until(lambda: ended, "the first one")
            with client.acquire(found, "exclusive") as shard:
                view = shard.tensors["all"].buffer
                view[-4096:] = bytes(4096)
                for thread in verifying:
                    thread.join()
                del view
            assert daemon.ready()[0]["pid"] == pid
            # Before it was taken it was right; after that it is nobody's here.
            assert set(ended) <= {True, "TAKEN"} and len(ended) == 4, ended
            answers.update(ended)


def test_a_reader_that_is_killed_takes_no_other_daemon_with_it(tmp_path):
    path = filled(tmp_path / "all.safetensors", 0x44)
    with Group(tmp_path, 3, *OPTIONS) as group, ckptd.connect(group.address(0)) as client:
        pids = [group.pid(rank) for rank in range(2)]
        given_up = 0
        for _ in range(30):
            loading = Loading(group, 0, path, "replicate:3")
            wait_for_bytes(client, path)
            group.kill(2)
            outcome = loading.outcome(PATIENCE)
            group.wait_ready()
            # They were writing into memory of their own when the load was given up.
            assert [group.pid(rank) for rank in range(2)] == pids
            if isinstance(outcome, ckptd.Error):
                given_up += 1
                if given_up == 3:
                    break
            else:  # killed too late: all had come
                for rank in range(2):
                    group.unload(outcome.name, rank)
        assert given_up == 3
        found = client.load(path, layout="replicate:3", timeout=60)
        assert client.verify(found).ok
