"""Calls, their deadlines and their errors."""

import concurrent.futures
import dataclasses
import os
import pathlib
import pickle
import socket
import threading
import time
import traceback
import types

import ckptd
import grpc
import numpy as np
import pytest
from ckptd import _address, _proto, _rpc, _types, _waiting
from fake_daemon import FakeDaemon, Refusal

NO_PROGRESS = _types.progress_of(_proto.message("Progress")())
NO_CHECKPOINT = _types.checkpoint_of(_proto.message("Checkpoint")())


def test_a_load_waits_until_the_checkpoint_is_active(client, source):
    assert client.load(source[0]).state == "ACTIVE"


def test_a_second_load_finds_the_resident_checkpoint(client, source):
    first = client.load(source[0])
    second = client.load(source[0])
    assert (second.resident, second.name) == (True, first.name)


def test_progress_is_reported_while_waiting(daemon, client, source):
    daemon.stay_loading = True
    seen = []

    def note(progress):
        seen.append(progress)
        with daemon.lock:
            daemon.stay_loading = False
            daemon.lock.notify_all()

    client.load(source[0], progress=note)
    assert seen[0].waiting_ranks == (3, 5)


def test_a_load_that_waits_for_ranks_says_so_once(daemon, client, source, caplog, monkeypatch):
    monkeypatch.setattr(_waiting, "_SAY_AFTER", 0.05)
    daemon.stay_loading, daemon.watch_silence = True, 0.01
    after = []

    def note(_):
        if caplog.records:
            after.append(1)
        if len(after) == 20:
            with daemon.lock:
                daemon.stay_loading = False
                daemon.lock.notify_all()

    client.load(source[0], progress=note, timeout=20)
    said = [record.getMessage() for record in caplog.records if record.name == "ckptd"]
    assert len(said) == 1 and "still waiting, after 0 s, for ranks 3, 5 to take part" in said[0]
    assert said[0].startswith(f"loading {source[0]}: ")


def test_a_load_that_waits_for_others_than_before_waits_anew(monkeypatch, caplog):
    now = [0.0]
    monkeypatch.setattr(_waiting, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    reminder = _waiting.Reminder("loading m", 600)
    for seconds, ranks in ((0, (1, 2)), (5, (2,)), (10, (2,)), (12, ()), (19, ()), (20, (2,)), (27, (2,)), (40, (2,))):
        now[0] = seconds
        progress = dataclasses.replace(NO_PROGRESS, waiting_ranks=ranks)
        reminder.look(dataclasses.replace(NO_CHECKPOINT, progress=progress))
    assert [record.getMessage() for record in caplog.records] == [
        "loading m: still waiting, after 7 s, for rank 2 to take part (a daemon that joins the group, or a trainer "
        "that makes the same load); it gives up after 600 s"]


def test_who_waits_with_other_wishes_than_a_resident_load_hears_in_what_they_differ():
    progress = dataclasses.replace(NO_PROGRESS, waiting_ranks=(0,), conflict="rank 0 loads /b")
    waits = dataclasses.replace(NO_CHECKPOINT, progress=progress, differs=("layout",))
    assert waits.waits_for == ("rank 0 to take part (rank 0 loads /b); another load of this source is resident, and "
                               "this one differs in: layout")
    assert dataclasses.replace(waits, progress=NO_PROGRESS).waits_for == NO_PROGRESS.waits_for


def test_what_a_load_waits_for_names_a_slow_file_beside_the_slow_rank():
    message = _proto.message("Progress")(stage=6, slowest_rank=3)
    message.slowest_file.path, message.slowest_file.bytes_per_second = "/m/model-2.safetensors", 12.5
    progress = _types.progress_of(message)
    assert progress.waits_for == "transferring, rank 3 is the slowest, /m/model-2.safetensors is a slow file"
    assert progress.slowest_file_bytes_per_second == 12.5
    message.ClearField("slowest_file")
    assert _types.progress_of(message).waits_for == "transferring, rank 3 is the slowest"


def test_a_load_that_does_not_end_names_the_ranks_it_waits_for(daemon, client, source):
    daemon.stay_loading = True
    with pytest.raises(ckptd.DeadlineExceeded, match="ranks 3, 5 to take part .a daemon that"):
        client.load(source[0], timeout=2)


def test_the_deadline_of_a_load_is_kept(daemon, client, source):
    daemon.stay_loading = True
    start = time.monotonic()
    with pytest.raises(ckptd.DeadlineExceeded):
        client.load(source[0], timeout=0.5)
    assert time.monotonic() - start < 30


def test_a_deadline_is_also_a_timeout_error(daemon, client, source):
    daemon.stay_loading = True
    with pytest.raises(TimeoutError):
        client.load(source[0], timeout=0.3)


@pytest.mark.parametrize(
    "timeout,said",
    [(600, "600 s"), (7.99783, "8 s"), (12.54, "12.5 s"), (0.1, "0.1 s"), (0.0499, "0.05 s"), (0, "0 s")],
)
def test_a_deadline_says_its_seconds_as_a_person_would(timeout, said):
    error = _rpc.Deadline(timeout).exceeded("loading m", "rank 1")
    assert error.message.startswith(f"loading m: not done after {said}, still waiting for rank 1;")


def test_the_layout_travels_as_rules(daemon, client, source):
    client.load(source[0], layout="fsdp:4")
    assert daemon.requests[0].spec.layout.rules == "fsdp:4"


def test_a_dict_layout_travels_as_json(daemon, client, source):
    client.load(source[0], layout={"mesh": [2]})
    assert daemon.requests[0].spec.layout.rules == '{"mesh": [2]}'


def test_no_layout_is_a_full_copy_on_each_rank(daemon, client, source, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    client.load(source[0])
    assert daemon.requests[0].spec.layout.rules == "replicate:4"


def test_a_layout_of_another_kind_is_refused(client, source):
    with pytest.raises(ckptd.InvalidArgument, match="list is no layout"):
        client.load(source[0], layout=[2])


def test_dtype_and_exceptions_travel_as_policy(daemon, client, source):
    client.load(source[0], dtype="bfloat16", keep_fp32=["*.norm.*"])
    policy = daemon.requests[0].spec.dtype_policy
    assert (policy.cast_to, list(policy.keep_f32)) == (15, ["*.norm.*"])


def test_an_unknown_dtype_is_refused_with_the_known_ones(client, source):
    with pytest.raises(ckptd.InvalidArgument, match="BF16"):
        client.load(source[0], dtype="int3")


def test_an_unknown_mode_is_refused_with_the_known_ones(client, source):
    with pytest.raises(ckptd.InvalidArgument, match="'shared'"):
        client.load(source[0], mode="borrowed")


def test_a_checkpoint_that_was_taken_meanwhile_is_said_to_be(daemon, client, source):
    daemon.settled = 4
    with pytest.raises(ckptd.FailedPrecondition, match="EXCLUSIVE client has taken") as caught:
        client.load(source[0])
    assert caught.value.reason == "TAKEN"


def test_a_relative_source_is_made_absolute(daemon, client, source, monkeypatch):
    monkeypatch.chdir(os.path.dirname(source[0]))
    client.load("model.safetensors")
    assert daemon.requests[0].spec.source == source[0]


@pytest.mark.parametrize("form", [os.fsencode, os.fspath, pathlib.Path])
def test_what_follows_a_link_upwards_is_beside_where_the_link_leads(daemon, client, source, tmp_path, form):
    (tmp_path / "far" / "folder").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "folder")
    # The name of a link to a file may say what the file is: it stays.
    (tmp_path / "far" / "same.safetensors").symlink_to(source[0])
    client.load(form(f"{tmp_path}/link/.././same.safetensors/"))
    assert daemon.requests[0].spec.source == f"{tmp_path}/far/same.safetensors"


@pytest.mark.parametrize("call", ["load", "inspect", "check_readable", "plan"])
@pytest.mark.parametrize("form", [os.fsdecode, bytes])
def test_a_source_whose_name_is_not_utf8_is_sent_as_a_uri(client, call, form):
    with pytest.raises(ckptd.NotFound) as caught:
        getattr(client, call)(form(b"/models/m%\xff.safetensors"))
    assert caught.value.facts["file"] == "file:///models/m%25%FF.safetensors"


@pytest.mark.parametrize("form", [os.fsencode, pathlib.Path, lambda path: "file://" + path])
def test_a_source_may_be_named_by_a_path_of_any_kind_or_a_uri(daemon, client, source, form):
    client.load(form(source[0]))
    assert daemon.requests[0].spec.source == source[0]


def test_a_uri_in_bytes_that_are_not_utf8_is_a_path(client):
    with pytest.raises(ckptd.NotFound) as caught:
        client.load(b"file:///models/m\xff%25")
    assert caught.value.facts["file"] == "file:///models/m%FF%25"


def test_an_empty_source_is_the_daemon_s_to_refuse(client):
    with pytest.raises(ckptd.Error) as caught:
        client.load("")
    assert caught.value.facts["file"] == ""


def test_an_error_carries_code_reason_sentence_and_facts(client, tmp_path):
    missing = str(tmp_path / "nothing.safetensors")
    with pytest.raises(ckptd.NotFound) as caught:
        client.load(missing)
    error = caught.value
    assert (error.code, error.reason, error.facts["file"]) == (
        "NOT_FOUND",
        "SOURCE_NOT_FOUND",
        missing,
    )
    assert error.message.endswith("check the path")


@pytest.mark.parametrize(
    "number,kind",
    [
        (3, ckptd.InvalidArgument),
        (8, ckptd.ResourceExhausted),
        (9, ckptd.FailedPrecondition),
        (14, ckptd.Unavailable),
        (15, ckptd.DataLoss),
        (10, ckptd.Aborted),
    ],
)
def test_every_code_has_its_class(daemon, client, source, number, kind):
    daemon.fail_next["LoadCheckpoint"] = [Refusal(number, "SOME_REASON", "sentence")]
    with pytest.raises(kind) as caught:
        client.load(source[0])
    assert caught.value.reason == "SOME_REASON"


def test_errors_survive_pickling():
    error = ckptd.NotFound("doing: why; try", "SOURCE_NOT_FOUND", {"file": "f"})
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.message, copy.reason, copy.facts) == (
        ckptd.NotFound,
        error.message,
        error.reason,
        error.facts,
    )


def test_errors_print_under_the_names_that_users_catch_them_by():
    kinds = [getattr(ckptd, name) for name in ckptd.__all__]
    kinds = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, ckptd.Error)]
    assert len(kinds) == 17
    for kind in kinds:
        printed = traceback.format_exception_only(kind, kind("doing: why; try"))
        assert printed[0].startswith(f"ckptd.{kind.__name__}: doing: why; try [")
        assert type(pickle.loads(pickle.dumps(kind("")))) is kind


class NoCalls(grpc.GenericRpcHandler):
    """Knows no call, and says no word about it, as servers in C++ do."""

    def service(self, _):
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: context.abort(grpc.StatusCode.UNIMPLEMENTED, "")
        )


@pytest.mark.parametrize(
    "name,advice",
    [
        ("rank-3.admin.sock", "use the workload socket {folder}/rank-3.sock"),
        ("rank-3.sock", "update the daemon, or name another socket with address="),
    ],
)
def test_a_socket_that_serves_something_else_is_told_from_the_workload_socket(tmp_path, name, advice):
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1), handlers=[NoCalls()])
    server.add_insecure_port(f"unix:{tmp_path / name}")
    server.start()
    try:
        with ckptd.connect(str(tmp_path / name)) as client, pytest.raises(ckptd.Unimplemented) as caught:
            client.list()
    finally:
        server.stop(0).wait(5)
    message = caught.value.message
    assert f"at unix:{tmp_path / name} (given as address): this socket serves another service" in message
    assert message.endswith(advice.format(folder=tmp_path))


def test_a_broken_connection_is_retried_under_the_same_request_id(daemon, client, source):
    daemon.fail_next["LoadCheckpoint"] = [
        Refusal(14, "", "connection reset"),
        Refusal(14, "", "again"),
    ]
    client.load(source[0])
    assert daemon.calls.count("LoadCheckpoint") == 3


class NoThread:
    """As gRPC's server answers by itself, in C++."""

    code = staticmethod(lambda: grpc.StatusCode.RESOURCE_EXHAUSTED)
    details = staticmethod(lambda: "Server Threadpool Exhausted")
    trailing_metadata = staticmethod(tuple)


def test_a_daemon_without_a_thread_for_a_call_is_busy():
    connection = _rpc.Connection(_address.resolve("/s"))
    error = connection.translate(NoThread(), "loading", _rpc.Deadline(1))
    assert isinstance(error, ckptd.ResourceExhausted) and error.reason == "TOO_MANY_WAITING"
    assert "ask again later" in error.message


def test_two_loads_have_different_request_ids(daemon, client, source):
    client.load(source[0])
    client.load(source[0])
    assert len({request.request_id for request in daemon.requests}) == 2


def test_a_draining_daemon_is_not_asked_again(daemon, client, source):
    daemon.fail_next["LoadCheckpoint"] = [Refusal(14, "DRAINING", "the daemon drains")]
    with pytest.raises(ckptd.Unavailable):
        client.load(source[0])
    assert daemon.calls.count("LoadCheckpoint") == 1


def test_a_broken_watch_goes_on(daemon, client, source):
    daemon.stay_loading = True
    daemon.fail_next["WatchCheckpoint"] = [Refusal(14, "", "connection reset")]

    def finish(_):
        with daemon.lock:
            daemon.stay_loading = False
            daemon.lock.notify_all()

    assert client.load(source[0], progress=finish).state == "ACTIVE"


NO_MORE_WATCHES = Refusal(8, "TOO_MANY_WAITING", "64 watches are open; poll GetCheckpoint instead")


def test_a_load_that_nobody_more_may_watch_is_asked_for_from_time_to_time(daemon, client, source):
    daemon.stay_loading = True
    daemon.fail_next["WatchCheckpoint"] = [NO_MORE_WATCHES]
    states = []

    def finish(_):
        states.append(client.get(client.list()[0]).state)
        with daemon.lock:
            daemon.stay_loading = False
            daemon.lock.notify_all()

    assert client.load(source[0], progress=finish).state == "ACTIVE"
    assert states == ["LOADING", "ACTIVE"] and daemon.calls.count("WatchCheckpoint") == 1


def test_a_load_that_is_asked_for_from_time_to_time_keeps_its_deadline(daemon, client, source):
    daemon.stay_loading = True
    daemon.fail_next["WatchCheckpoint"] = [NO_MORE_WATCHES]
    began = time.monotonic()
    with pytest.raises(ckptd.DeadlineExceeded) as caught:
        client.load(source[0], timeout=2)
    assert 2 <= time.monotonic() - began < 30 and "ranks 3, 5" in caught.value.message


def test_a_watch_that_a_daemon_has_no_room_for_yields_what_it_asks(daemon, client, source):
    name = client.load(source[0]).name
    daemon.stay_loading = True
    daemon.fail_next["WatchCheckpoint"] = [NO_MORE_WATCHES]
    watch = client.watch(name)
    assert next(watch).state == "LOADING"
    daemon.stay_loading = False
    assert [checkpoint.state for checkpoint in watch] == ["ACTIVE"]


def test_an_absent_daemon_is_named_with_the_way_it_was_chosen(tmp_path, monkeypatch):
    monkeypatch.setenv("CKPTD_ADDRESS", str(tmp_path / "none.sock"))
    with pytest.raises(
        ckptd.Unavailable, match="none.sock.*from CKPTD_ADDRESS.*no socket is there"
    ) as caught:
        ckptd.connect(wait=0)
    assert caught.value.reason == "DAEMON_UNREACHABLE"


def test_a_dead_daemon_s_socket_is_told_from_a_missing_one(tmp_path):
    path = str(tmp_path / "dead.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
    with pytest.raises(ckptd.Unavailable, match="no daemon listens"):
        ckptd.connect(path, wait=0)


def test_a_daemon_that_stands_still_is_told_from_a_dead_one(tmp_path, monkeypatch):
    monkeypatch.setattr(_rpc, "GONE_SECONDS", 0.1)  # no second try
    path = str(tmp_path / "still.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        client = ckptd.connect(path, wait=10)
        with client, pytest.raises(ckptd.Unavailable, match="does not answer") as caught:
            client.list()
    assert caught.value.reason == "DAEMON_UNREACHABLE"


class Elapsed:
    """A clock of which only what is slept through passes."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.mark.parametrize("given, seconds", [({}, 5), ({"wait": 30}, 30)])
def test_that_no_daemon_is_there_is_said_after_five_seconds_or_as_many_as_are_given(
    tmp_path, monkeypatch, given, seconds
):
    clock = Elapsed()
    monkeypatch.setattr(_address, "time", clock)
    sentence = rf"none came within {seconds} s \(`ckptd.connect\(wait=60\)` waits longer\)"
    with pytest.raises(ckptd.Unavailable, match=sentence):
        ckptd.connect(str(tmp_path / "none.sock"), **given)
    assert clock.now == pytest.approx(seconds, abs=0.1)


def test_connect_waits_for_a_daemon_that_is_still_starting(tmp_path):
    daemon = FakeDaemon(str(tmp_path))
    starter = threading.Timer(0.2, daemon.__enter__)
    starter.start()
    try:
        with ckptd.connect(daemon.path, wait=10) as client:
            assert client.list() == []
    finally:
        starter.join()
        daemon.__exit__()


def test_list_reads_every_page(client, source):
    names = {client.load(source[0], dtype=dtype).name for dtype in (None, "BF16", "F64")}
    assert {checkpoint.name for checkpoint in client.list()} == names


def test_inspect_reads_every_page(client, source):
    inspected = client.inspect(source[0])
    assert {name: t.shape for name, t in inspected.tensors.items()} == {
        name: array.shape for name, array in source[1].items()
    }


def test_inspect_never_mixes_pages_of_two_files(client, daemon, source):
    real = daemon.InspectCheckpoint

    def replaced_after_the_first_page(request):
        if request.page_token:
            os.utime(source[0], ns=(1, 1))
        return real(request)

    daemon.page, daemon.InspectCheckpoint = 1, replaced_after_the_first_page
    with pytest.raises(ckptd.Aborted, match="between two pages.*inspect it again") as error:
        client.inspect(source[0])
    assert error.value.reason == "SOURCE_CHANGED"


def test_get_takes_a_bare_id(client, source):
    loaded = client.load(source[0])
    assert client.get(loaded.name.split("/")[1]).name == loaded.name


def test_plan_gives_bytes_per_rank_and_file(client, source):
    plan = client.plan(source[0], layout="fsdp:1")
    assert (plan.ranks[0].tensor_bytes, plan.files[0]) == (11, (source[0], 11))


def test_verify_names_what_differs(client, source):
    verification = client.verify(client.load(source[0]))
    assert (verification.ok, verification.mismatched, verification.rank) == (False, ("w",), 0)
    assert verification.files == ("/models/a.safetensors",)


def test_a_closed_client_opens_again_on_the_next_call(client):
    client.list()
    client.close()
    assert client.list() == []


def test_threads_can_share_a_client(client, source):
    client.load(source[0])
    failures = []

    def work():
        try:
            for _ in range(20):
                assert len(client.list()) == 1
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def test_a_rank_gets_the_boxes_it_states_one_after_another(client, source):
    path, tensors = source
    layout = ckptd.RankLayout(0, 1)
    layout.shardings.append(ckptd.Sharding(boxes=(((3, 5), (2, 7)), ((0, 5), (1, 7)))))
    layout.add("big", (300, 400), 0)
    with client.acquire(client.load(path, layout=layout)) as shard:
        big = tensors["big"]
        assert np.array_equal(
            shard.tensors["big"].numpy(), np.concatenate([big[3:5, 5:12], big[0:1, 5:12]])
        )
