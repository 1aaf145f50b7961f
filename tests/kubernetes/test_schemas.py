"""All that is rendered is valid: by Kubernetes' schemas of three versions, and by those of the job frameworks."""

import copy

import jsonschema
import kubernetes_validate
import pytest

import manifests


def validate(document, version):
    kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("name", manifests.distinct_renderings())
def test_objects_are_valid_in_three_versions_of_kubernetes(name):
    objects = manifests.renderings()[name]()
    for version in manifests.versions_for(objects):
        for document in objects:
            if not manifests.is_custom(document):
                validate(document, version)
                continue
            for number, template in enumerate(manifests.pod_templates(document)):
                validate(manifests.as_pod(template, f"pod-{number}"), version)


@pytest.mark.parametrize("name", ["chart-pod-8-gpus-supervisor", "chart-job-4-nodes-supervisor", "chart-pytorchjob-4-nodes"])
def test_the_supervisor_form_is_valid_before_sidecars_were(name):
    for document in manifests.renderings()[name]():
        for template in manifests.pod_templates(document):
            assert "initContainers" not in template["spec"]
            validate(manifests.as_pod(template, "pod"), "1.27")
        if not manifests.is_custom(document):
            validate(document, "1.27")


def test_a_misspelt_field_is_found():
    document, = [one for one in manifests.chart(manifests.values_of("pod")) if one["kind"] == "Job"]
    pod = manifests.as_pod(document["spec"]["template"], "pod")
    pod["spec"]["initContainers"][0]["startupProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(pod, "1.34")


# --- job frameworks ------------------------------------------------------------

# The fields of these two that the manifests use. PyPI has no models of the one, and those of the other take
# anything. Pods are checked above.
NAMED = {"apiVersion": {}, "kind": {}, "metadata": {"type": "object"}}
COUNT = {"type": "integer", "minimum": 1}


def fields(properties, **more):
    return {"type": "object", "properties": properties, "additionalProperties": False,
            "required": sorted(properties), **more}


REPLICAS = fields({"replicas": COUNT, "restartPolicy": {"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
                   "template": {"type": "object"}})
SHAPES = {
    "LeaderWorkerSet": fields({**NAMED, "spec": fields({
        "replicas": COUNT,
        "leaderWorkerTemplate": fields({
            "size": COUNT,
            "restartPolicy": {"enum": ["RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]},
            "workerTemplate": {"type": "object"}})})}),
    "PyTorchJob": fields({**NAMED, "spec": fields({
        "nprocPerNode": {"type": "string"},
        "runPolicy": fields({"backoffLimit": COUNT, "cleanPodPolicy": {"enum": ["All", "Running", "None"]}}),
        "pytorchReplicaSpecs": fields({"Master": REPLICAS, "Worker": REPLICAS})})}),
}


def custom_objects():
    return [(name, document) for name, objects in manifests.distinct_renderings().items() for document in objects()
            if manifests.is_custom(document)]


@pytest.mark.parametrize("name, document", custom_objects(), ids=lambda value: value if isinstance(value, str) else value["kind"])
def test_objects_of_job_frameworks_are_valid(name, document):
    if document["kind"] in SHAPES:
        jsonschema.validate(document, SHAPES[document["kind"]])
        return
    from kubeflow_trainer_api import models
    model = {"TrainJob": models.TrainerV1alpha1TrainJob, "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
             "JobSet": models.JobsetV1alpha2JobSet}[document["kind"]]
    document = copy.deepcopy(document)
    for template in manifests.pod_templates(document):
        template["spec"] = {"containers": [{"name": "node"}]}
    # A model drops what it does not know.
    assert model.from_dict(document).to_dict() == document


def test_each_job_framework_has_an_example():
    assert {document["kind"] for _, document in custom_objects()} == {
        "JobSet", "LeaderWorkerSet", "TrainJob", "TrainingRuntime", "PyTorchJob"}
