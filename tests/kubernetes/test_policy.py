"""checkov finds nothing in the manifests but what policy_excuses.toml excuses, with a reason.

Part of `tests/run long`: checkov brings a hundred packages, so it has an environment of its own. CKPTD_CHECKOV names it.
"""

import json
import os
import pathlib
import subprocess
import tomllib

import pytest
import yaml

import manifests

CHECKOV = os.environ.get("CKPTD_CHECKOV")
pytestmark = pytest.mark.skipif(not CHECKOV, reason="CKPTD_CHECKOV names no checkov; tests/run long does")
EXCUSES = pathlib.Path(__file__).with_name("policy_excuses.toml")


def excuses():
    return tomllib.loads(EXCUSES.read_text(encoding="utf-8"))


def findings(folder):
    """(check, name of the check, kind, file) of all that fails, and how many checks have passed."""
    done = subprocess.run([CHECKOV, "--directory", folder, "--framework", "kubernetes", "--quiet", "--compact",
                           "--skip-download", "--output", "json"], capture_output=True, text=True, timeout=600)
    assert done.stdout.startswith("{"), done.stderr[-2000:]
    report = json.loads(done.stdout)
    assert report["summary"]["parsing_errors"] == 0
    failed = [(one["check_id"], one["check_name"], one["resource"].split(".")[0], one["file_path"].strip("/"))
              for one in report["results"]["failed_checks"]]
    return failed, report["summary"]["passed"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("manifests")
    for name, objects in manifests.distinct_renderings().items():
        plain = [one for one in objects() if not manifests.is_custom(one)]
        # checkov does not look into kinds that it does not know.
        pods = [manifests.as_pod(template, f"pod-{number}") for number, template in enumerate(
            template for one in objects() if manifests.is_custom(one) for template in manifests.pod_templates(one))]
        (folder / f"{name}.yaml").write_text(yaml.safe_dump_all(plain + pods), encoding="utf-8")
    return findings(folder)


def test_each_finding_of_checkov_is_excused(found):
    failed, passed = found
    assert passed > 500
    excused = excuses()
    assert [one for one in failed if one[2] not in excused.get(one[0], {"kinds": []})["kinds"]] == []


def test_every_excuse_is_needed_and_has_a_reason(found):
    needed = {(check, name, kind) for check, name, kind, _ in found[0]}
    written = {(check, excuse["name"], kind) for check, excuse in excuses().items() for kind in excuse["kinds"]}
    assert written == needed
    assert all(len(excuse["reason"].split()) > 8 for excuse in excuses().values())


def test_a_privileged_container_is_found(tmp_path):
    objects = manifests.chart(manifests.values_of("pod"))
    job, = [one for one in objects if one["kind"] == "Job"]
    job = yaml.safe_load(yaml.safe_dump(job))
    job["spec"]["template"]["spec"]["initContainers"][0]["securityContext"]["privileged"] = True
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    assert "CKV_K8S_16" in {check for check, *_ in findings(tmp_path)[0]}
