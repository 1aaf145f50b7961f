"""Which files a client passes to a foreign daemon, and how."""

import json
import logging
import os
import socket
import struct
import threading
from types import SimpleNamespace

import pytest
from ckptd import _passing
from ckptd._rpc import Deadline


def names_of(source):
    return [os.path.relpath(path, source) for path in _passing.files_of(str(source))]


def test_a_file_is_passed_alone_and_one_that_cannot_be_opened_is_not(tmp_path):
    file = tmp_path / "m.safetensors"
    file.write_bytes(b"bytes")
    assert _passing.files_of(str(file)) == [str(file)]
    assert _passing.files_of(str(tmp_path / "none")) == []
    os.mkfifo(tmp_path / "pipe")
    assert _passing.files_of(str(tmp_path / "pipe")) == []


def test_of_a_folder_all_files_are_passed(tmp_path):
    for name in ("config.json", "m.safetensors", "pytorch_model.bin"):
        (tmp_path / name).write_bytes(b"{}")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.safetensors").symlink_to("m.safetensors")
    (tmp_path / "dangling").symlink_to("none")
    assert names_of(tmp_path) == ["config.json", "link.safetensors", "m.safetensors", "pytorch_model.bin"]


def test_folders_in_a_folder_are_passed_with_it_if_they_are_not_too_many(tmp_path, monkeypatch):
    for name in ("a.bin", "step/b.bin", "step/rank/c.bin", ".cache/d.bin", "1/2/3/4/e.bin"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "step/round").symlink_to("..")
    names = names_of(tmp_path)
    assert names[:3] == ["a.bin", "step/b.bin", "step/rank/c.bin"] and "step/round/a.bin" in names
    assert not {".cache/d.bin", "1/2/3/4/e.bin"} & set(names)
    monkeypatch.setattr(_passing, "_MOST_FILES", 2)
    assert names_of(tmp_path) == ["a.bin", "step/b.bin"]


def test_what_an_index_names_is_passed_with_it(tmp_path):
    (tmp_path / "parts").mkdir()
    for name in ("a", "b"):
        (tmp_path / "parts" / name).write_bytes(b"bytes")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"v": "parts/a", "w": "parts/b", "x": "parts/none"}}))
    assert names_of(tmp_path) == [index.name, "parts/a", "parts/b"]
    assert _passing.files_of(str(index))[1:] == [str(tmp_path / "parts/a"), str(tmp_path / "parts/b")]


@pytest.mark.parametrize("text", ["", "[1]", '{"weight_map": 3}', '{"weight_map": {"w": 3}}', "\x00"])
def test_an_index_that_is_none_is_passed_as_it_is(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    assert names_of(tmp_path) == ["model.safetensors.index.json"]


@pytest.fixture
def daemon(tmp_path):
    """Takes one connection: .header, .text and .fds of what came; answers with .answer, then reads to its end."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "fd.sock"))
    listener.listen()
    took = SimpleNamespace(text=b"", fds=[], answer=struct.pack("<4sIII", b"CKP1", 0, 0, 0), ended=False)

    def serve():
        connection, _ = listener.accept()
        with connection:
            took.header = struct.unpack("<8sIII12x", connection.recv(32))
            while len(took.text) < took.header[3]:
                data, fds, _, _ = socket.recv_fds(connection, took.header[3] - len(took.text), 200)
                took.text += data
                took.fds += fds
            connection.sendall(took.answer)
            took.ended = connection.recv(1) == b""

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    reply = SimpleNamespace(fd_socket=str(tmp_path / "fd.sock"), rank=3)
    connection = SimpleNamespace(call=lambda *_: reply, address=SimpleNamespace(path=str(tmp_path / "rank.sock")))
    took.passing = _passing.Passing(connection, True)
    took.join = lambda: thread.join(60)
    yield took
    listener.close()
    for fd in took.fds:
        os.close(fd)


@pytest.mark.parametrize("count", [1, 200])
def test_each_path_comes_with_its_descriptor_and_the_connection_lasts_as_long_as_the_block(
    tmp_path, daemon, monkeypatch, count
):
    monkeypatch.setenv("MASTER_PORT", "1234")
    folder = tmp_path / "models"
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:03}").write_text(str(number))
    with daemon.passing.files(str(folder), Deadline(60)) as passed:
        assert passed and daemon.passing.rank == 3 and not daemon.ended
        magic, files, job, size = daemon.header
        assert (magic, files, job, size) == (b"CKPTDFDS", count, 32, len(daemon.text))
        paths = daemon.text[job:].decode().split("\0")
        assert paths == [*(str(folder / f"{number:03}") for number in range(count)), ""]
        assert [os.pread(fd, 8, 0).decode() for fd in daemon.fds] == [str(number) for number in range(count)]
    daemon.join()
    assert daemon.ended


def test_a_daemon_that_takes_no_files_is_asked_without_them(tmp_path, daemon, caplog):
    sentence = b"the token is unknown"
    daemon.answer = struct.pack("<4sIIII", b"CKP1", 16, 0, 0, len(sentence)) + sentence
    (tmp_path / "m").write_bytes(b"bytes")
    with caplog.at_level(logging.WARNING), daemon.passing.files(str(tmp_path / "m"), Deadline(60)) as passed:
        assert not passed
    assert "the token is unknown" in caplog.text


def test_the_daemon_of_this_user_gets_no_descriptors(tmp_path, daemon):
    (tmp_path / "m").write_bytes(b"bytes")
    daemon.passing.foreign = False
    with daemon.passing.files(str(tmp_path / "m"), Deadline(60)) as passed:
        assert not passed and daemon.fds == []
