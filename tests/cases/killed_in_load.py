"""One of two ranks whose last one is killed in load_into: python killed_in_load.py FOLDER RANK WORLD MOMENT.

Rank 0 writes FOLDER/heard.json: [type, reason, sentence, seconds from the loss, the pid that was
killed, seconds that the load with a new process took]. Rank 1 is such a process, whose child is
the one that is killed.
"""

import json
import os
import pathlib
import sys
import threading
import time


def load(model, path, **options):
    import ckptd.torch

    address = os.environ["CKPTD_TEST_ADDRESS"].replace("{rank}", os.environ["RANK"])
    return ckptd.torch.load_into(model, str(path), address=address, timeout=60, **options)


def model():
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.register_buffer("rope", torch.zeros(4), persistent=False)

    with torch.device("meta"):
        return Model()


def wait_for(condition):
    end = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def waits(rank):
    import ckptd

    with ckptd.connect(os.environ["CKPTD_TEST_ADDRESS"].replace("{rank}", rank)) as client:
        return any(c.state == "LOADING" and c.progress.waiting_ranks for c in client.list())


def die(folder):
    (folder / "killed.part").write_text(json.dumps([os.getpid(), time.monotonic()]))
    (folder / "killed.part").rename(folder / "killed")
    os.kill(os.getpid(), 9)


def be_killed(folder, path, moment):
    """As rank 1, in a process of its own."""
    from ckptd.torch.load import _targets

    def once(rank):
        wait_for(lambda: waits(rank))
        die(folder)

    if moment == "before it asks":
        _targets.rank_layout = lambda *_: once("0")
    if moment == "while it waits":
        threading.Thread(target=once, args=("1",)).start()
    load(model(), path, init_buffers=lambda *_: die(folder))


def filled(model, names):
    import torch

    model.rope = torch.ones(4)


def main(folder, rank, moment):
    from safetensors.torch import save_file

    import torch

    if rank == 0:
        part = folder / "part"
        save_file({"linear.weight": torch.ones(4, 4), "linear.bias": torch.ones(4)}, str(part))
        part.rename(folder / "m.safetensors")
    path = folder / "m.safetensors"
    wait_for(path.exists)
    if rank == 1:
        if os.fork() == 0:
            be_killed(folder, path, moment)
        wait_for((folder / "heard").exists)
        load(model(), path, init_buffers=filled, barrier=True)
        return
    if moment == "while it waits":
        wait_for((folder / "killed").exists)  # and comes a moment later
    try:
        load(model(), path, init_buffers=filled, barrier=moment == "while it places")
        found = ["nothing", "", ""]
    except Exception as error:
        found = [type(error).__name__, error.reason, str(error)]
    heard = time.monotonic()
    pid, killed = json.loads((folder / "killed").read_text())
    (folder / "heard").touch()
    load(model(), path, init_buffers=filled, barrier=True)
    again = time.monotonic() - heard
    (folder / "heard.part").write_text(json.dumps([*found, heard - killed, pid, again]))
    (folder / "heard.part").rename(folder / "heard.json")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[4])
