"""Groups whose hosts are known by names, as pods are: names that get an address late, and another one later."""

import subprocess

import pytest
from group import SOON, wait_until
from hosts import SpreadGroup, check_rows, why_not
from namespaces import tool
from probe import check

reason = why_not()
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))

NAME = "trainer-0.trainer"


class Pods(SpreadGroup):
    """Ranks of two hosts that look rank 0 up by name, in a file of names that all of them see and the test writes.

    With silent=True they also ask a name server that never answers."""

    def __init__(self, folder, network, hosts, silent=False):
        self.names_file = folder / "hosts"
        self.name_has(None)
        (folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        (folder / "nsswitch.conf").write_text(f"hosts: files {'dns' if silent else ''}\n")
        super().__init__(folder, network, hosts)

    def name_has(self, address):
        # In place: the daemons see this file, and not another one of its name.
        with open(self.names_file, "w") as file:
            file.write("127.0.0.1 localhost\n" + (f"{address} {NAME}\n" if address else ""))

    def addresses(self, rank):
        return "--rendezvous", f"{NAME}:{self.port}"

    def start(self, rank):
        script = 'for file in hosts resolv.conf nsswitch.conf; do mount --bind "$0/$file" "/etc/$file" || exit; done; exec "$@"'
        arguments = [*self.network.inside(self.hosts[rank]), "sh", "-c", script, self.names_file.parent, *self.command(rank)]
        with open(self.log_of(rank), "a") as log:
            return subprocess.Popen([str(a) for a in arguments], env={**self.environment, **self.keys[rank]},
                                    stdin=subprocess.DEVNULL, stdout=log, stderr=log)


@pytest.fixture
def pods(network, tmp_path_factory):
    groups = []

    def start(hosts, **options):
        groups.append(Pods(tmp_path_factory.mktemp("pods"), network, hosts, **options))
        return groups[-1]

    yield start
    for group in groups:
        group.end()


def address_of(group, rank):
    return next(one["address"] for one in group.info()["members"] if one["rank"] == rank)


def test_daemons_serve_before_the_leaders_name_has_an_address_and_join_when_it_has(pods, network, source):
    path, tensors = source
    group = pods([0, 1], silent=True)
    wait_until(lambda: f"not joined yet: joining the group at {NAME}" in group.log_of(1).read_text(), "the first attempt")
    assert [check(group.address(1), name) for name in ("liveness", "ckptd.v1.Group")] == ["SERVING", "NOT_SERVING"]
    assert NAME in group.info(1)["detail"]
    group.name_has(network.addresses[0])
    group.wait_ready()
    # It did not know its address when it started, and its bytes come there.
    assert address_of(group, 1).startswith(f"{network.addresses[1]}:")
    check_rows(group, path, tensors, "fsdp:2")


def move(network, host, old, new):
    """The host of a pod that was replaced has another address."""
    inside = ("ip", "-n", network.names[host])
    # In this order: the first address of a network takes the others along.
    tool(*inside, "address", "delete", f"{old}/24", "dev", "eth0")
    tool(*inside, "address", "add", f"{new}/24", "dev", "eth0")


def test_members_find_a_leader_that_comes_back_with_another_address(pods, network, source):
    path, tensors = source
    group = pods([0, 1, 1])
    group.name_has(network.addresses[0])
    group.wait_ready()
    name = check_rows(group, path, tensors, "fsdp:3")
    group.processes[0].kill()
    group.processes[0].wait()
    move(network, 0, network.addresses[0], "10.77.0.3")
    group.processes[0] = group.start(0)
    for rank in (1, 2):
        wait_until(lambda: "leader lost" in group.log_of(rank).read_text(), "the members to miss rank 0")
    group.name_has("10.77.0.3")
    group.wait_ready()
    assert check_rows(group, path, tensors, "fsdp:3") == name


def test_a_member_that_comes_back_with_another_address_is_reached_there(pods, network, source):
    path, tensors = source
    group = pods([0, 1])
    group.name_has(network.addresses[0])
    group.wait_ready()
    check_rows(group, path, tensors, "fsdp:2")
    group.processes[1].kill()
    group.processes[1].wait()
    move(network, 1, network.addresses[1], "10.77.0.4")
    group.processes[1] = group.start(1)
    wait_until(lambda: group.info() and address_of(group, 1).startswith("10.77.0.4:"), "the group to know it", SOON)
    group.wait_ready()
    check_rows(group, path, tensors, "fsdp:2")
