"""What `ckptctl plan --hardware` predicts, beside the loads that reports of GPUs measured."""

import json
import os
import pathlib
import statistics
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/gpu"))
import files  # noqa: E402

CKPTCTL = pathlib.Path(os.environ.get("CKPTD_BUILD_DIR", ROOT / "build")) / "bin/ckptctl"
REPORTS = sorted((ROOT / "deploy/reports").glob("*/gpu-report.json"))
NEAR = 1.25
pytestmark = pytest.mark.skipif(not CKPTCTL.exists(), reason="ckptctl is not built")


def facts_of(report, beginning):
    (found,) = [c["facts"] for c in json.loads(report.read_text())["checks"] if c["name"].startswith(beginning)]
    return found


def predicted(folder, nbytes, *options):
    source = files.sparse(folder / "m.safetensors", nbytes, 200)
    done = subprocess.run([CKPTCTL, "--output", "json", "plan", source, "--layout", "replicate:1", *map(str, options)],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["prediction"]


def assert_near(prediction, measured):
    ratio = measured / prediction["seconds"]
    assert 1 / NEAR < ratio < NEAR, f"{measured:.3f} s were measured, {prediction} was said"


def best(rounds):
    return min(statistics.median(each[n] for each in rounds[1:]) for n in rounds[0])


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.parent.name)
def test_a_cached_load_takes_what_the_known_machine_is_said_to_take(tmp_path, report):
    found = facts_of(report, "a warm load")
    prediction = predicted(tmp_path, found["bytes"], "--hardware", "h200x1", "--cached")
    assert_near(prediction, sum(found["stages ms"].values()) / 1e3)


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.parent.name)
def test_a_load_from_storage_takes_what_its_measured_rates_say(tmp_path, report):
    found, warm = facts_of(report, "a cold load"), facts_of(report, "a warm load")
    gigabytes = found["bytes"] / 1e9
    link = warm["bytes"] / 1e9 / best(warm["threads"]["link"])
    described = {"storage": gigabytes / best(found["seconds"]["floor"]), "memory": 80, "link": link, "links": link}
    machine = tmp_path / "machine.json"
    machine.write_text(json.dumps({"gpus_per_host": 1, **described}))
    prediction = predicted(tmp_path, found["bytes"], "--hardware", machine)
    assert "storage" in json.dumps(prediction), prediction
    assert_near(prediction, statistics.median(found["seconds"]["ckptd"][1:]))


def test_there_is_a_report():
    assert REPORTS
