"""A trainer that writes what it may only read: last, for it makes the GPU report a fault."""

import subprocess

import client
import trainer_files
from bench import TRAINER
from gpu_record import Checks

checks = Checks()


@checks(
    "a write to shared memory ends the writer alone; readers, daemon and bytes stay whole", "torch"
)
def write(bench):
    source = trainer_files.source(bench)
    group = bench.group(1)
    writer, reader = (bench.program(TRAINER, group.address(0), source, "shared") for _ in range(2))
    for program in (writer, reader):
        client.tell(program, "reference")
    for program in (writer, reader):
        client.hear(program)
        assert client.ask(program, "load")["mode"] == "shared"
    try:
        said = client.ask(writer, "write")
    except AssertionError:  # it ended without a word
        said = {"reason": f"ended with {writer.process.wait()}"}
    assert said.get("reason"), f"the write was not refused: {said}"
    writer.process.kill()
    writer.process.wait()
    for verb in ("forward", "compare"):
        assert client.ask(reader, verb).get("same") is True
    name = group.json("list")["checkpoints"][0]["name"]
    assert not group.json("verify", name).get("mismatched")
    fresh = bench.client(group.address(0))
    assert not client.ask(fresh, "load", source=source, layout="replicate:1").get("reason")
    assert client.ask(fresh, "acquire")["tensors"] > 5
    return {"the writer heard": str(said.get("message") or said["reason"])[:200], **kernel_log()}


def kernel_log():
    try:
        done = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=10)
    except OSError:
        return {}
    lines = [line for line in done.stdout.splitlines() if "Xid" in line]
    return {"kernel's log": lines[-1]} if lines else {}
