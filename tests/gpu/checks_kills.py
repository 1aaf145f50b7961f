"""SIGKILL at every stage: nothing is lost but what died, and the next load works."""

import os
import signal
import time

import ckptd
import client
import files
from bench import SLACK_AFTER_RESTART, leases, unload
from group import wait_until
from gpu_record import Checks, NotShown

checks = Checks()
LAYOUT = "fsdp:2"
ATTEMPTS = 5


def size_of(bench) -> int:
    return (24 << 20) if bench.fake else (3 << 30 if bench.quick else 6 << 30)


def start(bench, group=None):
    """Two daemons that have loaded and unloaded once: (group, source, a client, free memory)."""
    source = files.sparse(bench.path() / "m.safetensors", size_of(bench), 60)
    group = group or bench.group(2)
    one = bench.client(group.address(0))
    said = client.ask(one, "load", source=source, layout=LAYOUT)
    assert "name" in said, said
    unload(group)
    return group, source, one, bench.free()


def loads_again(bench, group, source):
    """What every check ends with."""
    one = bench.client(group.address(0))
    said = client.ask(one, "load", source=source, layout=LAYOUT)
    assert "name" in said, said
    for rank in range(group.ranks):
        reader = bench.client(group.address(rank))
        client.ask(reader, "load", source=source, layout=LAYOUT)
        assert client.ask(reader, "acquire")["tensors"] == 60
        client.ask(reader, "drop")
        reader.process.communicate(timeout=30)
    wait_until(lambda: leases(group) == 0, "the leases to end", 60)
    unload(group)


@checks("clients killed while they attach leave nothing behind")
def while_attaching(bench):
    group, source, one, before = start(bench)
    client.ask(one, "load", source=source, layout=LAYOUT)
    held = bench.free()
    for point in client.DEATHS:
        victim = bench.client(group.address(0))
        client.ask(victim, "load", source=source, layout=LAYOUT)
        client.ask(victim, "die_at", point=point)
        client.tell(victim, "acquire")
        wait_until(lambda: victim.process.poll() is not None, f"the client to die {point}", 30)
        assert victim.process.returncode == -signal.SIGKILL, victim.process.returncode
        wait_until(
            lambda: leases(group) == 0, f"the lease of a client that died {point} to end", 60
        )
    bench.comes_back(held)
    unload(group)
    facts = bench.comes_back(before)
    loads_again(bench, group, source)
    return {"died": list(client.DEATHS), **facts}


@checks("clients killed after they attached give back leases and memory, in every mode")
def after_attaching(bench):
    group, source, one, before = start(bench)
    for mode in ("shared", "private", "exclusive"):
        victim = bench.client(group.address(0))
        client.ask(victim, "load", source=source, layout=LAYOUT, mode=mode)
        said = client.ask(victim, "acquire", mode=mode)
        assert said["tensors"] == 60 and (said["copied"] > 0) == (mode == "private"), said
        os.kill(victim.pid, signal.SIGKILL)
        wait_until(lambda: leases(group) == 0, f"the lease of the {mode} client to end", 60)
        unload(group)
        facts = bench.comes_back(before)
    loads_again(bench, group, source)
    return facts


def caught(bench, group, one, path, watched):
    """Whether a load of `path` was seen moving bytes, by the daemon of rank `watched`."""
    with ckptd.connect(group.address(watched)) as watcher:

        def seen():
            found = [c for c in watcher.list() if c.source == path]
            if not found:
                return None
            loading = found[0].state == "LOADING"
            return (found[0].progress.stage if loading else found[0].state) in (
                "TRANSFERRING",
                "ACTIVE",
                "FAILED",
            ) and found[0]

        client.tell(one, "load", source=path, layout=LAYOUT)
        return wait_until(seen, "bytes to move").state == "LOADING"


def start_hit(bench, group, one, watched):
    """Begins loads until one was seen moving bytes, by the daemon of rank `watched`."""
    for attempt in range(ATTEMPTS):
        path = files.sparse(bench.path() / f"m{attempt}.safetensors", size_of(bench), 60)
        if caught(bench, group, one, path, watched):
            return
        client.hear(one)
        unload(group)
    raise NotShown(f"{ATTEMPTS} loads were over before they could be hit")


def during_transfer(bench, victim):
    """Kills the daemon of rank `victim` while bytes move."""
    group, source, one, before = start(bench)
    start_hit(bench, group, one, watched=1 - victim)
    begin = time.monotonic()
    group.kill(victim)
    said = client.hear(one)
    heard = time.monotonic() - begin
    # A load may have been done when its daemon died; then the client has that.
    assert "reason" in said or "name" in said, said
    unload(group)
    facts = bench.comes_back(before, SLACK_AFTER_RESTART)
    loads_again(bench, group, source)
    return {"client heard": said.get("reason", "loaded"), "after s": heard, **facts}


@checks("a member daemon killed during a transfer ends the load everywhere, and leaks nothing")
def member(bench):
    return during_transfer(bench, 1)


@checks("the leader killed during a transfer ends the load everywhere, and leaks nothing")
def leader(bench):
    return during_transfer(bench, 0)
