"""Files that change, vanish or deceive: an error by name, and nothing half loaded."""

import json
import os
import pathlib
import shutil

import ckptd
import pytest
from faults import (
    assert_loads,
    assert_nothing_is_left,
    load_everywhere,
    sparse,
    unload_everywhere,
)
from group import SOON, Daemon, Group, wait_until
from holds import held_at


def cut(path):
    os.truncate(path, os.path.getsize(path) // 2)


def empty(path):
    os.truncate(path, 0)


def replace(path):
    shutil.copy(path, path + ".new")
    os.replace(path + ".new", path)


def remove(path):
    os.remove(path)


def overwrite(path):
    with open(path, "r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"another")


def overwrite_and_set_the_time_back(path):
    before = os.stat(path)
    now = before
    while now.st_ctime_ns == before.st_ctime_ns:  # clocks of file systems tick in milliseconds
        overwrite(path)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        now = os.stat(path)
    assert (now.st_mtime_ns, now.st_size, now.st_ino) == (
        before.st_mtime_ns,
        before.st_size,
        before.st_ino,
    )


def become_a_pipe(path):
    os.remove(path)
    os.mkfifo(path)


def become_a_folder(path):
    os.remove(path)
    os.mkdir(path)


CHANGES = [
    cut,
    empty,
    replace,
    remove,
    overwrite,
    overwrite_and_set_the_time_back,
    become_a_pipe,
    become_a_folder,
]


def restore(path):
    if os.path.isdir(path):
        os.rmdir(path)
    elif os.path.lexists(path):
        os.remove(path)
    sparse(pathlib.Path(path), 1 << 20)


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    """A group whose daemons must outlive every change."""
    with Group(tmp_path_factory.mktemp("c"), 2) as group:
        pids = [group.pid(rank) for rank in range(2)]
        yield group
        assert [group.pid(rank) for rank in range(2)] == pids


def assert_half_of_nothing(group, path):
    """No rank shows the checkpoint as loaded, or hands it out."""
    for rank in range(group.ranks):
        with ckptd.connect(group.address(rank)) as client:
            found = [c for c in client.list() if c.source == path]
            assert found and all(c.state == "FAILED" for c in found), found
            with pytest.raises(ckptd.Error) as caught:
                client.acquire(found[0])
            assert caught.value.reason == "LOAD_FAILED"
        wait_until(lambda: int(group.info(rank)["memory"]["used_bytes"]) == 0, "who read to let go of the memory")


def cached(folder):
    """What lies in the page cache is read through a mapping: a cut is a SIGBUS there."""
    path = sparse(folder / "cached.safetensors", 256 << 20)
    with open(path, "rb") as file:
        while file.read(1 << 24):
            pass
    return path


def change_at(group, stage, folder, make, change):
    """Changes the file of a load in `stage`: (path, what each rank's client got).

    The last byte may have been read between the sight of the stage and the stop:
    such a load is fine, and another one is tried.
    """
    for attempt in range(10):
        with held_at(group, stage, folder / str(attempt), make=make) as (path, loads, _):
            change(path)
        outcomes = [loading.outcome(SOON) for loading in loads]
        if any(isinstance(outcome, ckptd.Error) for outcome in outcomes):
            return path, outcomes
        unload_everywhere(group)
    raise AssertionError(f"ten loads did not notice the change while {stage}")


@pytest.mark.parametrize(
    "stage, make",
    [("PLANNING", None), ("TRANSFERRING", None), ("TRANSFERRING", cached)],
    ids=["while planning", "while reading", "while reading from the page cache"],
)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_file_that_changes_during_the_load_fails_it_on_all_ranks_by_name(
    readers, tmp_path, change, stage, make
):
    path, errors = change_at(readers, stage, tmp_path, make, change)
    for error in errors:
        assert isinstance(error, ckptd.Error), error
        assert path in error.message and error.reason in (
            "SOURCE_CHANGED",
            "SOURCE_NOT_FOUND",
        ), error
    assert_half_of_nothing(readers, path)
    restore(path)
    assert_loads(readers, path)
    assert_nothing_is_left(readers)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_resident_file_that_was_rewritten_under_its_old_time_is_read_again(
    readers, tmp_path, rank
):
    """`touch -r` hides a writer from size and mtime, not from ctime."""
    path = sparse(tmp_path / "model.safetensors", 1 << 16)
    with ckptd.connect(readers.address(rank)) as client:
        first = client.load(path, layout="replicate:2")
        assert client.load(path, layout="replicate:2").name == first.name
        overwrite_and_set_the_time_back(path)
        second = client.load(path, layout="replicate:2")
        assert second.name != first.name
        with client.acquire(second) as shard:
            assert b"another" in bytes(shard.tensors["hole"].buffer)
        with client.acquire(first) as shard:
            assert not any(bytes(shard.tensors["hole"].buffer))
    for name in (first.name, second.name):
        for held_by in range(2):
            readers.unload(name, held_by)


def pipe(folder):
    os.mkfifo(folder / "pipe.safetensors")
    return folder / "pipe.safetensors"


def device(folder):
    (folder / "device.safetensors").symlink_to("/dev/zero")
    return folder / "device.safetensors"


def pipe_in_a_folder(folder):
    os.mkfifo(folder / "model.safetensors")
    return folder


def index_that_names(name):
    def make(folder):
        sparse(folder / "inside" / "a.safetensors")
        sparse(folder / "outside.safetensors")
        index = {
            "metadata": {},
            "weight_map": {"hole": "a.safetensors", "mark": name.format(folder=folder)},
        }
        path = folder / "inside" / "model.safetensors.index.json"
        path.write_text(json.dumps(index))
        return path

    return make


def index_that_is_a_pipe(folder):
    os.mkfifo(folder / "model.safetensors.index.json")
    return folder / "model.safetensors.index.json"


@pytest.mark.parametrize(
    "make, names",
    [
        (pipe, "pipe"),
        (device, "device"),
        (pipe_in_a_folder, "pipe"),
        (index_that_is_a_pipe, "pipe"),
        (index_that_names("missing.safetensors"), "missing.safetensors"),
        (index_that_names("{folder}/outside.safetensors"), "outside.safetensors"),
        (index_that_names("../outside.safetensors"), "../outside.safetensors"),
        (index_that_names("x/../../outside.safetensors"), "outside.safetensors"),
    ],
    ids=[
        "a pipe",
        "a device",
        "a pipe in a folder",
        "an index that is a pipe",
        "an index of a missing file",
        "an index of an absolute path",
        "an index that climbs out",
        "an index that climbs out later",
    ],
)
def test_what_is_no_checkpoint_is_refused_on_all_ranks_by_name(readers, tmp_path, make, names):
    path = str(make(tmp_path))
    for loading in load_everywhere(readers, path):
        error = loading.outcome(SOON)
        assert isinstance(error, ckptd.Error) and names in error.message, error
        assert error.reason in ("SOURCE_INVALID", "SOURCE_NOT_FOUND"), error
    assert_half_of_nothing(readers, path)
    for verb in ("inspect", "plan"):
        with ckptd.connect(readers.address(1)) as client:
            with pytest.raises(ckptd.Error):
                (
                    client.inspect(path)
                    if verb == "inspect"
                    else client.plan(path, layout="replicate:2")
                )


# Root reads everything: not without these two capabilities.
WITHOUT_PRIVILEGE = (
    ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
)


@pytest.fixture
def unprivileged(tmp_path):
    with Daemon(tmp_path, wrapper=WITHOUT_PRIVILEGE) as daemon:
        yield daemon


def sharded(folder, hole):
    """Two files and their index: the second one is opened when the first one has been read."""
    first, second = sparse(folder / "a.safetensors", hole), folder / "b.safetensors"
    header = json.dumps({"last": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}).encode()
    second.write_bytes(len(header).to_bytes(8, "little") + header + b"finished")
    index = folder / "model.safetensors.index.json"
    index.write_text(
        json.dumps(
            {
                "metadata": {},
                "weight_map": {
                    "hole": "a.safetensors",
                    "mark": "a.safetensors",
                    "last": "b.safetensors",
                },
            }
        )
    )
    return str(first), str(second), str(index)


def test_a_file_that_cannot_be_read_is_named_and_loads_once_it_can(unprivileged, tmp_path):
    _, second, index = sharded(tmp_path, 1 << 20)
    os.chmod(second, 0)
    with ckptd.connect(unprivileged.address(0)) as client:
        with pytest.raises(ckptd.Error) as caught:
            client.load(index, layout="fsdp:1")
        assert (caught.value.code, caught.value.reason) == (
            "PERMISSION_DENIED",
            "SOURCE_UNREADABLE",
        )
        assert second in caught.value.message
        os.chmod(second, 0o600)
        with client.acquire(client.load(index, layout="fsdp:1")) as shard:
            assert bytes(shard.tensors["last"].buffer) == b"finished"


def test_a_file_that_becomes_unreadable_during_the_load_is_named(unprivileged, tmp_path):
    def make(folder):
        folder.mkdir()
        return sharded(folder, 256 << 20)[2]

    with held_at(unprivileged, "TRANSFERRING", tmp_path, make=make) as (index, loads, pid):
        second = os.path.join(os.path.dirname(index), "b.safetensors")
        os.chmod(second, 0)
    error = loads[0].outcome(SOON)
    assert isinstance(error, ckptd.Error) and second in error.message, error
    assert (error.code, error.reason) == ("PERMISSION_DENIED", "SOURCE_UNREADABLE")
    os.chmod(second, 0o600)
    with ckptd.connect(unprivileged.address(0)) as client:
        assert client.load(index, layout="fsdp:1").state == "ACTIVE"
    assert unprivileged.pid(0) == pid
