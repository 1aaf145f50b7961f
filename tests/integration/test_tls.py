"""Mutual TLS between the daemons of a group."""

import subprocess
import sys
import pathlib

import ckptd
import pytest
from group import BINARIES, clean_environment, wait_until
from hosts import SpreadGroup, TwoHosts
from hosts import why_not as no_namespaces

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from certificates import Authority, why_not  # noqa: E402

reason = why_not()
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))
EVERYWHERE = ("IP:127.0.0.1", "IP:10.77.0.1", "IP:10.77.0.2")


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "ca")


@pytest.fixture
def network():
    if no_namespaces():
        pytest.skip(no_namespaces())
    with TwoHosts() as made:
        yield made


def bytes_of(group, path, rank):
    with ckptd.connect(group.address(rank)) as client:
        with client.acquire(client.load(path, layout=f"replicate:{group.ranks}")) as shard:
            return {name: bytes(view.buffer) for name, view in shard.tensors.items()}


def test_a_group_with_certificates_loads_over_two_hosts(network, authority, source, tmp_path_factory):
    path, _ = source
    per_rank = {rank: authority.options(f"rank-{rank}", *EVERYWHERE) for rank in (0, 1)}
    with SpreadGroup(tmp_path_factory.mktemp("s"), network, [0, 1], per_rank=per_rank) as group:
        assert bytes_of(group, path, 0) == bytes_of(group, path, 1)
        name = group.json("list")["checkpoints"][0]["name"]
        assert group.json("get", name)["progress"]["streamed_ranks"] == [1]


def test_one_name_in_every_certificate_will_do(network, authority, source, tmp_path_factory):
    path, _ = source
    options = (*authority.options("everyone", "DNS:ckptd.job"), "--tls-name", "ckptd.job")
    with SpreadGroup(tmp_path_factory.mktemp("s"), network, [0, 1], *options) as group:
        assert bytes_of(group, path, 0) == bytes_of(group, path, 1)


def check_never_joins(network, folder, per_rank):
    """Rank 1 is not let in, and its state says what to look at."""
    group = SpreadGroup(folder, network, [0, 1], per_rank=per_rank)
    try:
        def told():
            infos = group.info(rank=0), group.info(rank=1)
            return all(infos) and infos[0]["state"] == "JOINING" and "--tls-cert" in infos[1]["detail"]
        wait_until(told, f"rank 1 to say why it cannot join; logs in {group.folder}")
    finally:
        group.stop()


def test_a_daemon_without_certificates_is_told_so(network, authority, tmp_path_factory):
    check_never_joins(network, tmp_path_factory.mktemp("s"), {0: authority.options("rank-0", *EVERYWHERE)})


def test_a_daemon_with_certificates_among_plain_ones_is_told_so(network, authority, tmp_path_factory):
    check_never_joins(network, tmp_path_factory.mktemp("s"), {1: authority.options("rank-1", *EVERYWHERE)})


def test_a_certificate_of_another_authority_is_refused(network, authority, tmp_path, tmp_path_factory):
    other = Authority(tmp_path / "other", "other")
    check_never_joins(network, tmp_path_factory.mktemp("s"), {0: authority.options("rank-0", *EVERYWHERE),
                                                              1: other.options("rank-1", *EVERYWHERE)})


def test_a_certificate_for_another_host_is_refused(network, authority, tmp_path_factory):
    check_never_joins(network, tmp_path_factory.mktemp("s"), {0: authority.options("rank-0", "DNS:elsewhere"),
                                                              1: authority.options("rank-1", *EVERYWHERE)})


@pytest.mark.parametrize("options,complaint", [
    (("--tls-cert", "/dev/null"), "give all three"),
    (("--tls-name", "x"), "give all three"),
    (("--tls-cert", "/nonexistent", "--tls-key", "/nonexistent", "--tls-ca", "/nonexistent"), "tls-cert"),
])
def test_settings_that_cannot_be_are_named_at_the_start(tmp_path, options, complaint):
    answer = subprocess.run([BINARIES / "ckptd", "run", "--run-dir", tmp_path, *options], env=clean_environment(),
                            capture_output=True, text=True, timeout=60)
    assert answer.returncode == 2 and complaint in answer.stderr, answer.stderr


def test_a_key_where_a_certificate_belongs_is_named(tmp_path, authority):
    _, key = authority.issue("rank-0", *EVERYWHERE)
    answer = subprocess.run([BINARIES / "ckptd", "run", "--run-dir", tmp_path / "r", "--tls-cert", key, "--tls-key",
                             key, "--tls-ca", authority.certificate],
                            env=clean_environment(), capture_output=True, text=True, timeout=60)
    assert answer.returncode == 2 and "no CERTIFICATE" in answer.stderr, answer.stderr
