"""How what is worked out for a load grows with tensors and ranks: who gets which bytes, and in which order.

    tests/bench/run planning --tensors 100,000 --ranks 4,096

Real plans of the leader and of members, fsdp over all ranks, of tensors whose rows do not divide evenly; nothing
is read or sent. One thread, processor time. `plan`, what is done before the first byte moves; `order`, the steps
of a scatter by a communicator, all of them, which a load works out while bytes move; memory is the most that one
process took that did a leader's part and a member's.
"""

import argparse
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / "deploy/main_job")]

import arguments  # noqa: E402
import plot  # noqa: E402
import report  # noqa: E402
import running  # noqa: E402

PATIENCE = 3600  # seconds for one point
HALVES = 3  # so often the largest number is halved
ROW_BYTES, ROWS = 128, 2047  # of a tensor, as plan_bench makes them
MOST_MEMORY = 2.0  # GB per daemon
MOST_SECONDS = 1.0  # of a member's
LINEAR = 1.1  # exponents up to here count as linear


def points(tensors, ranks):
    """(tensors, ranks) of each axis; the largest is the last of both."""
    halves = [2**n for n in range(HALVES, -1, -1)]
    return {"tensors": [(tensors // n, ranks) for n in halves], "ranks": [(tensors, ranks // n) for n in halves]}


def measure(binaries, tensors, ranks):
    try:
        answer = subprocess.run([binaries / "plan_bench", str(tensors), str(ranks), "scatter"], capture_output=True,
                                text=True, timeout=PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SystemExit(f"bench: planning {tensors:,} tensors x {ranks:,} ranks: {error}") from None
    return json.loads(answer.stdout)


def run(binaries, tensors, ranks, say):
    """Axis name -> what plan_bench says at its points, each point measured once."""
    known, found = {}, {}
    for name, axis in points(tensors, ranks).items():
        for point in axis:
            if point not in known:
                say(f"planning: {point[0]:,} tensors x {point[1]:,} ranks")
                known[point] = measure(binaries, *point)
        found[name] = [known[point] for point in axis]
    return found


def line(found):
    return (f"  {found['tensors']:>9,} tensors x {found['world_size']:>5,} ranks   plan "
            f"{found['leader_seconds']:7.3f} s, a member's {found['member_seconds']:7.3f} s   order "
            f"{found['scatter_seconds']:8.2f} s, a member's {found['scatter_member_seconds']:7.3f} s   memory "
            f"{found['peak_memory_bytes'] / 1e6:6.0f} MB")


def text(found):
    """All points, a line each."""
    return "\n".join("\n".join([f"against {name}", *map(line, axis)]) for name, axis in found.items())


def judge(table, found):
    largest = found["tensors"][-1]
    nbytes = largest["tensors"] * ROWS * ROW_BYTES
    what = f"{largest['tensors']:,} tensors x {largest['world_size']:,} ranks"
    table.at_most(f"memory of plan and order, {what}", largest["peak_memory_bytes"] / 1e9, MOST_MEMORY, "GB")
    table.at_most("a member's plan and order", largest["member_seconds"] + largest["scatter_member_seconds"],
                  MOST_SECONDS, "s")
    for name, axis in found.items():
        key = "tensors" if name == "tensors" else "world_size"
        curve = [(point[key], point["leader_seconds"] + point["scatter_seconds"]) for point in axis]
        table.at_most(f"plan and order against {name}, exponent", round(plot.exponent(curve), 2) + 0.0, LINEAR, "")
    # Spans are sent whole: behind each of these slices, of one row, lies more padding than it has bytes.
    table.plain("bytes sent, with the padding between slices of one row / S", f"{largest['sent_bytes'] / nbytes:.2f} S")


def number(text):
    """A number of 8 or more, with commas or without: it is halved three times."""
    value = arguments.count(text.replace(",", ""))
    if value < 2**HALVES:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of {2**HALVES} or more")
    return value


def read_arguments():
    parser = argparse.ArgumentParser(prog="tests/bench/run planning", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=number, default=100_000, help="the most tensors (default 100,000)")
    parser.add_argument("--ranks", type=number, default=4096, help="the most ranks (default 4,096)")
    parser.add_argument("--json", type=arguments.output, help="write all figures here")
    parser.add_argument("--binaries", type=pathlib.Path, default=ROOT / "build" / "bin", help=argparse.SUPPRESS)
    return arguments.parse(parser)


def main():
    options = read_arguments()
    found, table = run(options.binaries, options.tensors, options.ranks, running.say), report.Table()
    running.say("")
    judge(table, found)
    print(f"{text(found)}\n\nwhat is to be reached\n{table.text()}")
    if options.json:
        options.json.write_text(json.dumps({**found, "table": table.lines}, indent=1))


if __name__ == "__main__":
    arguments.run(main)
