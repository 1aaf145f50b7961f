"""Daemons of another version: refused on both sides, with both versions named."""

import pytest
from group import Daemon, wait_until
from noise import peer_address
from peer import FakeLeader, call, join_request, message


@pytest.mark.parametrize("other", ["9.9.9", "0.0.1"])
def test_a_leader_refuses_a_member_of_another_version_and_names_both(tmp_path, other):
    with Daemon(tmp_path, ranks=2) as leader:
        own = leader.info()["version"]
        code, sentence = call(peer_address(leader), "Join", join_request(leader, version=other))
        assert code == "FAILED_PRECONDITION", sentence
        assert f"runs ckptd {other}" in sentence and own in sentence and "rank 1" in sentence
        assert [m["joined"] for m in leader.info()["members"]] == [True, False]
        assert own in leader.log() and f"runs ckptd {other}" in leader.log()


def refuse(request):
    raise RuntimeError(f"rank 1 runs ckptd {request.version}, the leader 0.0.1")


def welcome(version):
    return lambda request: message(
        "JoinResponse", epoch=2, incarnation="abcdef", secret="0" * 32, version=version
    )


@pytest.mark.parametrize(
    "answer, named",
    [(refuse, "0.0.1"), (welcome("9.9.9"), "9.9.9"), (welcome(""), "unknown version")],
    ids=[
        "an older one that refuses it",
        "a newer one that would take it",
        "one that says no version",
    ],
)
def test_a_member_does_not_join_a_leader_of_another_version_and_names_both(
    tmp_path, answer, named
):
    with FakeLeader(answer) as leader:
        with Daemon(tmp_path, ranks=2, rank=1, rendezvous=leader.address) as member:
            wait_until(lambda: len(leader.joins) > 1, "the member to try again")
            info = member.info(1)
            assert info["state"] == "JOINING"
            assert named in info["detail"] and info["version"] in info["detail"], info
            assert named in member.log()
