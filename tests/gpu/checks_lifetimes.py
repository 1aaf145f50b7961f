"""Who lets go of what, and when: trainers, daemons, modes."""

import os
import signal

import client
import files
import trainer_files
from bench import SLACK_AFTER_RESTART, TRAINER, leases, unload
from group import wait_until
from gpu_record import Checks, NotShown

checks = Checks()
ask = client.ask


def trainers(bench, group, *modes):
    """[(program, what the load said)]: a trainer for each mode, with its reference beside it."""
    source = trainer_files.source(bench)
    programs = [bench.program(TRAINER, group.address(0), source, mode) for mode in modes]
    for program in programs:  # they get ready side by side
        client.tell(program, "reference")
    for program in programs:
        told = client.hear(program)
        assert not told, told
    said = [ask(program, "load") for program in programs]
    assert not any("reason" in answer for answer in said), said
    return list(zip(programs, said))


def ends(*programs):
    """They drop what they have and end in the ordinary way."""
    for program in programs:
        ask(program, "drop")
        program.process.communicate(timeout=30)
        assert program.process.returncode == 0, program.process.returncode


def fine(answer):
    assert answer.get("same") is True, answer


@checks("an exclusive trainer takes the memory without a copy, and gives it back", "torch")
def exclusive(bench):
    group = bench.warm_group(1)
    before = bench.free()
    ((program, said),) = trainers(bench, group, "exclusive")
    assert (said["mode"], said["copied"], said["copied_bytes"]) == ("exclusive", {}, 0), said
    assert said["device"] == bench.uuid, said
    assert ask(program, "inside")["outside"] == 0
    # The daemon notes it once it has handed the memory over.
    wait_until(lambda: [c["state"] for c in group.json("list")["checkpoints"]] == ["STATE_TAKEN"], "the shard to be taken", 20)
    assert int(group.info()["memory"]["used_bytes"]) == 0
    fine(ask(program, "compare"))
    bench.trained = ask(program, "train", steps=10 if bench.fake else 100)
    held = bench.free()
    ask(program, "drop")  # the last tensor goes, the process stays
    wait_until(
        lambda: bench.free() - held >= 0.95 * said["nbytes"],
        "the trainer to give back the shard",
        20,
    )
    ends(program)
    return bench.comes_back(before)


@checks("100 optimizer steps in imported memory equal those in PyTorch's own, bit for bit", "torch")
def many_steps(bench):
    if bench.trained is None:
        raise NotShown("the check before it, which trains, was not made or failed")
    fine(bench.trained)


@checks(
    "a private trainer copies once and says so; the next one finds the weights as they were",
    "torch",
)
def private(bench):
    group = bench.group(1)
    ((program, said),) = trainers(bench, group, "private")
    assert said["copied_bytes"] > 0 and not said["resident"], said
    fine(ask(program, "train", steps=2))
    os.kill(program.pid, signal.SIGKILL)
    wait_until(lambda: leases(group) == 0, "the lease of a trainer that was killed to end", 60)
    assert not group.json("verify", group.json("list")["checkpoints"][0]["name"]).get("mismatched")
    ((again, second),) = trainers(bench, group, "private")
    assert second["resident"], second
    fine(ask(again, "compare"))
    return {"first load s": said["seconds"], "re-attached s": second["seconds"]}


@checks("readers share one memory, which goes when the last of them and the daemon let go", "torch")
def shared(bench):
    group = bench.warm_group(1)
    before = bench.free()
    (one, said), (two, again) = trainers(bench, group, "shared", "shared")
    assert again["resident"] and not said["copied_bytes"] and not again["copied_bytes"]
    fine(ask(one, "forward"))
    fine(ask(two, "forward"))
    assert leases(group) == 2
    unload(group)  # forced: the readers keep what they have mapped
    fine(ask(one, "forward"))
    ends(one, two)
    wait_until(lambda: leases(group) == 0, "the leases to end", 60)
    return bench.comes_back(before)


@checks(
    "a trainer reads and trains on after its daemon was killed, and the memory goes with it",
    "torch",
)
def daemon_killed(bench):
    group = bench.warm_group(1)
    before = bench.free()
    (program, _), (reader, _) = trainers(bench, group, "exclusive", "shared")
    group.kill(0)
    fine(ask(program, "compare"))
    fine(ask(program, "train", steps=3))
    fine(ask(reader, "forward"))
    ends(program, reader)
    return bench.comes_back(before, SLACK_AFTER_RESTART)


@checks("a shard that was taken comes back from the host tier, without storage and right", "numpy")
def host_tier(bench):
    size = (16 << 20) if bench.fake else (1 << 30)
    folder = bench.path()
    files.random_files(folder, size, 1, (1 if bench.fake else 16) << 20)
    group = bench.group(1, "--host-tier", size * 2)
    sums = []
    for _ in range(2):
        one = bench.client(group.address(0))
        said = ask(one, "load", source=str(folder), layout="replicate:1", mode="exclusive")
        assert "name" in said, said
        ask(one, "acquire", mode="exclusive")
        sums.append(ask(one, "digest"))
        os.kill(one.pid, signal.SIGKILL)
        wait_until(lambda: leases(group) == 0, "its lease to end", 60)
        progress = group.json("get", said["name"])["progress"]
    assert sums[0] == sums[1]
    assert int(progress["restored_bytes"]) >= size * 0.99, progress
    assert int(progress["read"]["storage_bytes"]) == 0, progress


@checks("unloading gives the memory back to the GPU")
def unloading(bench):
    size = (16 << 20) if bench.fake else (1 << 30)
    source = files.sparse(bench.path() / "m.safetensors", size, 50)
    group = bench.group(1)
    one = bench.client(group.address(0))
    ask(one, "load", source=source, layout="replicate:1", digest=False)
    unload(group)  # the first load made the daemon's own memory grow
    before = bench.free()
    ask(one, "load", source=source, layout="replicate:1", digest=False)
    taken = before - bench.free()
    assert taken >= size * 0.99, f"a load of {size} bytes took {taken} of the GPU"
    unload(group)
    return {"taken bytes": taken, "of": size, **bench.comes_back(before)}
