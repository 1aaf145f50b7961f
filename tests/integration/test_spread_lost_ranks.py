"""What ranks hear that wait for one which will never come: its reason, within 10 seconds."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
WORLD = 3


@pytest.fixture(scope="module")
def daemons(tmp_path_factory):
    from group import Group
    with Group(tmp_path_factory.mktemp("l"), WORLD) as group:
        yield group


def heard(folder, daemons, how):
    """What the ranks that live on heard, when one was lost."""
    environment = {**daemons.environment, "OMP_NUM_THREADS": "1", "CKPTD_TEST_ADDRESS": daemons.address("{rank}"),
                   "PYTHONPATH": os.pathsep.join([str(HERE.parents[1] / "client/python/src"),
                                                  str(HERE.parent / "python")])}
    command = [sys.executable, HERE.parent / "python/lost_rank.py", folder]
    with open(folder / "stderr", "wb") as stderr:
        ranks = [subprocess.Popen([*map(str, command), str(rank), str(WORLD), how], env=environment, stderr=stderr)
                 for rank in range(WORLD)]
        try:
            for rank in ranks:
                rank.wait(120)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    lost = 0 if how in ("its store goes with it", "it is rank 0 and late") else WORLD - 1
    files = [folder / f"rank-{rank}.json" for rank in range(WORLD) if rank != lost]
    assert all(file.exists() for file in files), (folder / "stderr").read_text()[-3000:]
    return [json.loads(file.read_text()) for file in files]


@pytest.mark.parametrize("how,says", [
    ("it is killed", "has ended"),
    ("it raises", "a mistake of the trainer"),
    ("it raises before its first call", "a mistake of the trainer"),
    ("its store goes with it", "store is gone"),
])
def test_ranks_that_wait_for_a_lost_one_hear_why_within_10_seconds(how, says, daemons, tmp_path):
    for kind, reason, sentence, seconds in heard(tmp_path, daemons, how):
        assert (kind, reason) == ("Aborted", "RANK_LOST"), sentence
        assert says in sentence and "start the job again" in sentence
        assert seconds < 10


@pytest.mark.parametrize("how,lost", [("it is late", WORLD - 1), ("it is rank 0 and late", 0)])
def test_ranks_that_wait_for_a_late_one_hear_for_whom_within_10_seconds(how, lost, daemons, tmp_path):
    for kind, _, sentence, seconds in heard(tmp_path, daemons, how):
        assert kind == "", f"{kind}: {sentence}"
        assert f"s, for rank {lost}, which must make the same call; it gives up after 60 s" in sentence
        assert seconds < 10
