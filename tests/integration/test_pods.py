"""A daemon and a trainer as two containers of a pod, which share a network, a folder of sockets and nothing else."""

import dataclasses
import json
import os
import threading

import images
import pytest
from group import ROOT, save, wait_until
from pods import Container, EmptyDir, HostPath, Pod, Probe, VolumeMount

pytestmark = pytest.mark.skipif(bool(images.why_not()), reason=str(images.why_not()))


STARTED = Probe(("/usr/bin/ckptctl", "info"), period_seconds=0.2)
DAEMON, GUEST, GROUP = 65532, 10002, 2000  # the daemon's user is its image's


@pytest.fixture(scope="module", params=[DAEMON, GUEST], ids=["same-user", "another-user"])
def pod(request, layouts, tmp_path_factory):
    """The files are the trainer's alone. As another user it is a guest of the daemon, by the pod's group."""
    import torch
    models, generator = tmp_path_factory.mktemp("models"), torch.Generator().manual_seed(5)
    shapes = {"0.weight": (256, 64), "0.bias": (256,), "1.weight": (8, 256), "1.bias": (8,)}
    save(models / "m.safetensors", {name: 0.05 * torch.randn(shape, generator=generator) for name, shape in shapes.items()})
    models.chmod(0o755)  # files of tests are their user's alone
    (models / "m.safetensors").chmod(0o600)
    os.chown(models / "m.safetensors", request.param, request.param)
    mounts = (VolumeMount("run", "/run/ckptd"), VolumeMount("models", "/models", read_only=True))
    guests = {"CKPTD_ALLOW_GID": str(GROUP)} if request.param == GUEST else {}
    daemon = Container("ckptd", layouts("host").image, env={"CKPTD_ARENA": "0", **guests}, volume_mounts=mounts,
                       startup_probe=STARTED, restart_policy="Always")
    trainer = Container("trainer", images.of_system(tmp_path_factory.mktemp("python")),
                        args=(ROOT / "tests/cases/pod_trainer.py", "/models/m.safetensors"), run_as_user=request.param, run_as_group=request.param,
                        env={"CKPTD_RUN_DIR": "/run/ckptd", "CKPTD_DAEMON_UID": str(DAEMON), "HOME": "/scratch", "TMPDIR": "/scratch"},
                        volume_mounts=(*mounts, VolumeMount("scratch", "/scratch")), stdin=True)
    volumes = {"run": EmptyDir("Memory"), "scratch": EmptyDir(), "models": HostPath(str(models))}
    with Pod(tmp_path_factory.mktemp("p"), init_containers=[daemon], containers=[trainer], volumes=volumes, fs_group=GROUP) as made:
        made.trainers_user = request.param
        yield made


def ask(pod, word):
    return json.loads(pod.runs["trainer"].ask(word))


def leases(pod):
    done = pod.execute("ckptd", "/usr/bin/ckptctl", "leases", "--output", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout).get("leases", [])


def killed(pod, name):
    """Kills a container, and waits until the node has started it again."""
    ended, started = (pod.events.count((name, what)) for what in ("ended 137", "started"))
    pod.kill(name)
    pod.wait_event(name, "ended 137", ended + 1)
    pod.wait_event(name, "started", started + 1)


def test_containers_share_no_namespace_but_the_network_and_no_privilege(pod):
    theirs, ours = pod.namespaces("ckptd"), pod.namespaces("trainer")
    assert theirs["net"] == ours["net"]
    assert not [kind for kind in ("pid", "ipc", "mnt", "uts") if theirs[kind] == ours[kind]]
    assert ask(pod, "where") == {"uid": pod.trainers_user, "groups": [GROUP], "processes": 1, "pid": 1}
    for name in ("ckptd", "trainer"):
        status = pod.proc(name, "status")
        assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0, name
        assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2", name


def test_a_trainer_in_another_container_trains_on_what_its_daemon_loads(pod):
    trained = ask(pod, "train")
    assert trained["same"] and trained["losses"][1] < trained["losses"][0]


def test_a_killed_trainer_attaches_to_what_its_daemon_kept(pod):
    first = ask(pod, "attach")
    killed(pod, "trainer")
    wait_until(lambda: not leases(pod), "the dead trainer's lease to end")
    assert ask(pod, "attach") == {"resident": True, "bytes": first["bytes"]}
    assert len(leases(pod)) == 1


def test_a_trainer_keeps_its_memory_when_the_daemon_is_killed_and_attaches_to_the_next_one(pod):
    before = ask(pod, "attach")["bytes"]
    killed(pod, "ckptd")
    assert ask(pod, "compare")["bytes"] == before
    wait_until(lambda: pod.passes("ckptd", STARTED), "the next daemon to serve")
    assert ask(pod, "attach") == {"resident": False, "bytes": before}


ALIVE = Probe(("/usr/bin/test", "-e", "/run/pod/alive"), period_seconds=0.05, failure_threshold=2)
LIVES = "trap 'exit 0' TERM; touch /run/pod/alive; while :; do sleep 60 & wait $!; done"


def test_a_container_whose_liveness_probe_fails_is_told_and_started_again(tmp_path_factory):
    image = images.of_system(tmp_path_factory.mktemp("system"))
    container = Container("main", image, command=("/bin/sh", "-c", LIVES), volume_mounts=(VolumeMount("run", "/run/pod"),),
                          startup_probe=dataclasses.replace(ALIVE, failure_threshold=100), readiness_probe=ALIVE,
                          liveness_probe=ALIVE, pre_stop=("/usr/bin/touch", "/run/pod/told"))
    with Pod(tmp_path_factory.mktemp("p"), containers=[container], volumes={"run": EmptyDir("Memory")}) as pod:
        pod.wait_event("main", "ready")
        assert pod.execute("main", "rm", "/run/pod/alive").returncode == 0
        pod.wait_event("main", "ready", 2)
        assert pod.execute("main", "ls", "/run/pod/told").returncode == 0
    said = [what for _, what in pod.events if what != "unready"]  # which comes before or after it
    once = ["started", "passed", "ready"]
    assert said == [*once, "unhealthy", "preStop 0", "ended 0", *once, "preStop 0", "ended 0"]


def test_a_command_whose_parent_was_killed_holds_up_no_container(tmp_path_factory):
    container = Container("main", images.of_system(tmp_path_factory.mktemp("system")), command=("/bin/sh", "-c", LIVES),
                          volume_mounts=(VolumeMount("run", "/run/pod"),))
    with Pod(tmp_path_factory.mktemp("p"), containers=[container], volumes={"run": EmptyDir("Memory")}) as pod:
        pod.wait_event("main", "started")
        command = ("/bin/sh", "-c", "touch /run/pod/begun; while :; do sleep 60; done")
        killed = threading.Thread(target=pod.execute, args=("main", *command))
        killed.start()
        begun = Probe(("/usr/bin/test", "-e", "/run/pod/begun"))
        pod.wait_until(lambda: pod.passes("main", begun), "the command to begin")
        pod.wait_until(lambda: pod.kill_commands() == 0, "its parent to be killed")
        pod.kill("main")
        pod.wait_event("main", "ended 137")
        killed.join()


UNTIL_TOLD = "trap 'exit 0' TERM; touch /run/pod/$0; while :; do sleep 60 & wait $!; done"
ONCE_BADLY = "[ -e /run/pod/failed ] || { touch /run/pod/failed; exit 3; }; " + UNTIL_TOLD


def test_containers_start_and_end_in_the_order_that_a_node_keeps(tmp_path_factory):
    image, mounts = images.of_system(tmp_path_factory.mktemp("system")), (VolumeMount("run", "/run/pod"),)

    def container(name, script, **named):
        return Container(name, image, command=("/bin/sh", "-c", script, name), volume_mounts=mounts, run_as_user=1000, **named)

    def sidecar(name):
        return container(name, "sleep 0.3; " + UNTIL_TOLD, restart_policy="Always", startup_probe=Probe(("/usr/bin/test", "-e", f"/run/pod/{name}"), 0.1))

    first = container("first", "exit 0")
    with Pod(tmp_path_factory.mktemp("p"), init_containers=[first, sidecar("one"), sidecar("two")], fs_group=2000,
             containers=[container("main", ONCE_BADLY)], volumes={"run": EmptyDir("Memory")}, restart_policy="OnFailure") as pod:
        pod.wait_event("main", "started", 2)
        mine = Probe(("/bin/sh", "-c", "[ $(stat -c %u:%g /run/pod/main) = 1000:2000 ]"))
        wait_until(lambda: pod.passes("main", mine), "the second run of main, whose files have the pod's group")
    assert pod.events == [
        ("first", "started"), ("first", "ended 0"), ("one", "started"), ("one", "passed"), ("two", "started"), ("two", "passed"),
        ("main", "started"), ("main", "ended 3"), ("main", "started"),
        ("main", "ended 0"), ("two", "ended 0"), ("one", "ended 0"),
    ]
