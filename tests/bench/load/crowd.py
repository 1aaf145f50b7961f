"""One of many clients without torch: python crowd.py SOURCE LAYOUT PATIENCE.

Says it is ready, then for each line it reads, which is a moment of the machine's monotonic
clock, connects anew at that moment, loads (or finds resident) and maps its shard, and prints
JSON: seconds since that moment, and the seconds of the daemon's stages. It holds the shard
until it is told "leave". A client that waits longer than PATIENCE seconds ends.
"""

import json
import signal
import sys
import time

import ckptd
import grpc  # noqa: F401  imported by the first call otherwise


def attach(source, layout, start):
    time.sleep(max(0.0, start - time.monotonic()))
    with ckptd.connect() as client:
        checkpoint = client.load(source, layout=layout)
        shard = client.acquire(checkpoint)
        assert len(shard.tensors)
    answer = {"seconds": time.monotonic() - start, "resident": checkpoint.resident,
              "stages": dict(checkpoint.progress.stages)}
    return shard, answer


def main(source, layout, patience):
    print("ready", flush=True)
    shard = None
    signal.alarm(patience)
    for line in sys.stdin:
        if line.strip() == "leave":
            shard.close()
            shard, answer = None, {}
        else:
            shard, answer = attach(source, layout, float(line))
        print(json.dumps(answer), flush=True)
        signal.alarm(patience)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
