"""deploy/observability says what every family of metrics means, and what to do for every alert."""

import pathlib
import re

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/observability"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")


def families():
    """Name as Prometheus stores it -> type, of all that a daemon may serve."""
    text = (ROOT / "server/metrics/families.h").read_text(encoding="utf-8")
    found = re.findall(r'\{\s*"(\w+)", MetricType::k(\w+), "(\w*)",\s*"', text)
    assert len(found) == text.count("MetricSpec k")
    for name, kind, unit in found:
        assert name.endswith(f"_{unit}") or not unit, name
    return {name + "_total" * (kind == "Counter"): kind.lower() for name, kind, _ in found}


def test_the_page_explains_every_family_and_no_other():
    assert dict(re.findall(r"^\| `(ckptd_\w+)` \| (\w+) \|", PAGE, flags=re.M)) == families()


def test_the_page_says_what_to_do_for_every_alert():
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    tried = yaml.safe_load((ROOT / "tests/integration/alerts_test.yml").read_text(encoding="utf-8"))["tests"]
    names = {rule["alert"] for rule in rules}
    assert set(re.findall(r"^\| `(Ckptd\w+)` \| .", PAGE, flags=re.M)) == names
    for fires in (True, False):
        assert {one["alertname"] for test in tried for one in test["alert_rule_test"]
                if bool(one["exp_alerts"]) == fires} == names, fires


def test_dashboard_and_alerts_ask_for_families_that_exist():
    known = families()
    series = set(known) | {f"{name}_{end}" for name, kind in known.items() if kind == "histogram"
                           for end in ("bucket", "sum", "count")}
    for file in ("alerts.yml", "dashboard.json"):
        asked = set(re.findall(r"\bckptd_\w+", (FOLDER / file).read_text(encoding="utf-8")))
        assert asked and asked <= series, file
