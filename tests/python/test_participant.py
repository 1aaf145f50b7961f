"""What a rank hears of others' failures in the moment in which it leaves a load."""

import concurrent.futures

import grpc
import pytest
from ckptd import _participant, _proto
from ckptd._errors import Error
from ckptd._rpc import Deadline


class Call(concurrent.futures.Future):
    """JoinLoad's, as gRPC has it."""

    def code(self):
        return grpc.StatusCode.OK


class Daemon:
    """Answers JoinLoad when its client leaves, before it answers that."""

    def __init__(self, **failure):
        self.answer = _proto.message("JoinLoadResponse")()
        if failure:
            self.answer.failure.CopyFrom(type(self.answer.failure)(**failure))
        self.left = []

    def future(self, method, request):
        self.joined = Call()
        return self.joined

    def call(self, method, request, doing, deadline, idempotent):
        self.left.append(request)
        self.joined.set_result(self.answer)


def take_part(daemon, then=lambda participant: None, **more):
    client = type("Client", (), {"_connection": daemon})
    with _participant.participate(client, "/weights", Deadline(60), barrier=False, **more) as participant:
        then(participant)


def test_a_failure_that_comes_while_a_rank_leaves_is_raised_and_told_to_nobody():
    daemon = Daemon(code=9, message="rank 1: loading /weights: it has failed", reason="RANK_FAILED")
    with pytest.raises(Error, match="rank 1") as caught:
        take_part(daemon)
    assert caught.value.reason == "RANK_FAILED"
    assert [request.HasField("failure") for request in daemon.left] == [False]


def test_a_rank_that_needs_no_other_ends_well_all_the_same():
    daemon = Daemon(code=9, message="rank 1: loading /weights: it has failed", reason="RANK_FAILED")
    take_part(daemon, lambda participant: participant.mark_resident())
    assert len(daemon.left) == 1


def test_a_rank_that_goes_on_to_what_needs_all_hears_although_its_weights_are_resident():
    daemon = Daemon(code=9, message="rank 1: loading /weights: it has failed", reason="RANK_FAILED")
    with pytest.raises(Error, match="rank 1"):
        take_part(daemon, lambda participant: participant.mark_resident(), needs_all=True)


def test_a_rank_leaves_well_where_nobody_has_failed():
    daemon = Daemon()
    take_part(daemon)
    assert len(daemon.left) == 1 and daemon.joined.done()
