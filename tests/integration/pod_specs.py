"""Pods of Kubernetes' own words: the template of a rendered Job, for pods.py to play.

Each field of a specification is either played or named in ONLY_IN_A_CLUSTER. Another one is an error here, so that a
test never plays less than it says.
"""

import dataclasses
import re

from pods import Container, EmptyDir, HostPath, Pod, Probe, Secret, VolumeMount

# What the scheduler, the API server, drivers and the network of a cluster do, and a node's control groups.
ONLY_IN_A_CLUSTER = {
    "pod": {"automountServiceAccountToken", "enableServiceLinks", "resourceClaims", "serviceAccountName"},
    "security": {"fsGroupChangePolicy"},
    "container": {"imagePullPolicy", "ports", "resources"},
    "claim": {"readOnly"},  # the mounts say it, too
    "probe": {"timeoutSeconds"},  # on nodes that do little else
}
INDEX = "batch.kubernetes.io/job-completion-index"
UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


@dataclasses.dataclass(frozen=True)
class Cluster:
    """What a pod's specification names."""

    images: dict  # name -> Image
    claims: dict  # of persistent volumes: name -> folder
    secrets: dict = dataclasses.field(default_factory=dict)  # name -> {key: bytes}


def pod_of_job(folder, job, index, cluster, **named):
    """The pod that the controller of an indexed Job makes for an index. `named`: more of Pod's arguments."""
    assert job["kind"] == "Job" and job["spec"]["completionMode"] == "Indexed"
    template, name = job["spec"]["template"], job["metadata"]["name"]
    metadata = {"annotations": {INDEX: str(index)}, "uid": f"00000000-0000-0000-0000-{index:012}",
                "labels": template["metadata"].get("labels", {}), "name": f"{name}-{index}-abcde"}
    added = {"JOB_COMPLETION_INDEX": str(index)}
    return _pod(folder, template["spec"], metadata, added, cluster, hostname=f"{name}-{index}", **named)


def _pod(folder, spec, metadata, added, cluster, **named):
    _know("pod", spec, "containers", "initContainers", "restartPolicy", "securityContext", "subdomain",
          "terminationGracePeriodSeconds", "volumes")
    security = spec["securityContext"]
    _know("security", security, "fsGroup", "runAsGroup", "runAsNonRoot", "runAsUser", "seccompProfile")
    assert security["runAsNonRoot"] and security["runAsUser"] != 0

    def container(each):
        return _container(each, security, metadata, added, cluster)

    return Pod(folder, init_containers=[container(one) for one in spec.get("initContainers", ())],
               containers=[container(one) for one in spec["containers"]], restart_policy=spec["restartPolicy"],
               volumes={one["name"]: _volume(one, cluster) for one in spec["volumes"]}, fs_group=security["fsGroup"],
               subdomain=spec.get("subdomain", ""), termination_grace_period_seconds=spec["terminationGracePeriodSeconds"], **named)


def _know(kind, said, *played):
    unknown = set(said) - set(played) - ONLY_IN_A_CLUSTER.get(kind, set())
    assert not unknown, f"{kind}: {sorted(unknown)} would be left out"


def _container(said, security, metadata, added, cluster):
    _know("container", said, "args", "command", "env", "image", "lifecycle", "livenessProbe", "name", "readinessProbe",
          "restartPolicy", "securityContext", "startupProbe", "volumeMounts")
    own = said["securityContext"]
    _know("its security", own, "allowPrivilegeEscalation", "capabilities", "readOnlyRootFilesystem")
    assert own["allowPrivilegeEscalation"] is False and own["capabilities"] == {"drop": ["ALL"]}, "containers here have no privilege"
    environment = _environment(said.get("env", ()), added, metadata, cluster)
    words = {key: tuple(_expanded(word, environment) for word in said.get(key, ())) for key in ("command", "args")}
    return Container(
        said["name"], cluster.images[said["image"]], **words, env=environment,
        volume_mounts=tuple(_mount(one) for one in said["volumeMounts"]),
        run_as_user=security["runAsUser"], run_as_group=security["runAsGroup"],
        read_only_root_filesystem=own["readOnlyRootFilesystem"], seccomp_profile=security["seccompProfile"]["type"],
        startup_probe=_probe(said.get("startupProbe")), readiness_probe=_probe(said.get("readinessProbe")),
        liveness_probe=_probe(said.get("livenessProbe")), pre_stop=_hook(said.get("lifecycle")),
        restart_policy=said.get("restartPolicy", ""))


def _environment(said, added, metadata, cluster):
    environment = dict(added)
    for one in said:
        _know("variable", one, "name", "value", "valueFrom")
        source = one.get("valueFrom")
        environment[one["name"]] = _taken(source, metadata, cluster) if source else _expanded(one.get("value", ""), environment)
    return environment


def _taken(source, metadata, cluster):
    ((kind, reference),) = source.items()
    if kind == "secretKeyRef":
        return cluster.secrets[reference["name"]][reference["key"]].decode()
    assert kind == "fieldRef", kind
    field, key = re.fullmatch(r"metadata\.(\w+)(?:\['(.+)'\])?", reference["fieldPath"]).groups()
    return metadata[field][key] if key else metadata[field]


def _expanded(text, environment):
    """References to variables that are there; others are left as they are."""
    return re.sub(r"\$\((\w+)\)", lambda found: environment.get(found[1], found[0]), text)


def _mount(said):
    _know("mount", said, "mountPath", "name", "readOnly")
    return VolumeMount(said["name"], said["mountPath"], said.get("readOnly", False))


def _probe(said):
    if said is None:
        return None
    _know("probe", said, "failureThreshold", "grpc", "initialDelaySeconds", "periodSeconds")
    return Probe(grpc=(said["grpc"]["port"], said["grpc"]["service"]), period_seconds=said.get("periodSeconds", 10),
                 failure_threshold=said.get("failureThreshold", 3), initial_delay_seconds=said.get("initialDelaySeconds", 0))


def _hook(said):
    if said is None:
        return ()
    assert list(said) == ["preStop"], said
    return tuple(said["preStop"]["exec"]["command"])


def _volume(said, cluster):
    kind, options = next((key, value) for key, value in said.items() if key != "name")
    if kind == "persistentVolumeClaim":
        _know("claim", options, "claimName")
        return HostPath(cluster.claims[options["claimName"]])
    if kind == "secret":
        _know("secret", options, "defaultMode", "secretName")
        return Secret(cluster.secrets[options["secretName"]], options.get("defaultMode", 0o644))
    assert kind == "emptyDir", kind
    _know(kind, options, "medium", "sizeLimit")
    number, unit = re.fullmatch(r"(\d+)(\w*)", options["sizeLimit"]).groups()
    return EmptyDir(options.get("medium", ""), str(int(number) * UNITS[unit]))
