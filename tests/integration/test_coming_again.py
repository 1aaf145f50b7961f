"""A trainer that comes again finds its shard at once, whatever else the daemon is asked."""

import threading

import ckptd
from faults import sparse
from group import wait_until


def test_a_trainer_that_comes_again_waits_for_no_verification(start, tmp_path):
    group = start(2)
    path = sparse(tmp_path / "m.safetensors", 256 << 20)
    with ckptd.connect(group.address(0)) as client:
        loaded = client.load(path, layout="replicate:2")
    for rank in range(2):
        ended = []

        def verify():
            with ckptd.connect(group.address(rank)) as other:
                ended.append(other.verify(loaded.name, timeout=60).ok)

        verifying = [threading.Thread(target=verify) for _ in range(16)]
        for thread in verifying:
            thread.start()
        wait_until(lambda: ended, "the first verification")
        with ckptd.connect(group.address(rank)) as client:
            again = client.load(path, layout="replicate:2", timeout=60)
            pending = len(verifying) - len(ended)
        for thread in verifying:
            thread.join()
        assert again.name == loaded.name and again.resident
        assert ended == [True] * 16 and pending > 0
