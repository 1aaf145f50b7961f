"""ckptctl acts on a group: on all of its ranks, where it is told so, and on none that it has not."""

import json
import subprocess

import ckptd
from faults import MIB, sparse
from group import BINARIES, wait_until

RANKS = 3


def ctl(group, *arguments, output="json"):
    """As an operator without --rank."""
    command = [BINARIES / "ckptctl", "--output", output, *map(str, arguments)]
    return subprocess.run(
        command, env=group.environment, capture_output=True, text=True, timeout=60
    )


def objects(answer):
    assert answer.returncode == 0, answer.stderr
    decoder, text, found = json.JSONDecoder(), answer.stdout.strip(), []
    while text:
        one, end = decoder.raw_decode(text)
        found.append(one)
        text = text[end:].lstrip()
    return found


def holders(group):
    (leases,) = objects(ctl(group, "leases", "--all-ranks"))
    return {one["rank"]: [lease["checkpoint"] for lease in one["leases"]] for one in leases["ranks"]}


def test_verbs_act_on_all_ranks_where_they_are_told_so(start, tmp_path):
    group = start(RANKS)
    with ckptd.connect(group.address(1)) as client:
        held = client.load(sparse(tmp_path / "held.safetensors", MIB), layout=f"replicate:{RANKS}")
        idle = client.load(sparse(tmp_path / "idle.safetensors", MIB), layout=f"replicate:{RANKS}")
        with client.acquire(idle):
            pass  # until then it is kept for this client
        (listed,) = objects(ctl(group, "list", "--all-ranks"))
        everywhere = {(rank, one.name) for rank in range(RANKS) for one in (held, idle)}
        assert {(one["rank"], one["name"]) for one in listed["checkpoints"]} == everywhere
        with client.acquire(held):
            # That of `idle` ends a moment after it was closed.
            wait_until(lambda: holders(group) == {0: [], 1: [held.name], 2: []}, "one lease")
            unloaded = objects(ctl(group, "unload", "--idle", "--all-ranks"))
            # Rank 1's shard of `held` is leased.
            assert {(one["rank"], one["name"]) for one in unloaded} == everywhere - {(1, held.name)}
        pinned = objects(ctl(group, "pin", held.name, "--all-ranks"))
        assert [one["rank"] for one in pinned] == [1]  # the others do not hold it any more
        unloaded = objects(ctl(group, "unload", held.name, "--all-ranks"))
        assert [one["rank"] for one in unloaded] == [1]
        nowhere = ctl(group, "unload", held.name, "--all-ranks")
        assert nowhere.returncode == 1
        assert json.loads(nowhere.stderr)["error"]["reason"] == "CHECKPOINT_NOT_FOUND"
    table = ctl(group, "list", "--all-ranks", output="table")
    assert table.returncode == 0 and table.stdout.startswith("RANK NAME")
    assert [one["rank"] for one in objects(ctl(group, "drain", "--all-ranks"))] == list(
        range(RANKS)
    )
    wait_until(
        lambda: {group.info(rank)["state"] for rank in range(RANKS)} == {"DRAINING"}, "all to drain"
    )


def test_a_rank_that_the_group_has_not_is_said_to_be_none(start):
    group = start(RANKS)
    answer = ctl(group, "list", "--rank", 7, "--timeout", "2s", output="table")
    assert answer.returncode == 2
    assert "--rank 7: the group of job job has ranks 0 to 2" in answer.stderr


def test_a_rank_that_does_not_answer_is_named_beside_what_the_others_say(start, tmp_path):
    group = start(RANKS)
    with ckptd.connect(group.address(0)) as client:
        loaded = client.load(sparse(tmp_path / "m.safetensors"), layout=f"replicate:{RANKS}")
    (group.run_dir / group.job / "rank-1.sock").unlink()
    answer = ctl(group, "list", "--all-ranks", "--timeout", "2s")
    assert answer.returncode == 3
    assert json.loads(answer.stderr)["error"]["message"].startswith("rank 1: ")
    listed = json.loads(answer.stdout)["checkpoints"]
    assert [(one["rank"], one["name"]) for one in listed] == [(0, loaded.name), (2, loaded.name)]
