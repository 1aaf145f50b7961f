"""Shards: what is mapped, how long, and what is refused."""

import gc
import mmap
import os
import resource
import socket
import struct
import subprocess
import sys

import ckptd
import numpy as np
import pytest
from ckptd import _fds
from process_state import open_links


def mapped_segments():
    with open("/proc/self/maps") as maps:
        return sum("memfd:fake" in line for line in maps)


def open_memfds():
    """Descriptors of the fake daemon's memory in this process, which it shares."""
    return sum("memfd:fake" in link for link in open_links(os.getpid()))


def without_the_last(fds):
    os.close(fds.pop())
    return fds


@pytest.fixture
def shard(client, source):
    with client.acquire(client.load(source[0])) as acquired:
        yield acquired


def test_every_tensor_has_the_bytes_of_the_file(shard, source):
    for name, array in source[1].items():
        assert np.array_equal(shard.tensors[name].numpy(), array), name


def test_a_tensor_across_segments_is_in_one_piece(daemon, shard, source):
    view = shard.tensors["big"]
    assert (
        view.offset // daemon.segment_bytes != (view.offset + view.nbytes) // daemon.segment_bytes
    )
    assert np.array_equal(view.numpy(), source[1]["big"])


def test_tensors_is_a_mapping_of_all_names(shard, source):
    assert set(shard.tensors) == set(source[1]) and len(shard.tensors) == len(source[1])


def test_shared_memory_is_read_only_to_numpy(shard):
    assert not shard.tensors["big"].numpy().flags.writeable


def test_shared_memory_is_read_only_as_a_buffer(shard):
    assert shard.tensors["big"].buffer.readonly


def test_private_memory_can_be_written_and_stays_private(client, source):
    checkpoint = client.load(source[0])
    with client.acquire(checkpoint, "private") as mine, client.acquire(checkpoint) as other:
        mine.tensors["big"].numpy()[:] = 7
        assert np.array_equal(other.tensors["big"].numpy(), source[1]["big"])


def test_exclusive_memory_is_the_daemon_s_own(client, source):
    checkpoint = client.load(source[0], mode="exclusive")
    with (
        client.acquire(checkpoint, "exclusive") as first,
        client.acquire(checkpoint, "exclusive") as second,
    ):
        first.tensors["big"].numpy()[0, 0] = 42.5
        assert second.tensors["big"].numpy()[0, 0] == 42.5


def test_the_mapping_is_aligned_for_huge_pages(shard):
    assert shard.mapping.address % (2 << 20) == 0


def test_closing_ends_the_lease(daemon, client, source):
    shard = client.acquire(client.load(source[0]))
    daemon.wait_for(lambda: daemon.leases == 1)
    shard.close()
    daemon.wait_for(lambda: daemon.leases == 0)


def test_the_lease_lasts_as_long_as_a_view(daemon, client, source):
    view = client.acquire(client.load(source[0])).tensors["big"].numpy()
    gc.collect()
    daemon.wait_for(lambda: daemon.leases == 1)
    del view
    gc.collect()
    daemon.wait_for(lambda: daemon.leases == 0)


def test_memory_stays_mapped_for_an_array_after_its_shard_is_gone(client, source):
    shard = client.acquire(client.load(source[0]))
    array = shard.tensors["big"].numpy()
    shard.close()
    del shard
    gc.collect()
    assert np.array_equal(array, source[1]["big"])


def test_memory_is_unmapped_with_the_last_user(client, source):
    shard = client.acquire(client.load(source[0]))
    array = shard.tensors["big"].numpy()
    assert mapped_segments() > 0
    del shard, array
    gc.collect()
    assert mapped_segments() == 0


def test_no_descriptor_of_the_memory_stays_open(daemon, client, source):
    checkpoint = client.load(source[0])
    before = open_memfds()
    with client.acquire(checkpoint):
        daemon.wait_for(lambda: open_memfds() == before)


def test_the_lease_s_connection_is_not_inherited_by_programs(client, source):
    with client.acquire(client.load(source[0])) as shard:
        assert not os.get_inheritable(shard._lease._connection.fileno())


def test_received_descriptors_are_not_inherited_by_programs_either(client, source, monkeypatch):
    from ckptd._mapping import Mapping

    inheritable = []
    monkeypatch.setattr(
        Mapping,
        "add",
        lambda self, fd, add=Mapping.add: (
            inheritable.append(os.get_inheritable(fd)),
            add(self, fd),
        ),
    )
    client.acquire(client.load(source[0]))
    assert set(inheritable) == {False}


def test_a_forked_child_does_not_prolong_the_lease(daemon, client, source):
    shard = client.acquire(client.load(source[0]))
    client.close()
    hold_read, hold_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hold_write)
        os.read(hold_read, 1)
        os._exit(0)
    try:
        shard.close()
        daemon.wait_for(lambda: daemon.leases == 0)
    finally:
        os.close(hold_write)
        os.close(hold_read)
        os.waitpid(child, 0)


def test_a_forked_child_reads_what_its_parent_mapped(client, source):
    shard = client.acquire(client.load(source[0]))
    client.close()
    child = os.fork()
    if child == 0:
        same = np.array_equal(shard.tensors["big"].numpy(), source[1]["big"])
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_many_segments_arrive_in_order(daemon, client, source):
    daemon.segment_bytes = 4096
    daemon.fds_per_message = 128
    shard = client.acquire(client.load(source[0]))
    assert len(shard.mapping._segments) > 100
    assert np.array_equal(shard.tensors["big"].numpy(), source[1]["big"])


def test_a_view_knows_where_it_lies(shard):
    view = shard.tensors["layer.0.weight"]
    assert (view.pointer - shard.mapping.address, view.nbytes) == (view.offset, 5 * 7 * 4)


def test_numpy_reads_views_by_their_interface(shard, source):
    assert np.array_equal(np.asarray(shard.tensors["count"]), source[1]["count"])


def test_numpy_takes_views_by_dlpack(client, source):
    with client.acquire(client.load(source[0]), "private") as shard:
        assert np.array_equal(np.from_dlpack(shard.tensors["big"]), source[1]["big"])


def test_read_only_memory_is_not_exported_to_a_consumer_that_cannot_be_told(shard):
    with pytest.raises(BufferError):
        shard.tensors["big"].__dlpack__()


def test_bfloat16_is_not_handed_to_numpy_as_something_else(client, source):
    with client.acquire(client.load(source[0], dtype="BF16")) as shard:
        with pytest.raises(TypeError, match="BF16"):
            shard.tensors["big"].numpy()
        with pytest.raises(AttributeError):
            shard.tensors["big"].__array_interface__


@pytest.mark.parametrize("versioned", [False, True])
def test_bfloat16_goes_to_torch_by_dlpack(client, source, versioned):
    torch = pytest.importorskip("torch")
    checkpoint = client.load(source[0], dtype="BF16")
    with client.acquire(checkpoint, "private") as shard:
        view = shard.tensors["big"]
        capsule = view.__dlpack__(max_version=(1, 0)) if versioned else view.__dlpack__()
        tensor = torch.utils.dlpack.from_dlpack(capsule)
        assert torch.equal(tensor, torch.from_numpy(source[1]["big"]).bfloat16())
        assert tensor.data_ptr() == view.pointer


def test_a_dlpack_tensor_keeps_the_memory(client, source):
    torch = pytest.importorskip("torch")
    tensor = torch.from_dlpack(client.acquire(client.load(source[0]), "private").tensors["big"])
    gc.collect()
    assert np.array_equal(tensor.numpy(), source[1]["big"])


def test_memory_survives_until_the_interpreter_is_gone(daemon, client, source):
    client.load(source[0])
    program = (
        "import atexit, sys, ckptd\n"
        "keep = []\n"
        "atexit.register(lambda: print(float(keep[0].sum())))\n"  # registered first, so run last
        "client = ckptd.connect(sys.argv[1])\n"
        "keep.append(client.acquire(client.list()[0]).tensors['big'].numpy())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, daemon.path],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.returncode, float(done.stdout)) == (0, float(source[1]["big"].sum())), done.stderr


# -- what is refused ----------------------------------------------------------


def acquire_bent(daemon, client, source, bend):
    checkpoint = client.load(source[0])
    daemon.bend_acquire = bend
    return client.acquire(checkpoint)


def set_item(column, index, value):
    def bend(reply):
        getattr(reply.tensors, column)[index] = value

    return bend


def flat(name, dtype, offset, elements):
    def bend(reply):
        table = reply.tensors
        columns = (table.flat_names, table.flat_dtypes, table.flat_offsets, table.flat_elements)
        for column, value in zip(columns, (name, dtype, offset, elements)):
            column.append(value)

    return bend


@pytest.mark.parametrize(
    "bend,why",
    [
        (set_item("offsets", 0, 1 << 40), "lies at bytes"),
        (set_item("offsets", 0, 7), "lies at bytes"),
        (set_item("padded_bytes", 0, 1), "lies at bytes"),
        (set_item("padded_bytes", 0, 1 << 50), "lies at bytes"),
        (set_item("bytes", 0, 4), "cannot have 4 bytes"),
        (set_item("dims", 0, 1 << 60), "cannot have"),
        (set_item("dtypes", 0, 99), "unknown element type 99"),
        (set_item("names", 0, "count"), "listed twice"),
        (lambda reply: reply.tensors.offsets.append(0), "different lengths"),
        (lambda reply: reply.tensors.dims.append(1), "dimensions are listed"),
        (flat("f", 18, 0, 1 << 60), "outside of the slab"),
        (flat("f", 18, 4, 1), "outside of the slab"),
        (flat("f", 99, 0, 1), "no known element type"),
        (lambda reply: reply.tensors.flat_names.append("f"), "different lengths"),
        (lambda reply: setattr(reply, "tensor_count", 3), "tensors arrived, 3 were announced"),
        (lambda reply: reply.memfd.segment_bytes.append(4096), "are announced for a slab"),
        (lambda reply: setattr(reply, "slab_bytes", 1 << 60), "more than any machine"),
        (lambda reply: setattr(reply, "lease", "checkpoints/other/leases/1"), "leases checkpoints/other"),
        (lambda reply: setattr(reply, "mode", 3), "lends it exclusive, not shared"),
        (lambda reply: setattr(reply, "mode", 99), "in a mode unknown here, not shared"),
    ],
)
def test_a_table_that_does_not_fit_its_slab_is_refused(daemon, client, source, bend, why):
    with pytest.raises(ckptd.DataLoss, match=why):
        acquire_bent(daemon, client, source, bend)


def test_a_refused_shard_leaves_nothing_mapped(daemon, client, source):
    with pytest.raises(ckptd.DataLoss):
        acquire_bent(daemon, client, source, set_item("offsets", 0, 1 << 40))
    gc.collect()
    assert mapped_segments() == 0


def test_a_refused_shard_is_given_back(daemon, client, source):
    with pytest.raises(ckptd.DataLoss):
        acquire_bent(daemon, client, source, set_item("offsets", 0, 1 << 40))
    assert "ReleaseShard" in daemon.calls


def test_a_segment_shorter_than_announced_is_refused_before_it_is_touched(daemon, client, source):
    def cut(fds):
        os.close(fds[0])
        fds[0] = os.memfd_create("fake-short")
        os.ftruncate(fds[0], mmap.PAGESIZE)
        return fds

    daemon.bend_segments = cut
    with pytest.raises(ckptd.DataLoss, match="has 4096 bytes"):
        client.acquire(client.load(source[0]))


def test_missing_descriptors_are_refused(daemon, client, source):
    daemon.bend_segments = without_the_last
    with pytest.raises(ckptd.DataLoss, match="announced for"):
        client.acquire(client.load(source[0]))


def test_surplus_descriptors_are_refused(daemon, client, source):
    daemon.bend_segments = lambda fds: fds + [os.dup(fds[0])]
    with pytest.raises(ckptd.DataLoss, match="announced for"):
        client.acquire(client.load(source[0]))


def test_refused_descriptors_are_closed(daemon, client, source):
    checkpoint = client.load(source[0])
    daemon.bend_segments = without_the_last
    before = open_memfds()
    with pytest.raises(ckptd.DataLoss):
        client.acquire(checkpoint)
    daemon.wait_for(lambda: open_memfds() == before)


def test_the_fd_socket_s_refusal_is_raised_with_its_sentence(daemon, client, source):
    daemon.fd_status = (16, "showing a token: it has expired; acquire again")
    with pytest.raises(ckptd.Unauthenticated, match="it has expired"):
        client.acquire(client.load(source[0]))


def test_a_silent_fd_socket_ends_at_the_deadline(daemon, client, source, monkeypatch):
    monkeypatch.setattr(daemon, "_send", lambda connection, fds: None)
    with pytest.raises(ckptd.DeadlineExceeded, match="fd socket"):
        client.acquire(client.load(source[0]), timeout=2)


def test_a_daemon_that_stands_still_before_it_hands_the_memory_over_is_given_up(
    daemon, client, source, monkeypatch
):
    from ckptd import _fds

    monkeypatch.setattr(daemon, "_send", lambda connection, fds: None)
    monkeypatch.setattr(_fds, "GONE_SECONDS", 0.1)
    with pytest.raises(ckptd.Unavailable, match="fd socket .* has not answered") as caught:
        client.acquire(client.load(source[0]))
    assert caught.value.reason == "DAEMON_UNREACHABLE"


def test_garbage_from_the_fd_socket_is_refused(daemon, client, source, monkeypatch):
    monkeypatch.setattr(
        daemon,
        "_send",
        lambda connection, fds: connection.sendall(struct.pack("<4sIII", b"HTTP", 0, 0, 0)),
    )
    with pytest.raises(ckptd.DataLoss, match="HTTP"):
        client.acquire(client.load(source[0]))


def test_an_fd_socket_that_is_gone_is_unavailable(daemon, client, source):
    def bend(reply):
        reply.memfd.fd_socket += ".gone"

    with pytest.raises(ckptd.Unavailable, match="still running"):
        acquire_bent(daemon, client, source, bend)


def test_a_further_name_on_a_later_page_refers_to_that_page():
    from ckptd import _proto
    from ckptd._table import Table

    table = Table("a table", 2048)
    for first in (0, 1):
        page = _proto.message("TensorTable")(
            names=[f"t{2 * first}", f"t{2 * first + 1}"],
            dtypes=[5, 5],
            ranks_of_shape=[1, 1],
            dims=[1, 1],
            offsets=[1024 * first, 1024 * first + 512],
            bytes=[1, 1],
            padded_bytes=[1, 1],
            alias_names=[f"tied{first}"],
            alias_tensors=[1],
        )
        table.add_page(page)
    table.finish(4)
    assert [table.names[table.index[f"tied{first}"]] for first in (0, 1)] == ["t1", "t3"]


def receive_cut(count, limit):
    """What the client says of a message with `count` descriptors, of which `limit` find room."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ours, theirs, open(os.devnull) as file:
        fds = struct.pack(f"{count}i", *[file.fileno()] * count)
        theirs.sendmsg([b"x" * 16], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
        try:
            _fds._receive_message(ours, "/fd.sock")
        except ckptd.Error as error:
            return error
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_descriptors_that_this_process_has_no_room_for_are_its_own_trouble():
    error = receive_cut(1, 0)
    assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "NO_MEMORY")
    assert "ulimit -n" in error.message


def test_more_descriptors_than_a_message_may_have_are_the_daemon_s():
    before = open_links(os.getpid()).count(os.devnull)
    assert receive_cut(129, None).reason == "INVALID_REPLY"
    assert open_links(os.getpid()).count(os.devnull) == before
