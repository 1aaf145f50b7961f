"""Renders deploy/kubernetes, and takes what it renders apart."""

import base64
import copy
import functools
import pathlib
import subprocess
import sys

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/kubernetes"
CHART = FOLDER / "chart"
# From the environment that the tests run in: deploy/setup --tests. It is not built for every machine.
KUBECTL = pathlib.Path(sys.executable).with_name("kubectl")
NO_KUBECTL = f"there is no {KUBECTL}: kustomizations are not rendered, only the chart, which makes the same objects"
PATIENCE = 120
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first is libyaml, ten times as fast
# Before 1.34, DRA was an API of other versions.
VERSIONS = ("1.29", "1.34", "1.37")
VERSIONS_WITH_DRA = ("1.34", "1.35", "1.37")
# API groups that Kubernetes' own schemas lack.
CUSTOM = ("jobset.x-k8s.io/", "leaderworkerset.x-k8s.io/", "trainer.kubeflow.org/", "kubeflow.org/")


def overlays():
    return sorted(path.parent for path in FOLDER.glob("overlays/*/kustomization.yaml"))


def examples():
    return sorted(path.parent for path in FOLDER.glob("examples/*/kustomization.yaml"))


def values_files():
    return sorted(CHART.glob("ci/*.yaml"))


def values_of(name):
    """The values file of the chart that makes the objects of an overlay or example."""
    return CHART / f"ci/{name}-values.yaml"


def documents(text):
    return [document for document in yaml.load_all(text, LOADER) if document]


@functools.cache
def kustomize(folder):
    """The objects. A test that changes one copies it first."""
    if not KUBECTL.exists():
        pytest.skip(NO_KUBECTL)
    done = subprocess.run([KUBECTL, "kustomize", folder], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    # Deprecated fields are named on stderr.
    assert done.stderr == "", done.stderr
    return documents(done.stdout)


def render(values):
    """The text of what the chart renders. Raises helm_python.HelmError."""
    import helm_python
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        files = chart.render(values, name="tests", namespace="training")
    # NOTES.txt is for people.
    texts = [text for name, text in sorted(files.items()) if name.endswith(".yaml") and text.strip()]
    return "\n---\n".join(texts)


@functools.cache
def chart(path):
    """The same of the chart, with the values of a file."""
    return documents(render(yaml.safe_load(path.read_text(encoding="utf-8")) or {}))


def renderings():
    """Name -> function that gives the objects, of everything that can be rendered."""
    found = {f"kustomize-{folder.parent.name}-{folder.name}": functools.partial(kustomize, folder)
             for folder in overlays() + examples() if KUBECTL.exists()}
    found |= {f"chart-{path.stem.removesuffix('-values')}": functools.partial(chart, path) for path in values_files()}
    return found


def distinct_renderings():
    """The same without those of the chart that test_rendering.py compares with a kustomization."""
    compared = {f"chart-{folder.name}" for folder in overlays() + examples() if KUBECTL.exists()}
    return {name: objects for name, objects in renderings().items() if name not in compared}


def is_custom(document):
    return document["apiVersion"].startswith(CUSTOM)


def pod_templates(document):
    """All pod templates in an object: mappings with a spec that has containers."""
    if isinstance(document, list):
        for item in document:
            yield from pod_templates(item)
    elif isinstance(document, dict):
        if isinstance(document.get("spec"), dict) and "containers" in document["spec"]:
            yield document
        else:
            for value in document.values():
                yield from pod_templates(value)


def all_pod_templates(objects):
    return [template for document in objects for template in pod_templates(document)]


def as_pod(template, name):
    """A pod of a template, as its controller would make it."""
    template = copy.deepcopy(template)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **template.get("metadata", {})},
            "spec": template["spec"]}


def containers(template):
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def daemon_container(template):
    """The container that runs `ckptd launch`."""
    found = [one for one in containers(template) if one["command"][0] == "ckptd"]
    assert len(found) == 1
    return found[0]


def environment(container):
    """Name -> value, or the field that it is taken from."""
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container.get("env", [])}


def versions_for(objects):
    uses_claims = any("resourceClaims" in template["spec"] for template in all_pod_templates(objects))
    return VERSIONS_WITH_DRA if uses_claims else VERSIONS


def comparable(value):
    """Order means nothing in lists of named items, and in a mapping."""
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(item, dict) and "name" in item for item in value):
            return {item["name"]: comparable(item) for item in value}
        return [comparable(item) for item in value]
    return value


def decoded(document):
    """Kustomize breaks long values of a Secret into lines, which means nothing."""
    if document["kind"] != "Secret":
        return document
    return {**document, "data": {key: base64.b64decode(value) for key, value in document["data"].items()}}


def by_name(objects):
    found = {(one["apiVersion"], one["kind"], one["metadata"]["name"]): comparable(decoded(one)) for one in objects}
    assert len(found) == len(objects), "two objects have one name"
    return found
