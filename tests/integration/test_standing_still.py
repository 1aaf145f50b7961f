"""Daemons that stand still in each stage of a load: who hears what, and what is left.

A client whose own daemon stands still gives it up after 9 s. That is a long time for a test,
so the cells of the table begin one after the other, and stand still at the same time.
"""

import concurrent.futures
import contextlib
import time

import pytest
from faults import footprints, sparse
from group import Group
from holds import HEARTBEATS, WORKING, Hold, assert_heals, assert_heard, names, needed_for, served
from tiers import Tier

# Who of a group stands still: by rank.
WHO = {"leader": (0,), "member": (2,), "all daemons": (0, 1, 2)}
RANKS = 3
CELLS = [
    *[("host", stage, who) for stage in ("GATHERING", "QUEUED", *WORKING) for who in list(WHO)[:2]],
    ("host", "TRANSFERRING", "all daemons"),
    ("cuda", "ALLOCATING", "leader"),
    ("cuda", "TRANSFERRING", "member"),
]


class Still:
    """A group in the middle of a load, somebody of which stands still, since `since`.

    before: what its daemons held. Everything goes on, and ends, with close().
    """

    def __init__(self, tier, folder, stage, who):
        with contextlib.ExitStack() as stack:
            options = (*tier.options, *HEARTBEATS, *needed_for(stage))
            self.group = Group(folder, RANKS, *options, environment=tier.environment)
            stack.enter_context(self.group)
            self.before = footprints(self.group, sparse(folder / "warm.safetensors", 1 << 20))
            # A load that gathers waits for a member that may come back, as long as its clients do.
            timeout = 10 if (stage, who) == ("GATHERING", "member") else 60
            self.held = stack.enter_context(Hold(self.group, stage, folder, timeout=timeout))
            self.held.stop(*WHO[who])
            self.since = time.monotonic()
            self.held.go_on(*WHO[who])
            self.close = stack.pop_all().close


@pytest.fixture(scope="module")
def stills(request, tmp_path_factory):
    """cell -> the Future of its Still, for the cells that were chosen."""
    chosen = [
        item.callspec.params["cell"]
        for item in request.session.items
        if item.module is request.module and hasattr(item, "callspec")
    ]
    fake = None
    if any(memory == "cuda" for memory, *_ in chosen):
        with contextlib.suppress(pytest.skip.Exception):
            fake = request.getfixturevalue("fake_gpus")
    tiers = {"host": Tier(), "cuda": fake and Tier(fake)}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        begun = {
            cell: pool.submit(Still, tiers[cell[0]], tmp_path_factory.mktemp("s"), *cell[1:])
            for cell in chosen
            if tiers[cell[0]]
        }
        yield begun
        pool.shutdown(cancel_futures=True)
    for future in begun.values():
        if not future.cancelled() and future.exception() is None:
            future.result().close()
    if fake:
        tiers["cuda"].assert_clean()


@pytest.mark.parametrize("cell", CELLS, ids=" ".join)
def test_a_daemon_that_stands_still_is_named_to_the_others_and_given_up_by_its_own_client(
    stills, cell, outcome, request
):
    memory, stage, who = cell
    if memory == "cuda":
        request.getfixturevalue("fake_gpus")
    still = stills[cell].result()
    with contextlib.closing(still):
        loads, ranks = still.held.loads, WHO[who]
        others = [loading for loading in loads if loading.rank not in ranks]
        if others:
            results = outcome(stage, who, "stopped", others, still.since)
            assert_heard(stage, results, ranks[0])
        own = [loading for loading in loads if loading.rank in ranks]
        if own:
            results = outcome(stage, f"{who}, own client", "stopped", own, still.since)
            for loading, result in zip(own, results):
                assert_given_up(stage, loading.rank, result)
        still.held.go_on()
        assert_heals(still.group, still.held.path, still.before)


def assert_given_up(stage, rank, result):
    if stage == "PUBLISHING" and served(result):
        return  # just before
    assert result.reason == "DAEMON_UNREACHABLE" and f"rank-{rank}.sock" in result.message, result
    assert "it listens there and does not answer" in result.message, result


def test_a_member_that_goes_on_in_time_tells_its_own_client_that_it_was_given_up(
    start, tmp_path, outcome
):
    group = start(RANKS, *HEARTBEATS)
    before = footprints(group, sparse(tmp_path / "warm.safetensors", 1 << 20))
    with Hold(group, "ALLOCATING", tmp_path) as held:
        held.stop(2)
        since = time.monotonic()
        held.go_on(2)
        results = outcome("ALLOCATING", "member", "stopped", held.loads[:2], since)
        assert_heard("ALLOCATING", results, 2)
        held.go_on()
        (own,) = outcome("ALLOCATING", "member, then back", "stopped", held.loads[2:], since)
        # Or it has tried to connect anew in the meantime, which it gives up by itself.
        assert names(own, 2) or "it listens there and does not answer" in own.message, own
    assert_heals(group, held.path, before)
