"""The outcome as JSON and as a page for people."""

import json
import pathlib
from typing import List, Optional

from gpu_record import FAILED, NOT_SHOWN, PASSED

# What only hardware can show, the checks that show it, and what they leave out.
TWELVE = (
    (
        "import in another container, without its PID namespace, as another user",
        ["memory is imported by another user in another PID namespace"],
        "in namespaces of one machine, not in containers",
    ),
    (
        "the daemon killed while a trainer holds the memory and trains",
        ["a trainer reads and trains on after its daemon was killed, and the memory goes with it"],
        "",
    ),
    (
        "memory held by a descriptor alone, in a process that never opened the driver",
        [
            "memory outlives its maker while a process that opened no driver holds the descriptor",
            "a descriptor alone keeps memory while nobody has the GPU open (either answer passes)",
        ],
        "in the persistence mode that is set",
    ),
    (
        "time to import and map 1, 10 and 80 GB; granularity",
        ["importing and mapping do not take longer for more bytes"],
        "",
    ),
    (
        "100 optimizer steps on imported memory, bit for bit; a CUDA graph",
        [
            "100 optimizer steps in imported memory equal those in PyTorch's own, bit for bit",
            "a CUDA graph over imported memory is captured, replayed, and right",
        ],
        "",
    ),
    (
        "a write to memory that was imported read-only",
        ["a write to shared memory ends the writer alone; readers, daemon and bytes stay whole"],
        "without MPS",
    ),
    (
        "FSDP2 keeps the addresses after its first forward",
        ["FSDP2 trains in the daemon's memory on one rank, as it does in its own"],
        "with the PyTorch that is here",
    ),
    ("NCCL registers imported memory", [], "it takes two GPUs: one rank alone registers nothing"),
    (
        "NCCL is aborted while a daemon stands still",
        ["a daemon that stands still during a transfer by NCCL is named, and the next load works"],
        "two daemons on one GPU",
    ),
    (
        "the daemon's own memory on the GPU while it loads, and after",
        ["an idle daemon's own memory on the GPU, before a load, in it and after it"],
        "without NCCL",
    ),
    (
        "legacy cudaIpc handles",
        ["clients open a shard by its legacy handle, alike and at once, and its memory comes back"],
        "what is undefined (memory freed early, its maker killed) is not provoked",
    ),
    ("UUIDs of GPUs and slices under Kubernetes", [], "no cluster, and MIG is left as it is"),
)


def facts(found: dict) -> List[str]:
    """Lines about the machine."""
    driver, smi, torch = found["driver"], found["nvidia-smi"], found["torch"]
    lines = [f"{g['name']}, {g['uuid']}, {g['bytes'] / 2**30:.0f} GiB" for g in driver["gpus"]]
    if "cuda" in driver:
        lines.append(
            f"driver {smi.get('driver_version', '?')}, CUDA {driver['cuda']}"
            f", persistence mode {smi.get('persistence_mode', '?')}"
        )
    lines.append(
        f"{found['processor']}, {found['cores']} cores, {found['memory bytes'] / 2**30:.0f} GiB, "
        f"Linux {found['kernel']}"
    )
    modules = ", ".join(
        f"{name} {version}" for name, version in found["modules"].items() if version
    )
    lines.append(f"Python {found['python']}, {modules}")
    if torch:
        lines.append(
            f"PyTorch is built for CUDA {torch['built for CUDA']}, NCCL {torch['NCCL']}, and sees "
            f"{'a GPU' if torch['sees a GPU'] else 'no GPU'}"
        )
    nccl = found["nccl"]
    lines.append(f"NCCL for daemons: {nccl['version'] or 'none'}")
    return lines


def number(value: float) -> str:
    return f"{value:.2f}" if 0.1 <= abs(value) < 1000 else f"{value:.4g}"


def figure_row(figure: dict) -> List[str]:
    if figure.get("value") is None:
        return [figure["name"], "not shown", "", figure.get("reason", "")]
    verdict = {True: "met", False: "**missed**", None: ""}[figure["met"]]
    target = f"{figure['target']} {figure['unit']}: {verdict}" if figure["target"] else ""
    return [figure["name"], f"{number(figure['value'])} {figure['unit']}", target, figure["beside"]]


def twelve_rows(checks: List[dict]) -> List[List[str]]:
    known = {check["name"]: check for check in checks}
    rows = []
    for at, (what, names, note) in enumerate(TWELVE, 1):
        results = {known[name]["result"] if name in known else NOT_SHOWN for name in names}
        result = NOT_SHOWN
        if FAILED in results:
            result = FAILED
        elif PASSED in results:
            result = PASSED if results == {PASSED} else "passed in part"
        reasons = [known[name]["reason"].split("\n")[0][:200] for name in names if name in known]
        rows.append([str(at), what, result, "; ".join(filter(None, [*reasons, note]))])
    return rows


def table(head: List[str], rows: List[List[str]]) -> str:
    def line(cells):
        return (
            "| " + " | ".join(str(c).replace("|", "\\|").replace("\n", " ") for c in cells) + " |"
        )

    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)])


def counted(checks: List[dict]) -> str:
    counts = [(sum(c["result"] == r for c in checks), r) for r in (PASSED, FAILED, NOT_SHOWN)]
    return ", ".join(f"{count} {result}" for count, result in counts)


def page(outcome: dict) -> str:
    checks, figures = outcome["checks"], outcome["figures"]
    options = " ".join(["--quick"] * outcome["quick"] + [f"--only {w}" for w in outcome["only"]])
    rows = [
        [
            c["result"] if c["result"] != FAILED else "**failed**",
            c["name"],
            f"{c['seconds']:.1f} s",
            c["reason"] or _facts(c["facts"]),
        ]
        for c in checks
    ]
    return (
        "\n\n".join(
            [
                "# ckptd on a GPU",
                "\n".join(f"- {line}" for line in facts(outcome["machine"])),
                f"{outcome['date']}, commit {outcome['commit']}, `tests/gpu/run {options}`".rstrip(
                    "` "
                )
                + "`, "
                f"{outcome['seconds']:.0f} s: {counted(checks)}.",
                "## Figures",
                "Ratios are taken within one run; targets were set before.",
                table(["figure", "value", "target", "beside"], [figure_row(f) for f in figures]),
                "## Checks",
                table(["result", "check", "took", "facts"], rows),
                "## What only hardware can show",
                table(["", "what", "result", "remark"], twelve_rows(checks)),
            ]
        )
        + "\n"
    )


def _facts(found: dict) -> str:
    parts = []
    for key, value in found.items():
        text = (
            json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)
        )
        parts.append(f"{key}: {number(value) if isinstance(value, float) else text[:300]}")
    return "; ".join(parts)


def print_figures(figures: List[dict]) -> None:
    if not figures:
        return
    print("\nfigures:")
    for figure in figures:
        name, value, target, beside = figure_row(figure)
        print(f"  {name:66} {value:>26}   {target.replace('*', ''):28} {beside}".rstrip())


def conclude(
    outcome: dict, folder: pathlib.Path, json_path: Optional[pathlib.Path], logs: str = ""
) -> None:
    """Prints the summary; writes the reports, but of a fake run only what was asked for."""
    failed = any(check["result"] == FAILED for check in outcome["checks"])
    if not outcome["fake"]:
        print_figures(outcome["figures"])
    print(f"\n{counted(outcome['checks'])}, {outcome['seconds']:.0f} s")
    outcome = {**outcome, "twelve": twelve_rows(outcome["checks"])}
    text = json.dumps(outcome, indent=1) + "\n"
    if not outcome["fake"]:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "gpu-report.md").write_text(page(outcome))
        if failed:
            (folder / "gpu-report.log").write_text(logs)
        json_path = json_path or folder / "gpu-report.json"
        print(f"written: {folder / 'gpu-report.md'} and {json_path}")
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(text)
