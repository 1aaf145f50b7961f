"""The figures as a table against what is to be reached, and as JSON."""

import statistics

import contenders
import peers
import resuming
from rounds import COLD_FLOOR, WARM_FLOOR

# dcp.load: with our reader, with torch's, how many times as fast.
READERS = tuple((f"ckptd StorageReader, {how}", f"FileSystemReader, {how}", target)
                for how, target in (("same layout", 3.5), ("resharded", 6)))
# The functions that users call already: ours, the original, how many times as fast.
ORIGINALS = (
    ("ckptd fsdp2_load_full_state_dict", "accelerate fsdp2_load_full_state_dict", 15),
    ("ckptd fsdp2_load_full_state_dict, digests on", "accelerate fsdp2_load_full_state_dict", 15),
    ("ckptd set_model_state_dict", "torch set_model_state_dict, broadcast", 15),
    # Without it one writes the loop of broadcasts that accelerate has.
    ("ckptd DistModule", "accelerate fsdp2_load_full_state_dict", 15),
    ("ckptd load_checkpoint_in_model", "accelerate load_checkpoint_in_model", 15),
    ("ckptd, state dict in memory", "accelerate, state dict in memory", 4),
    ("ckptd, state dict in memory, used arena", "accelerate, state dict in memory", 4),
    ("ckptd set_model_state_dict, in memory", "torch set_model_state_dict, in memory", 4),
)
# pretrained.py's ways to an FSDP2 model; the others have nothing to reach.
FSDP2_PLANS = ("fsdp", "accelerate")


def median(samples):
    return statistics.median(sample["seconds"] for sample in samples)


def row(name, samples):
    seconds = sorted(sample["seconds"] for sample in samples)
    return f"  {name:44} {statistics.median(seconds):8.3f} s   {seconds[0]:.3f} - {seconds[-1]:.3f}"


class Table:
    """Lines of (what, value, what it should be, whether it is)."""

    def __init__(self):
        self.lines = []

    def at_least(self, what, value, target, unit="x"):
        self.lines.append((what, f"{value:.2f} {unit}", f">= {target} {unit}", value >= target))

    def at_most(self, what, value, target, unit):
        self.lines.append((what, f"{value:.3g} {unit}", f"<= {target} {unit}", value <= target))

    def plain(self, what, value):
        self.lines.append((what, value, "", None))

    def text(self):
        verdict = {True: "reached", False: "MISSED", None: ""}
        return "\n".join(f"  {what:62} {value:>14} {target:>14}  {verdict[fine]}".rstrip()
                         for what, value, target, fine in self.lines)


def warm(table, found, nbytes, ranks):
    floor, off, on = (median(found[n]) for n in (WARM_FLOOR, "ckptd, digests off", "ckptd, digests on"))
    table.at_least("warm load vs floor, digests off", floor / off, 1.0)
    table.at_least("warm load vs floor, digests on", floor / on, 0.8)
    for name, off_target, on_target in (
        ("accelerate fsdp2_load_full_state_dict", 22, 17),
        ("torch set_model_state_dict, broadcast", 17, 14),
        ("dcp.load, same layout", 4, None),
        ("dcp.load, resharded", 6.5, None),
        ("DCP Hugging Face reader", 2.5, None),
        ("safetensors get_slice + clone", 2, None),
    ):
        table.at_least(f"vs {name}, digests off", median(found[name]) / off, off_target)
        if on_target:
            table.at_least(f"vs {name}, digests on", median(found[name]) / on, on_target)
    originals(table, found, (*ORIGINALS, *READERS))
    sources(table, found)
    views = median(found["mmap views"])
    table.plain("vs mmap views, first load", f"{views / off:.2f} x")
    table.at_least("vs mmap views, re-attach", views / median(found["ckptd, re-attach"]), 3)
    memory(table, found["ckptd, digests off"], nbytes)


def originals(table, found, pairs):
    for ours, theirs, target in pairs:
        owner = theirs.split()[0].rstrip(",")
        table.at_least(f"{ours}, vs {owner}'s", median(found[theirs]) / median(found[ours]), target)


def rivals(table, found):
    for name in peers.LOADS:
        table.plain(f"vs {name}", f"{median(found[name]) / median(found[contenders.SAFETENSORS]):.2f} x")


def resume(table, found):
    """A training's states are twice its model's bytes: these are put back at the weights' speed."""
    table.at_least("GB/s of a training / GB/s of its weights",
                   3 * median(found[resuming.WEIGHTS]) / median(found[resuming.OURS]), 1.0)
    table.plain("load_training_state, vs torch's", f"{median(found[resuming.TORCH]) / median(found[resuming.OURS]):.2f} x")
    originals(table, found, [(f"ckptd load_state, {kind}", f"accelerate load_state, {kind}", 5) for kind in resuming.KINDS])


def memory(table, samples, nbytes):
    """What all daemons and trainers together have of the weights, and what trainers add to it."""
    samples = [sample for sample in samples if sample["daemons"]]
    if not samples:  # daemons of another user
        table.plain("memory of daemons and trainers", "hidden")
        return
    shared = [sample["daemons"]["shmem"] + sum(rank["shmem"][1] for rank in sample["memory"]) for sample in samples]
    table.at_most("shared memory of daemons and trainers / S", statistics.median(shared) / nbytes, 1.05, "S")
    own = [after - before for sample in samples for before, after in (rank["anon"] for rank in sample["memory"])]
    table.plain("memory a trainer adds to that", f"{statistics.median(own) / 1e6:.3g} MB")


def sources(table, found):
    """Loads of the same weights from other formats than safetensors."""
    for name in contenders.SOURCES:
        table.at_most(f"{name}, beside safetensors", median(found[name]) / median(found[contenders.SAFETENSORS]), 1.15, "x")


def small(table, found, count):
    plain = median(found["safetensors"])
    for name, samples in found.items():
        ratio = "" if name == "safetensors" else f", {median(samples) / plain:.2f} x"
        table.plain(f"{count:,} tensors of 4 KB, {name}", f"{median(samples) * 1e3:.3g} ms{ratio}")


def cold(table, found):
    floor, ours = median(found[COLD_FLOOR]), median(found["ckptd, digests off"])
    table.at_least("cold load vs raw O_DIRECT read", floor / ours, 0.8)


def counted(table, progress, nbytes, ranks):
    table.at_most("storage bytes read / S", progress["read"]["storage_bytes"] / nbytes, 1.0, "S")
    table.at_most("bytes sent to other ranks / S", progress["sent_bytes"] / nbytes,
                  round((ranks - 1) / ranks, 3), "S")


def pretrained_medians(samples):
    """Seconds: stock, ckptd, and building the model."""
    return tuple(statistics.median(samples[kind]) for kind in ("native", "ckptd", "construction"))


def pretrained(table, found):
    for name, samples in found.items():
        if name.split()[0] in FSDP2_PLANS:
            native, ours, built = pretrained_medians(samples)
            table.at_least(f"from_pretrained, {name}, vs stock", native / ours, 5)
            table.at_most(f"from_pretrained, {name}, beyond construction", ours - built, 0.5, "s")


def fixed(table, attached, plans, idle, start_up):
    small, large = (attached[f"attach, 300 tensors of {size}"][0] for size in ("31 MB", "1.7 GB"))
    table.at_most("attach, 300 tensors of 31 MB, fresh process", small * 1e3, 5, "ms")
    table.at_most("attach, 300 tensors of 1.7 GB, fresh process", large * 1e3, 5, "ms")
    for name, target in (("attach, 19,000 tensors", 60), ("load_into, 19,000 parameters", 300),
                         ("load_into, 291 parameters", 10)):
        first, later = attached[name]
        table.at_most(f"{name}, fresh process", first * 1e3, target, "ms")
        table.plain(f"{name}, later calls", f"{later * 1e3:.3g} ms")
    last = plans[-1]
    table.at_most(f"plan of {last['tensors']:,} tensors x 1,024 ranks, leader, to the first byte",
                  last["leader_seconds"], 1, "s")
    table.plain("the same, a member", f"{last['member_seconds']:.3g} s")
    table.plain("memory of the leader's plan", f"{last['leader_memory_bytes'] / 1e6:.3g} MB")
    table.plain(f"scheduled while bytes move: {last['windows']} windows, each",
                f"{last['window_seconds'] * 1e3:.3g} ms for {last['window_read_bytes'] / 1e6:.3g} MB")
    if idle[0] is not None:
        table.at_most("idle daemon beyond its arena", idle[0] / 1e6, 60, "MB")
    table.at_most("idle daemon, share of a core", idle[1] * 100, 0.5, "%")
    table.at_most("import ckptd", start_up["import ckptd"] * 1e3, 30, "ms")
    table.at_most("daemon ready, without arena", start_up["daemon ready"] * 1e3, 200, "ms")
    for verb in ("ckptctl version", "ckptctl info"):
        table.at_most(verb, start_up[verb] * 1e3, 50, "ms")
