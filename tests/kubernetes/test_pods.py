"""Rules that hold for every pod that is rendered, in every form."""

import re

import pytest

import manifests

RENDERINGS = manifests.renderings()
# Variables that a controller adds to the containers of a pod. Their arguments and variables may refer to them.
INJECTED = {"LeaderWorkerSet": {"LWS_LEADER_ADDRESS", "LWS_WORKER_INDEX", "LWS_GROUP_SIZE"},
            "PyTorchJob": {"RANK", "MASTER_ADDR", "MASTER_PORT"}}
TRAINERS = {"CKPTD_RUN_DIR", "CKPTD_JOB"}


def pods():
    """(name of the rendering, kind of the workload, pod template)."""
    return [(name, document["kind"], template) for name, objects in RENDERINGS.items() for document in objects()
            for template in manifests.pod_templates(document)]


PODS = pods()
each_pod = pytest.mark.parametrize("kind, template", [pod[1:] for pod in PODS],
                                   ids=[f"{pod[0]}-{number}" for number, pod in enumerate(PODS)])


def settings():
    text = (manifests.ROOT / "deploy/config/ckptd.example.toml").read_text(encoding="utf-8")
    return {f"CKPTD_{key.upper().replace('-', '_')}" for key in re.findall(r"^# ([a-z-]+) = ", text, flags=re.M)}


def trainer_of(template):
    return template["spec"]["containers"][0]


def with_work(template):
    """The containers but the one that only waits."""
    return [container for container in manifests.containers(template) if container["name"] != "wait"]


def mounts(container):
    return {one["name"]: one["mountPath"] for one in container["volumeMounts"]}


def is_sidecar(template):
    return "initContainers" in template["spec"]


@each_pod
def test_pods_keep_to_the_restricted_security_profile(kind, template):
    spec = template["spec"]
    assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & set(spec)
    security = spec["securityContext"]
    assert security["runAsNonRoot"] and security["runAsUser"] == security["fsGroup"] > 0
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    for container in manifests.containers(template):
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                "capabilities": {"drop": ["ALL"]}}
    paths = [volume for volume in spec["volumes"] if "hostPath" in volume]
    assert [volume["name"] for volume in paths] == (["sockets"] if kind == "DaemonSet" else [])


@each_pod
def test_sockets_are_in_memory_and_both_containers_see_them_at_one_path(kind, template):
    sockets, = [volume for volume in template["spec"]["volumes"] if volume["name"] == "sockets"]
    if kind != "DaemonSet":
        assert sockets["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Mi"}
    run_dir = manifests.environment(manifests.daemon_container(template))["CKPTD_RUN_DIR"]
    assert {mounts(container)["sockets"] for container in manifests.containers(template)} == {run_dir}


@each_pod
def test_trainers_look_for_daemons_where_those_listen(kind, template):
    if not is_sidecar(template):
        return
    daemon, trainer = map(manifests.environment, (manifests.daemon_container(template), trainer_of(template)))
    assert {key: daemon[key] for key in TRAINERS} == {key: trainer[key] for key in TRAINERS}
    # Another variable would be a setting that only the daemon can use.
    assert {key for key in trainer if key.startswith("CKPTD_")} == TRAINERS


@each_pod
def test_the_longest_path_of_a_socket_fits(kind, template):
    said = manifests.environment(manifests.daemon_container(template))
    # Names of jobs have up to 63 bytes, paths of sockets up to 107.
    assert len(f"{said['CKPTD_RUN_DIR']}/{'x' * 63}/rank-16383.admin.sock") <= 107
    assert len(said["CKPTD_JOB"]) <= 63


@each_pod
def test_every_variable_of_the_daemons_is_a_setting(kind, template):
    said = set(manifests.environment(manifests.daemon_container(template)))
    known = settings() | {"JOBSET_NAME", "HOME", "CUDA_DEVICE_ORDER"}
    assert {key for key in said if key not in known and not key.startswith(("PET_", "OMP_"))} == set()


@each_pod
def test_arguments_and_variables_refer_only_to_what_is_defined_before(kind, template):
    for container in manifests.containers(template):
        defined = set(INJECTED.get(kind, ()))
        for one in container.get("env", []):
            assert set(re.findall(r"\$\((\w+)\)", one.get("value", ""))) <= defined, one
            defined.add(one["name"])
        for argument in container.get("args", []):
            assert set(re.findall(r"\$\((\w+)\)", argument)) <= defined, argument


@each_pod
def test_daemons_of_two_pods_on_one_node_do_not_take_each_other_for_neighbours(kind, template):
    said = manifests.environment(manifests.daemon_container(template))
    assert said["CKPTD_HOST_ID"] == {"fieldRef": {"fieldPath": "metadata.uid"}}


@each_pod
def test_daemons_of_several_pods_have_a_key_or_certificates(kind, template):
    said = manifests.environment(manifests.daemon_container(template))
    several = "CKPTD_PEER_PORT" in said
    key = "CKPTD_GROUP_KEY_FILE" in said
    assert key + ("CKPTD_TLS_CERT" in said) == several
    secrets = [volume for volume in template["spec"]["volumes"] if "secret" in volume]
    assert len(secrets) == several
    # A key in a variable would be in every crash report.
    assert "CKPTD_GROUP_KEY" not in said
    # In a sidecar, the trainer need not know it.
    if is_sidecar(template):
        assert "peers" not in mounts(trainer_of(template))


@each_pod
def test_gpus_are_where_the_memory_is(kind, template):
    daemon = manifests.daemon_container(template)
    claims = [container["resources"].get("claims") for container in with_work(template)]
    if "resourceClaims" in template["spec"]:
        assert claims == [[{"name": "gpus"}]] * len(claims)
    else:
        assert not any(claims)
    sees = bool(daemon["resources"].get("claims")) or "nvidia.com/gpu" in daemon["resources"]["limits"]
    assert manifests.environment(daemon)["CKPTD_MEMORY"] == ("cuda" if sees else "host")
    if daemon["name"] == "ckptd":
        assert daemon["image"].endswith("-cuda" if sees else "-host")


@each_pod
def test_containers_with_gpus_number_them_alike(kind, template):
    if manifests.environment(manifests.daemon_container(template))["CKPTD_MEMORY"] == "cuda":
        orders = [manifests.environment(container).get("CUDA_DEVICE_ORDER") for container in with_work(template)]
        assert orders == ["PCI_BUS_ID"] * len(orders)


@each_pod
def test_memory_is_requested_as_it_is_limited(kind, template):
    for container in manifests.containers(template):
        resources = container["resources"]
        assert resources["requests"]["memory"] == resources["limits"]["memory"]
        assert "cpu" in resources["requests"] and "cpu" not in resources["limits"]


@each_pod
def test_sidecars_are_native_and_have_all_probes(kind, template):
    daemon = manifests.daemon_container(template)
    assert daemon["lifecycle"]["preStop"]["exec"]["command"][:3] == ["ckptctl", "drain", "--all-ranks"]
    probes = {key for key in daemon if key.endswith("Probe")}
    if is_sidecar(template):
        assert daemon["restartPolicy"] == "Always"
    if daemon["name"] == "ckptd":
        assert probes == {"startupProbe", "livenessProbe", "readinessProbe"}
    else:
        # Restarting that container would end the trainer.
        assert probes == {"readinessProbe"}


@each_pod
def test_probes_ask_the_port_that_the_daemons_serve_health_on(kind, template):
    daemon = manifests.daemon_container(template)
    port = int(manifests.environment(daemon)["CKPTD_HEALTH_PORT"])
    assert port in [one["containerPort"] for one in daemon["ports"]]
    asked = {key: value["grpc"] for key, value in daemon.items() if key.endswith("Probe")}
    assert {one["port"] for one in asked.values()} == {port}
    # A load may take an hour, and other pods may come late: neither is a reason to start the daemons again.
    services = {"startupProbe": "liveness", "livenessProbe": "liveness", "readinessProbe": "ckptd.v1.Group"}
    if kind == "PyTorchJob":  # whose Service hides the first pod from the others until it is ready
        services["readinessProbe"] = "liveness"
    assert {key: one["service"] for key, one in asked.items()} == {key: services[key] for key in asked}


@each_pod
def test_ports_of_daemons_are_fixed_and_apart_from_the_health_port(kind, template):
    daemon = manifests.daemon_container(template)
    said = manifests.environment(daemon)
    if "CKPTD_PEER_PORT" not in said:
        return
    first = int(said["CKPTD_PEER_PORT"])
    leader = said.get("CKPTD_RENDEZVOUS") or " ".join(daemon["args"])
    # Rank 0's is the first of its pod's.
    assert f":{first}" in leader and not first <= int(said["CKPTD_HEALTH_PORT"]) < first + 8


@each_pod
def test_an_init_container_waits_behind_the_sidecar(kind, template):
    names = [container["name"] for container in template["spec"].get("initContainers", [])]
    assert names in ([], ["ckptd"], ["ckptd", "wait"])


@each_pod
def test_trainers_start_again_in_their_pod(kind, template):
    wanted = {"DaemonSet": None, "PyTorchJob": None, "LeaderWorkerSet": "Always"}.get(kind, "OnFailure")
    assert template["spec"].get("restartPolicy") == wanted


@pytest.mark.parametrize("name", RENDERINGS)
def test_policies_services_and_budgets_choose_the_pods(name):
    objects = RENDERINGS[name]()
    labels = [template["metadata"]["labels"] for template in manifests.all_pod_templates(objects)]
    selectors = []
    for one in objects:
        if one["kind"] == "NetworkPolicy":
            selectors += [one["spec"]["podSelector"]["matchLabels"]]
            # Metrics alone are for everybody.
            assert all("from" in rule or rule["ports"] == [{"port": 9464}] for rule in one["spec"]["ingress"])
            selectors += [peer["podSelector"]["matchLabels"] for rule in one["spec"]["ingress"]
                          for peer in rule.get("from", [])]
        elif one["kind"] == "PodDisruptionBudget":
            selectors.append(one["spec"]["selector"]["matchLabels"])
        elif one["kind"] == "Service":
            selectors.append(one["spec"]["selector"])
            assert one["spec"]["publishNotReadyAddresses"] and one["spec"]["clusterIP"] == "None"
    assert selectors
    for chosen in selectors:
        assert all(chosen.items() <= pod.items() for pod in labels)


@pytest.mark.parametrize("name", RENDERINGS)
def test_every_number_of_pods_is_the_same(name):
    for document in RENDERINGS[name]():
        counts = set()
        for template in manifests.pod_templates(document):
            for container in manifests.containers(template):
                said = manifests.environment(container)
                counts |= {said[key] for key in ("PET_NNODES",) if key in said}
                counts |= set(re.findall(r"--nnodes=(\d+)", " ".join(container.get("args", []))))
        pods_of = set(re.findall(r"'(?:completions|parallelism|numNodes|size|minAvailable)': (\d+)", str(document)))
        if document["kind"] == "PyTorchJob":
            pods_of = {str(sum(one["replicas"] for one in document["spec"]["pytorchReplicaSpecs"].values()))}
        if counts:
            assert counts == pods_of
        else:
            assert pods_of <= {"1"} or document["kind"] in ("PodDisruptionBudget", "TrainJob")
