"""How fast ckptd loads, beside what else a user would pick and beside what the machine can do.

    tests/bench/run --bytes 1.6GB --ranks 4 --rounds 5
"""

import argparse
import contextlib
import json
import os
import pathlib
import platform
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(HERE), str(ROOT / "deploy/main_job")]

import main_job  # noqa: E402
import make_checkpoint  # noqa: E402

import arguments  # noqa: E402
import contenders  # noqa: E402
import first_load  # noqa: E402
import fixed  # noqa: E402
import growth  # noqa: E402
import pretrained  # noqa: E402
import report  # noqa: E402
import rounds  # noqa: E402
import sources  # noqa: E402
from running import say, starter  # noqa: E402


MEANT_FOR = "meant for 1.6 GB or more, 4 ranks and 5 rounds on a machine with nothing else to do"
HELP = """`tests/bench/run link` measures loads to another host beside iperf3 on the same link, `tests/bench/run
pretrained` more ways of from_pretrained, and `tests/bench/run planning` plans for thousands of ranks; see
their --help.

A run of the default size takes some 40 minutes and leaves 14 GB in the directory. It ends with 0 also where
a target is missed: the table shows that. Targets are
""" + f"{MEANT_FOR}.\n\nloaders:\n  "


def measure_loads(options, start, result):
    source = options.directory / f"llama-{options.bytes}"
    nbytes = make_checkpoint.make(source, options.bytes)
    ranks = options.ranks
    names = [n for n in (*contenders.OURS, *contenders.RIVALS) if options.only in n]
    more = sources.prepare(start, options, source, names)
    arena = nbytes // ranks * 51 // 50 + (4 << 20)
    with contextlib.ExitStack() as stack:
        daemons = stack.enter_context(start(ranks, arena))
        own = any(name in contenders.APART for name in names)
        apart = stack.enter_context(start(ranks, arena, "apart")) if own else None
        bench = rounds.Bench(daemons, source, options.bytes, ranks, apart, **more)
        result["warm"] = rounds.run(bench, names, options.rounds, rounds.WARM_FLOOR, False, say)
        if not options.only:
            rounds.forget(daemons, ranks)
            bench.run_ranks(contenders.SAFETENSORS, False)
            result["progress"] = rounds.resident(daemons)[0]["progress"]
        cold = [name for name in contenders.COLD if name in names]
        if options.cold and cold:
            result["cold"] = rounds.run(bench, cold, options.rounds, rounds.COLD_FLOOR, True, say)
    result["bytes"] = nbytes


def show_loads(options, result, table):
    print(f"{platform.processor() or platform.machine()}, {len(os.sched_getaffinity(0))} cores, "
          f"{result['bytes'] / 1e9:.2f} GB in bf16, {options.ranks} ranks; from a common start to the slowest rank's "
          f"touched parameters;\nmedian and range of {options.rounds} rounds, a fresh process per rank and sample, "
          "bytes compared on each rank;\nfunctions of ckptd's without digests, unless a line says so")
    for kind in ("warm", "cold"):
        if kind in result:
            print(f"\n{kind} page cache")
            for name, samples in result[kind].items():
                print(report.row(name, samples))
    if options.only:
        return
    report.warm(table, result["warm"], result["bytes"], options.ranks)
    report.counted(table, result["progress"], result["bytes"], options.ranks)
    if "cold" in result:
        report.cold(table, result["cold"])


def show(options, result):
    table = report.Table()
    if "warm" in result:
        show_loads(options, result, table)
    if "attached" in result:
        report.fixed(table, result["attached"], result["plans"], result["idle"], result["start_up"])
    if "small" in result:
        report.small(table, result["small"], sources.SMALL)
    if "first_load" in result:
        print(f"\n{first_load.text(result['first_load'])}")
        first_load.judge(table, result["first_load"]["samples"])
    if "pretrained" in result:
        print(f"\n{pretrained.text(result['pretrained'])}")
        report.pretrained(table, result["pretrained"]["samples"])
    if "growth" in result:
        print(growth.text(result["growth"]))
        print("\n" + "\n".join(map(str, growth.draw(result["growth"], options.directory))))
        growth.judge(table, result["growth"])
    if table.lines:
        print(f"\nwhat is to be reached: {MEANT_FOR}\n{table.text()}")
    result["table"] = table.lines


def part_of_name(text):
    names = (*contenders.OURS, *contenders.RIVALS)
    if not any(text in name for name in names):
        raise argparse.ArgumentTypeError(f"no loader is called {text!r}; there are: {'; '.join(names)}")
    return text


def read_arguments():
    parser = arguments.of_loads("", __doc__.splitlines()[0], rounds=5,
                                epilog=HELP + "\n  ".join((*contenders.OURS, *contenders.RIVALS)))
    parser.add_argument("--only", type=part_of_name, default="", metavar="TEXT",
                        help="just the loaders whose names contain TEXT")
    parser.add_argument("--no-cold", dest="cold", action="store_false", help="leave the cold loads out")
    parser.add_argument("--no-fixed", dest="fixed", action="store_false",
                        help="leave out what does not come from bytes: attach, plan, start-up, small tensors")
    parser.add_argument("--no-pretrained", dest="pretrained", action="store_false",
                        help="leave from_pretrained out, of which three rounds are measured at most")
    parser.add_argument("--growth", action="store_true",
                        help="also how time and memory grow with bytes, tensors, ranks and clients at once, as plots "
                             "(growth-*.svg in the directory) and exponents: some two minutes more")
    parser.add_argument("--growth-only", action="store_true", help="that and nothing else")
    return arguments.parse(parser)


def main():
    options = read_arguments()
    start = starter(options.binaries, options.directory)
    result, whole = {}, not options.only and not options.growth_only
    try:
        if not options.growth_only:
            measure_loads(options, start, result)
        if options.pretrained and whole:
            found = pretrained.run(start, options, min(options.rounds, 3), pretrained.FSDP2_NAMES, say)
            result["pretrained"] = found
        if options.fixed and whole:
            result["attached"] = fixed.attach_all(start, options.directory, options.rounds, say)
            result["plans"] = fixed.plan(options.binaries)
            result["idle"] = fixed.idle(start)
            result["start_up"] = fixed.start_up(options.binaries, start)
            result["small"] = sources.run_small(start, options.directory, options.rounds, say)
        if whole:
            result["first_load"] = first_load.run(options, say)
        if options.growth or options.growth_only:
            result["growth"] = growth.run(start, options.directory, say)
    except main_job.Failure as failure:
        sys.exit(f"bench: {failure}")
    say("")
    show(options, result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1, default=str))


if __name__ == "__main__":
    arguments.run(main)
