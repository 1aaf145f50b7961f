"""The manifests of deploy/kubernetes, played: containers of the real images, started, probed and ended as a node would."""

import dataclasses
import json
import shutil
import sys

import images
import pytest
import yaml
from group import ROOT, save
from namespaces import why_not
from pod_network import PodNetwork
from pod_specs import Cluster, pod_of_job

sys.path.append(str(ROOT / "tests/kubernetes"))
import manifests  # noqa: E402

REASON = images.why_not() or why_not()
pytestmark = pytest.mark.skipif(bool(REASON), reason=str(REASON))
# Periods of seconds become tenths.
TIME_SCALE = 0.1
IMPORTS = 300  # seconds: torchrun and its trainers import PyTorch, one after the other and beside much else
KEPT = ("/tmp/kept", "/dev/shm/kept")  # in two volumes of the trainer
KEY = {"ckptd-group-key": {"key": b"9d0c1be75f3a4682d19b7ec0a35f826411f0a7c95e2d38b46c80f7139ae5b2d4"}}


def trainer_image(tree, host):
    """A trainer's image that somebody made: Python with torchrun and the package, whose wheel brings the programs."""
    image = images.of_system(tree)
    (tree / "app/bin").mkdir(parents=True)
    shutil.copy(ROOT / "tests/cases/torchrun_trainer.py", tree / "app/train.py")
    for program in ("ckptd", "ckptctl"):
        shutil.copy(host.tree / "usr/bin" / program, tree / "app/bin")
    torchrun = tree / "app/bin/torchrun"  # an environment's own names the folder that it was made in
    torchrun.write_text(f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n')
    torchrun.chmod(0o755)
    return dataclasses.replace(image, config={**image.config, "Env": [*image.config["Env"], "PATH=/app/bin:/usr/bin"]})


@pytest.fixture(scope="module")
def cluster(layouts, tmp_path_factory):
    import torch
    host, models = layouts("host"), tmp_path_factory.mktemp("models")
    generator = torch.Generator().manual_seed(5)
    save(models / "m.safetensors", {f"w{i}": torch.randn(64, 32 + i, generator=generator) for i in range(4)})
    models.chmod(0o755)  # files of tests are their user's alone
    (models / "m.safetensors").chmod(0o644)
    version = host.config["Labels"]["org.opencontainers.image.version"]
    named = {f"ckptd:{version}-host": host.image, "trainer:1.0": trainer_image(tmp_path_factory.mktemp("trainer"), host.image)}
    return Cluster(named, {"models": str(models)}, KEY)


def job_of(name, **changes):
    """The Job that a values file of the chart makes, with some values changed. Another test compares the overlays with it."""
    values = yaml.safe_load(manifests.values_of(name).read_text(encoding="utf-8"))
    # Its daemons would take a quarter of this machine's memory ahead.
    small = {"perNode": 2, "daemon": {"memory": "host", "env": {"CKPTD_ARENA": "0"}, "slabs": "64Mi"}}
    objects = manifests.documents(manifests.render({**values, **small, **changes}))
    return next(one for one in objects if one["kind"] == "Job")


@pytest.fixture(scope="module")
def play(cluster, tmp_path_factory):
    def start(job, index=0, **named):
        return pod_of_job(tmp_path_factory.mktemp("p"), job, index, cluster, time_scale=TIME_SCALE, **named)

    return start


@pytest.fixture(scope="module")
def pod(play):
    """A sidecar with the daemons of two trainers: overlays/pod, whose number of processes is changed."""
    with play(job_of("pod")) as made:
        yield made


def said(pod, what):
    """Lines of the trainers so far."""
    whole = pod.log("trainer").split("\n")[:-1]
    lines = [line for line in whole if line.startswith('{"rank"')]
    return [one for one in map(json.loads, lines) if one["what"] == what]


def loaded(pod, run=1):
    """What both trainers of a pod said when they had loaded in their container's run of that number."""
    pod.wait_until(lambda: len(said(pod, "loaded")) >= 2 * run, "its trainers to load", IMPORTS)
    return said(pod, "loaded")[2 * run - 2:2 * run]


def check(reports, ranks, resident=False):
    """Each rank has its rows. Nobody loaded what was resident; else later ranks find resident what the first had loaded."""
    assert sorted((one["rank"], one["ranks"], one["same"]) for one in reports) == [(rank, len(ranks), True) for rank in ranks]
    assert all(one["resident"] for one in reports) == resident


def of(pod, name):
    return [what for who, what in pod.events if who == name]


def ready(pod, name="ckptd"):
    pod.wait_until(lambda: pod.ready(name), f"{name} to be ready")


def killed(pod, name):
    """Kills a container, and waits for its next run."""
    started = pod.events.count((name, "started"))
    pod.kill(name)
    pod.wait_event(name, "started", started + 1)


def test_the_trainer_starts_when_the_startup_probe_of_its_sidecar_has_passed(pod):
    order = [event for event in pod.events if event[1] in ("started", "passed")]
    assert order[:3] == [("ckptd", "started"), ("ckptd", "passed"), ("trainer", "started")]


def test_the_sidecar_is_ready_after_it_has_started_up(pod):
    ready(pod)
    assert of(pod, "ckptd")[:3] == ["started", "passed", "ready"]


def test_trainers_load_what_the_daemons_of_the_sidecar_read(pod):
    check(loaded(pod), [0, 1])


def test_containers_have_the_user_and_the_rights_that_the_pod_says(pod):
    for name in ("ckptd", "trainer"):
        status = pod.proc(name, "status")
        assert status["Uid"].split() == status["Gid"].split() == ["10001"] * 4 and status["Groups"] == "10001", name
        assert int(status["CapBnd"], 16) == 0 and status["NoNewPrivs"] == "1" and status["Seccomp"] == "2", name


def test_a_trainer_whose_container_restarts_finds_its_shard_resident(pod):
    loaded(pod)
    killed(pod, "trainer")
    check(loaded(pod, 2), [0, 1], resident=True)
    assert of(pod, "ckptd").count("started") == 1


def test_a_sidecar_that_restarts_is_probed_from_the_start_while_the_trainer_goes_on(pod):
    ready(pod)
    runs = of(pod, "trainer").count("started")
    killed(pod, "ckptd")
    ready(pod)
    assert of(pod, "ckptd")[-5:] == ["unready", "ended 137", "started", "passed", "ready"]
    assert of(pod, "trainer").count("started") == runs and pod.runs["trainer"].process.poll() is None


def test_when_all_containers_restart_in_place_every_process_is_new_and_volumes_with_the_shards_are_kept(pod):
    runs = len(said(pod, "loaded")) // 2
    network, processes, began = pod.namespaces("ckptd")["net"], pod.processes(), len(pod.events)
    assert pod.execute("trainer", "touch", *KEPT).returncode == 0
    pod.restart_all()
    check(loaded(pod, runs + 1), [0, 1], resident=True)
    again = [event for event in pod.events[began:] if event[1] in ("started", "passed")]
    assert again == [("ckptd", "started"), ("ckptd", "passed"), ("trainer", "started")]
    # Two daemons under a launcher, two trainers under torchrun.
    assert len(processes) >= 6 and not processes & pod.processes()
    assert pod.namespaces("trainer")["net"] == network
    assert pod.execute("trainer", "ls", *KEPT).returncode == 0


def test_a_pod_that_is_deleted_is_drained_and_its_daemons_end_last(pod):
    runs = len(said(pod, "loaded")) // 2
    loaded(pod, runs)
    pod.stop()
    ends = [event for event in pod.events if event[1].startswith(("preStop", "ended"))][-3:]
    # The node calls the hook and tells the trainer at the same time.
    assert ends[-1] == ("ckptd", "ended 0") and ("ckptd", "preStop 0") in ends[:2], f"{pod.events}\n{pod.log('ckptd')}"
    assert "trainer" in {name for name, _ in ends[:2]}
    assert [one["same"] for one in said(pod, "saved")[-2:]] == [True, True]
    assert not [what for _, what in pod.events if what in ("unhealthy", "startup failed")]


def test_a_supervisor_s_container_loads_trains_drains_and_ends_with_its_trainer(play):
    job = job_of("pod-8-gpus-supervisor", gpus={"access": "none"})
    with play(job) as pod:
        check(loaded(pod), [0, 1])
        ready(pod, "trainer")
        pod.stop()
    assert [one["same"] for one in said(pod, "saved")] == [True, True]
    assert of(pod, "trainer")[:3] == ["started", "ready", "preStop 0"], pod.log("trainer")


def test_pods_of_a_job_form_one_group_and_end_with_their_trainers(play, tmp_path):
    job = job_of("job-4-nodes", nodes=2, gpus={"access": "none"})
    with PodNetwork(tmp_path) as network, play(job, 0, network=network) as first:
        assert not first.ready("ckptd")
        with play(job, 1, network=network) as second:
            reports = loaded(first) + loaded(second)
            check(reports, [0, 1, 2, 3])
            for pod in (first, second):
                ready(pod)
            for pod in (first, second):
                pod.execute("trainer", "touch", "/tmp/finish")
            for pod in (first, second):
                pod.wait_event("ckptd", "ended 0")
                pod.wait_event("trainer", "ended 0")
                assert of(pod, "trainer") == ["started", "ended 0"]
