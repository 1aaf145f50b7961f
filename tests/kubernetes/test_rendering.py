"""Overlays, examples and the chart render, and say the same.

`test_rendering.py --refresh` writes the examples of job frameworks anew from the chart.
"""

import shutil
import sys

import pytest
import yaml

import manifests

HEAD = "# Rendered from chart/ci/{name}-values.yaml; a test compares them.\n"


def example_text(name):
    documents = manifests.chart(manifests.values_of(name))
    return HEAD.format(name=name) + yaml.safe_dump_all(documents, sort_keys=False, width=120)


@pytest.mark.parametrize("folder", manifests.overlays() + manifests.examples(), ids=lambda folder: folder.name)
def test_chart_and_kustomization_render_the_same_objects(folder):
    from_chart = manifests.by_name(manifests.chart(manifests.values_of(folder.name)))
    from_kustomization = manifests.by_name(manifests.kustomize(folder))
    assert from_kustomization == from_chart


@pytest.mark.parametrize("folder", manifests.examples(), ids=lambda folder: folder.name)
def test_examples_of_frameworks_are_as_the_chart_renders_them(folder):
    assert (folder / "manifests.yaml").read_text(encoding="utf-8") == example_text(folder.name), (
        "refresh them: tests/kubernetes/test_rendering.py --refresh")


def test_every_values_file_but_the_one_for_rare_values_has_a_kustomization():
    names = {folder.name for folder in manifests.overlays() + manifests.examples()}
    assert {path.stem.removesuffix("-values") for path in manifests.values_files()} - names == {"all"}


def test_every_component_is_used_by_an_overlay_or_tried_here():
    used = "".join((folder / "kustomization.yaml").read_text(encoding="utf-8") for folder in manifests.overlays())
    unused = {path.parent.name for path in manifests.FOLDER.glob("components/*/kustomization.yaml")
              if f"components/{path.parent.name}\n" not in used}
    assert unused == {"preload", "group-key-file", "metrics", "slabs", "wait"}


def write_overlay(folder, base, *components):
    folder.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
                           "resources": [base], "components": list(components)})
    (folder / "kustomization.yaml").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def copied(tmp_path):
    """A copy of the bases and components, to which a test may add."""
    for name in ("base", "components"):
        shutil.copytree(manifests.FOLDER / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("form", ["sidecar", "supervisor"])
def test_the_component_preload_names_the_checkpoint_to_the_daemons(form, copied):
    overlay = write_overlay(copied / "overlay", f"../base/{form}", "../components/preload")
    template, = manifests.all_pod_templates(manifests.kustomize(overlay))
    said = manifests.environment(manifests.daemon_container(template))
    assert said["CKPTD_LOAD"] == "/models/my-model" and said["CKPTD_DTYPE"] == "BF16"


@pytest.mark.parametrize("form, nodes", [("sidecar", 1), ("supervisor", 1), ("sidecar", 4)])
def test_the_component_metrics_opens_a_port_for_prometheus(form, nodes, copied):
    several = [f"../components/{name}" for name in ("several-pods", "group-key") if nodes > 1]
    overlay = write_overlay(copied / "overlay", f"../base/{form}", *several, "../components/metrics")
    from_chart = manifests.documents(manifests.render({"form": form, "nodes": nodes, "daemon": {"metricsPort": 9464}}))
    assert manifests.by_name(manifests.kustomize(overlay)) == manifests.by_name(from_chart)
    template, = manifests.all_pod_templates(from_chart)
    daemon = manifests.daemon_container(template)
    assert manifests.environment(daemon)["CKPTD_METRICS"] == "[::]:9464"
    assert {"name": "metrics", "containerPort": 9464} in daemon["ports"]
    assert template["metadata"]["annotations"] == {"prometheus.io/scrape": "true", "prometheus.io/port": "9464"}
    policy, = [one for one in from_chart if one["kind"] == "NetworkPolicy"]
    assert {"ports": [{"port": 9464}]} in policy["spec"]["ingress"]


def test_a_pod_has_no_port_for_metrics_by_default():
    text = manifests.render({})
    assert "9464" not in text and "prometheus.io" not in text and "CKPTD_METRICS" not in text


@pytest.mark.parametrize("form", ["sidecar", "supervisor"])
def test_the_component_slabs_makes_shards_files_of_a_volume_in_memory(form, copied):
    overlay = write_overlay(copied / "overlay", f"../base/{form}", "../components/slabs")
    from_chart = manifests.documents(manifests.render({"form": form, "daemon": {"slabs": "128Gi"}}))
    assert manifests.by_name(manifests.kustomize(overlay)) == manifests.by_name(from_chart)
    template, = manifests.all_pod_templates(from_chart)
    daemon = manifests.daemon_container(template)
    folder = manifests.environment(daemon)["CKPTD_SLAB_DIR"]
    mount, = [one for one in daemon["volumeMounts"] if one["mountPath"] == folder]
    volume, = [one for one in template["spec"]["volumes"] if one["name"] == mount["name"]]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "128Gi"}


def test_the_component_wait_has_an_init_container_wait_behind_the_sidecar(copied):
    overlay = write_overlay(copied / "overlay", "../base/sidecar", "../components/wait")
    from_chart = manifests.documents(manifests.render({"trainer": {"waitFor": "group"}}))
    assert manifests.by_name(manifests.kustomize(overlay)) == manifests.by_name(from_chart)
    # `comparable` takes the order out.
    template, = manifests.all_pod_templates(manifests.kustomize(overlay))
    assert [one["name"] for one in template["spec"]["initContainers"]] == ["ckptd", "wait"]


def test_the_key_in_a_file_becomes_the_secret_that_the_daemons_read(copied):
    key = "0123456789abcdef" * 4
    (copied / "components/group-key-file/group-key").write_text(key, encoding="utf-8")
    overlay = write_overlay(copied / "overlay", "../base/sidecar", "../components/several-pods",
                            "../components/group-key", "../components/group-key-file")
    from_chart = manifests.documents(manifests.render({"nodes": 4, "peerAuth": {"key": key}}))
    assert manifests.by_name(manifests.kustomize(overlay)) == manifests.by_name(from_chart)


# --- the chart ---------------------------------------------------------------

@pytest.mark.parametrize("path", manifests.values_files(), ids=lambda path: path.stem)
def test_helm_finds_nothing_to_complain_about(path):
    import helm_python
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    report = helm_python.lint(manifests.CHART, values, strict=True)
    # That a chart could have an icon is information (1).
    assert [message for message in report["messages"] if message["severity"] > 1] == []
    assert report["errors"] == []


@pytest.mark.parametrize("values, why", [
    ({"form": "node", "nodes": 2}, "form node"),
    ({"form": "node", "workload": "JobSet"}, "form node"),
    ({"workload": "PyTorchJob", "nodes": 2}, "form must be supervisor"),
    ({"workload": "PyTorchJob", "form": "supervisor"}, "at least 2"),
    ({"daemon": {"memory": "cuda"}}, "the daemons need GPUs"),
    ({"daemon": {"memory": "cuda"}, "gpus": {"access": "device-plugin"}}, "only by a claim"),
    ({"daemon": {"memory": "cuda", "slabs": "1Gi"}, "gpus": {"access": "dra"}}, "daemon.slabs"),
    ({"daemon": {"slabs": "much"}}, "slabs"),
    ({"load": {"readyWhen": "loaded"}}, "load.source"),
    ({"form": "supervisor", "trainer": {"waitFor": "group"}}, "trainer.waitFor"),
    ({"trainer": {"waitFor": "ready"}}, "waitFor"),
    ({"nodes": 0}, "nodes"),
    ({"frm": "sidecar"}, "frm"),
    ({"daemon": {"env": {"PATH": "/x"}}}, "PATH"),
    ({"peerAuth": {"key": "short"}}, "key"),
    ({"load": {"dtype": "BF17"}}, "dtype"),
])
def test_values_that_do_not_fit_are_refused_with_a_reason(values, why):
    import helm_python
    with pytest.raises(helm_python.HelmError, match=why):
        manifests.render(values)


def test_every_default_of_the_chart_is_in_its_schema():
    import json
    schema = json.loads((manifests.CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((manifests.CHART / "values.yaml").read_text(encoding="utf-8"))
    assert set(schema["properties"]) - {"global"} == set(values)
    for key, value in values.items():
        if isinstance(value, dict) and "properties" in schema["properties"][key]:
            assert set(schema["properties"][key]["properties"]) == set(value), key


def test_chart_and_manifests_name_the_version_of_this_repository():
    import re
    cmake = (manifests.ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    version, = re.findall(r"project\(ckptd VERSION ([\d.]+)", cmake)
    chart = yaml.safe_load((manifests.CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == version
    images = {container["image"] for objects in manifests.renderings().values()
              for template in manifests.all_pod_templates(objects()) for container in manifests.containers(template)}
    assert images == {f"ckptd:{version}-host", f"ckptd:{version}-cuda", "trainer:1.0"}


if __name__ == "__main__":
    if sys.argv[1:] != ["--refresh"]:
        sys.exit("usage: test_rendering.py --refresh (pytest runs the tests)")
    for one in manifests.examples():
        (one / "manifests.yaml").write_text(example_text(one.name), encoding="utf-8")
        print(f"wrote {one.relative_to(manifests.ROOT)}/manifests.yaml")
