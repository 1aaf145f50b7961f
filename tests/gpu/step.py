"""One step in a process of its own, which steps.py ends: python step.py MODULE SPEC.json."""

import importlib
import json
import pathlib
import sys

import gpu_record as records
from bench import Bench


def main(module: str, spec_path: str) -> None:
    spec = json.loads(pathlib.Path(spec_path).read_text())
    record = records.Record(spec["results"], spec["has"])
    checks = importlib.import_module(module).checks.all
    bench = Bench(spec, record)
    for check in checks:
        if not spec["only"] or any(word in check.name for word in spec["only"]):
            record.run(check, bench)
            bench.clean_up()
    broken = bench.broken_rules()
    assert not broken, broken


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
