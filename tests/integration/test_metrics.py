"""Metrics of a group under launch: a real Prometheus scrapes them and answers what the dashboard and the alerts ask."""

import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import urllib.parse
import urllib.request

import ckptd
import pytest
import torch
import yaml
from group import PATIENCE, ROOT, Group, save_in_files, wait_until
from ports import free_port

FOLDER = ROOT / "deploy/observability"
NO_SAMPLES = {"ckptd_load_slow_file_bytes_per_second"}  # while no file stands out


def tool(name):
    """From the environment of the tests (deploy/setup --tests), or the system's."""
    beside = pathlib.Path(sys.executable).with_name(name)
    found = beside if beside.exists() else shutil.which(name)
    if not found:
        pytest.skip(f"there is no {name}: deploy/setup --tests unpacks it")
    return found


def scrape(port, accept="text/plain"):
    with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": accept}),
                                timeout=PATIENCE) as answer:
        return answer.read().decode()


def value(text, name, **labels):
    """The sum of the samples of that name that have these labels."""
    found = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(rf"{name}[{{ ]", line)
             and all(f'{key}="{wanted}"' in line for key, wanted in labels.items())]
    assert found, (name, labels)
    return sum(found)


SIZE = 3 * 4096 * 4


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A group that has loaded once, with a client that is attached: (group, port, checkpoint)."""
    port, folder = free_port(), tmp_path_factory.mktemp("g")
    source = save_in_files(folder / "secret", {f"t{i}": torch.ones(4096) for i in range(3)}, 2)
    with Group(folder, 2, "--metrics", port) as group, ckptd.connect(group.address(1)) as client:
        checkpoint = client.load(source, layout="replicate:2")
        with client.acquire(checkpoint):
            yield group, port, checkpoint


def test_a_scrape_has_both_daemons_and_what_they_did(two):
    _, port, checkpoint = two
    text = scrape(port)
    assert value(text, "ckptd_leases", rank=1, mode="shared") == value(text, "ckptd_attach_seconds_count", rank=1) == 1
    assert [value(text, "ckptd_daemon_up", rank=rank) for rank in range(2)] == [1, 1]
    assert value(text, "ckptd_loads_total", rank=0, outcome="loaded") == 1
    assert value(text, "ckptd_load_bytes_total", rank=0) == 2 * SIZE
    assert value(text, "ckptd_load_read_bytes_total", rank=0) == SIZE
    assert value(text, "ckptd_load_sent_bytes_total", rank=0) == SIZE
    assert value(text, "ckptd_group_members") == value(text, "ckptd_world_size", rank=1) == 2
    assert value(text, "ckptd_memory_used_bytes") >= 2 * SIZE
    assert value(text, "ckptd_checkpoints", rank=0, state="ACTIVE") == 1
    assert checkpoint.name not in text and "secret" not in text


def test_promtool_finds_nothing_to_complain_about(two):
    _, port, _ = two
    done = subprocess.run([tool("promtool"), "check", "metrics"], input=scrape(port), capture_output=True, text=True,
                          timeout=PATIENCE)
    assert done.returncode == 0 and not done.stdout + done.stderr


def test_every_alert_fires_on_bad_samples_and_on_good_ones_does_not():
    done = subprocess.run([tool("promtool"), "test", "rules", ROOT / "tests/integration/alerts_test.yml"],
                          capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def prometheus(two, tmp_path_factory):
    """Asks a Prometheus that scrapes that group."""
    _, port, _ = two
    folder, own = tmp_path_factory.mktemp("prometheus"), free_port()
    (folder / "config.yml").write_text(yaml.safe_dump({
        "global": {"scrape_interval": "1s"}, "rule_files": [str(FOLDER / "alerts.yml")],
        "scrape_configs": [{"job_name": "ckptd", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}]}))
    arguments = [f"--config.file={folder}/config.yml", f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address=127.0.0.1:{own}", "--log.level=error"]
    process = subprocess.Popen([tool("prometheus"), *arguments])

    def ask(path, **parameters):
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"http://127.0.0.1:{own}/api/v1/{path}?{query}", timeout=PATIENCE) as answer:
            found = json.load(answer)
        assert found["status"] == "success"
        return found["data"]

    def scraped():
        try:
            # A rate takes two samples.
            return ask("query", query="min(count_over_time(ckptd_ready[1m])) >= 2")["result"]
        except (OSError, http.client.HTTPException):
            return None

    try:
        wait_until(scraped, "Prometheus to have scraped the group twice")
        yield ask
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE)


def panels():
    found = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def test_prometheus_answers_the_query_of_every_panel(prometheus):
    for panel in panels():
        for target in panel["targets"]:
            expression = target["expr"].replace("$group", ".*")
            if any(name in expression for name in NO_SAMPLES):
                prometheus("query", query=expression)
                continue
            # A scrape that a busy machine does not answer in a second leaves none for a moment.
            wait_until(lambda: prometheus("query", query=expression)["result"], f"an answer for {panel['title']}")


def test_prometheus_takes_the_rules_and_no_alert_fires_on_a_group_that_is_well(prometheus):
    rules = prometheus("rules")["groups"][0]["rules"]
    assert len(rules) == len(yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"])
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}, rules
    firing = {alert["labels"]["alertname"] for alert in prometheus("alerts")["alerts"] if alert["state"] == "firing"}
    assert not firing, firing


def test_a_daemon_that_stands_still_is_not_up(two):
    group, port, _ = two
    process = group.pid(1)
    os.kill(process, signal.SIGSTOP)
    try:
        text = scrape(port, "application/openmetrics-text")
        assert [value(text, "ckptd_daemon_up", rank=rank) for rank in range(2)] == [1, 0]
        assert text.endswith("# EOF\n") and "# UNIT ckptd_load_seconds seconds\n" in text
    finally:
        os.kill(process, signal.SIGCONT)
