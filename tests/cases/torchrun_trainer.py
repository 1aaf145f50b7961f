"""A trainer of torchrun in a pod, /app/train.py of its image: loads with all ranks, holds its shard until it is told to end.

It says what it does in lines of JSON, and ends well at SIGTERM or once there is a file /tmp/finish.
"""

import json
import os
import signal

import ckptd
import safetensors.numpy

SOURCE = "/models/m.safetensors"
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def say(what, **more):
    # One write: lines of ranks do not mix.
    os.write(1, (json.dumps({"rank": RANK, "what": what, **more}) + "\n").encode())


def same_bytes(shard):
    """Whether this rank has its rows of each tensor."""
    for name, array in safetensors.numpy.load_file(SOURCE).items():
        rows = len(array) // RANKS
        if bytes(shard.tensors[name].buffer) != array[RANK * rows:(RANK + 1) * rows].tobytes():
            return False
    return True


def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    client = ckptd.connect()
    checkpoint = client.load(SOURCE, layout=f"fsdp:{RANKS}")
    shard = client.acquire(checkpoint)
    say("loaded", ranks=RANKS, resident=checkpoint.resident, same=same_bytes(shard))
    while not os.path.exists("/tmp/finish"):
        if signal.sigtimedwait({signal.SIGTERM}, 0.1):
            break
    say("saved", same=same_bytes(shard))


if __name__ == "__main__":
    main()
