"""The main job, end to end: checkpoint, daemons, trainers, SIGKILL, the next start, proof.

    python main_job.py --bytes 500MB --ranks 2 --memory host
"""

import signal
import sys
import time

import machine
import make_checkpoint
import options
from processes import Daemons, Failure, Trainers


def gigabytes(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


class Job:
    """One run. `memory`: "host", where trainers copy on write and the daemons keep their shards, or "cuda",
    where trainers take the memory over and the next ones get it from the daemons' host tier."""

    def __init__(self, arguments, place: machine.Place, source, nbytes):
        self.place, self.ranks, self.nbytes = place, place.ranks, nbytes
        self.on_gpus = place.memory == "cuda"
        run_dir = arguments.run_dir or arguments.directory / "run"
        run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        per_rank = str(nbytes // self.ranks * 21 // 20 + (4 << 20))
        room = ("--host-tier" if self.on_gpus else "--arena", per_rank)
        self.daemons = Daemons(arguments.binaries, run_dir, self.ranks, "--memory", place.memory, *room,
                               keep=arguments.keep)
        mode = "exclusive" if self.on_gpus else "private"
        self.trainer = (arguments.trainer, self.daemons.environment, self.ranks, source, "--bytes", arguments.bytes,
                        "--device", place.device, "--mode", mode)
        self.trainers = None

    def start(self, *options):
        """New trainers; what each says when its model is filled."""
        self.trainers = Trainers(*self.trainer, *options)
        return self.trainers.wait("loaded")

    def end(self, keep):
        if self.trainers is not None:
            self.trainers.end()
        if not keep:
            self.daemons.stop()

    def compare(self):
        compared = sum(line["bytes"] for line in self.trainers.wait("compared"))
        if compared != self.nbytes:
            raise Failure(f"{compared} bytes were compared, the checkpoint has {self.nbytes}")
        return compared

    def progress(self, checkpoint, rank=0):
        return self.daemons.json("--rank", str(rank), "get", checkpoint)["progress"]


def slowest(lines):
    return max(line["seconds"] for line in lines)


def report_load(job, loaded):
    progress, nbytes = job.progress(loaded[0]["checkpoint"]), job.nbytes
    transfer = next((float(s["duration"].rstrip("s")) for s in progress["stages"]
                     if s["stage"] == "STAGE_TRANSFERRING"), 0)
    read, sent = progress["read"]["storage_bytes"], progress["sent_bytes"]
    rate = f", placed at {nbytes / transfer / 1e9:.1f} GB/s" if transfer else ""
    print(f"  load            {slowest(loaded):8.3f} s    slowest of {job.ranks} ranks, call to usable parameters{rate}")
    print(f"  storage read    {read / nbytes:8.3f} x    the checkpoint's {gigabytes(nbytes)}, by rank 0 alone")
    print(f"  sent to others  {sent / nbytes:8.3f} x    only what each rank keeps")
    report_copies(loaded)
    if read != nbytes:
        raise Failure("bytes were read more than once; see the lines above")


def report_copies(loaded):
    copied, within = (sum(line[what] for line in loaded) for what in ("copied", "copied_bytes"))
    print(f"  copied          {copied:8d}      tensors whose memory is not the daemon's")
    if copied or within:
        raise Failure(f"{copied} tensors and {within} bytes were copied, in place of the daemons' memory being used")


def report_again(job, again):
    seconds = f"{slowest(again) * 1e3:8.1f} ms   slowest rank, call to usable parameters"
    if job.on_gpus:
        report_restored(job, again, seconds)
    elif all(line["resident"] for line in again):
        print(f"  re-attached     {seconds}")
    else:
        raise Failure("a restarted trainer was not given the resident shard")
    late = max(again, key=lambda line: line["seconds"])["stages"]
    stages = ", ".join(f"{name} {duration * 1e3:.1f}" for name, duration in late.items() if name != "total")
    print(f"                           {stages}")


def report_restored(job, again, seconds):
    """The first trainers took the memory and changed it; these have it anew from the host tier."""
    each = [job.progress(again[0]["checkpoint"], rank) for rank in range(job.ranks)]
    read = sum(progress["read"]["storage_bytes"] for progress in each)
    restored = sum(progress["restored_bytes"] for progress in each)
    print(f"  loaded again    {seconds}")
    print(f"  storage read    {read / job.nbytes:8.3f} x    {gigabytes(restored)} came from the daemons' host tier")
    report_copies(again)
    if read or restored != job.nbytes:
        raise Failure("a restarted trainer was not given what the host tier kept; see the lines above")


def verify_digests(job, checkpoint):
    for rank in range(job.ranks):
        check = job.daemons.json("--rank", str(rank), "verify", checkpoint)
        if check.get("mismatched"):
            raise Failure(f"rank {rank}: digests differ: {check['mismatched'][:3]}")


def show(job, steps):
    report_load(job, job.start("--hold"))
    job.compare()
    last = job.trainers.wait("step", steps)
    print(f"  trained         {steps:8d}      steps in place, loss {last[0]['loss']:.3f}")
    victim = job.ranks - 1
    job.trainers.kill(victim)
    job.trainers.end()
    print(f"  killed                   trainer {victim} with SIGKILL; the job starts again")

    again = job.start("--steps", "1")
    report_again(job, again)
    compared = job.compare()
    job.trainers.wait("step", 1)
    digests = ""
    if not job.on_gpus:  # there the trainers have the memory, the daemons nothing to verify
        verify_digests(job, again[0]["checkpoint"])
        digests = "; digests right"
    print(f"  compared        {gigabytes(compared):>11}   on the ranks with the files, byte for byte{digests}")


def run(arguments):
    place = machine.choose(arguments.binaries, arguments.memory, arguments.ranks)
    source = arguments.directory / f"llama-{arguments.bytes}"
    begin = time.perf_counter()
    nbytes = make_checkpoint.make(source, arguments.bytes)
    print(f"checkpoint: {source}, {gigabytes(nbytes)} in bf16 ({time.perf_counter() - begin:.1f} s)")
    job = Job(arguments, place, source, nbytes)
    keep = False
    try:
        print(f"daemons: {job.ranks}, ready; shards in {place.where}; log: {job.daemons.log}")
        show(job, arguments.steps)
        keep = arguments.keep
    finally:
        job.end(keep)
    if keep:
        print(f"daemons kept: export CKPTD_ADDRESS='{job.daemons.environment['CKPTD_ADDRESS']}'; "
              f"stop them with: kill {job.daemons.process.pid}")
    print(f"kept for the next run: {source} ({gigabytes(nbytes)}); remove it with rm -r {arguments.directory}")
    print("verified")


def main():
    arguments = options.parse()
    arguments.directory = arguments.directory.resolve()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
    try:
        run(arguments)
    except Failure as failure:
        sys.exit(f"quickstart: {failure}")
    except KeyboardInterrupt:
        print("quickstart: interrupted; everything it started has been stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
