"""One of many clients: says it is ready, waits for a line, attaches, prints seconds."""

import sys
import time

import ckptd

with ckptd.connect() as client:
    checkpoint = client.load(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    with client.acquire(checkpoint) as shard:
        taken = time.perf_counter() - start
        assert len(shard.tensors)
    print(taken, flush=True)
