"""timeout= of an operation is that of each call it makes: neither less nor more than what is left of it."""

import time

import ckptd
import pytest

torch = pytest.importorskip("torch")

import ckptd.torch  # noqa: E402
from ckptd import _client, _rpc  # noqa: E402
from fsdp_bench import Net, numbers  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint import state_dict as torch_state_dict  # noqa: E402

SLOW = 1  # seconds that each call takes by the clock of deadlines, so that the next one has less
UNTIMED = 30  # seconds of calls that are given none


class Clock:
    """In the place of deadlines' own: goes on as told, and not by itself."""

    sleep = staticmethod(time.sleep)

    def __init__(self):
        self.ahead = float(int(time.monotonic()))  # whole seconds are added and taken away exactly

    def monotonic(self):
        return self.ahead


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(_rpc, "time", Clock())
    return _rpc.time


@pytest.fixture
def asked(daemon, monkeypatch, clock):
    """[(method, seconds its caller waits)], of every call since; each takes a while."""
    calls, callable_of = [], _rpc.Connection._callable
    daemon.page = 100  # names in one reply

    def noting(connection, method):
        call = callable_of(connection, method)

        def timed(request, timeout):
            calls.append((method, timeout))
            clock.ahead += SLOW
            return call(request, timeout=timeout)

        return timed

    monkeypatch.setattr(_rpc.Connection, "_callable", noting)
    return calls


@pytest.fixture
def path(tmp_path):
    """Of a Net."""
    save_file(numbers(Net()), tmp_path / "net.safetensors", metadata={"format": "pt"})
    return str(tmp_path / "net.safetensors")


def assert_kept(asked, timeout, *methods):
    """That just these calls were made, each with what was left of `timeout`."""
    assert [method for method, _ in asked] == list(methods)
    for number, (_, seconds) in enumerate(asked):
        left = timeout - number * SLOW
        assert left - 5 < seconds <= left, asked  # some ask for less


LOAD = ("ListCheckpoints", "LoadCheckpoint", "AcquireShard")  # a process that is no rank asks for the group's size
BOTH = pytest.mark.parametrize("timeout", [8, 600])


@BOTH
def test_load_into_of_a_model_that_is_nowhere_yet(daemon, asked, tmp_path, timeout):
    model = nn.Linear(2, 2, device="meta")
    save_file(numbers(nn.Linear(2, 2)), tmp_path / "m.safetensors")
    ckptd.torch.load_into(model, tmp_path / "m.safetensors", address=daemon.path, timeout=timeout)
    assert_kept(asked, timeout, "ListCheckpoints", *LOAD)


class Extra(nn.Linear):
    seen = torch.tensor([1])

    def get_extra_state(self):
        return self.seen

    def set_extra_state(self, value):
        self.seen = value


@BOTH
def test_a_module_s_own_value_that_is_read_for_a_spread(daemon, asked, tmp_path, timeout):
    model = Extra(2, 2)
    save_file(numbers(model), tmp_path / "own.safetensors", metadata={"format": "pt"})
    ckptd.torch.set_model_state_dict(model, tmp_path / "own.safetensors", address=daemon.path, timeout=timeout)
    assert_kept(asked, timeout, "InspectCheckpoint", *LOAD, *LOAD)


@BOTH
def test_a_path_that_is_spread(daemon, asked, path, timeout):
    ckptd.torch.set_model_state_dict(Net(), path, address=daemon.path, timeout=timeout)
    assert_kept(asked, timeout, "InspectCheckpoint", *LOAD)


def test_a_state_dict_in_memory_that_is_spread(daemon, asked):
    spread = torch_state_dict.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    ckptd.torch.set_model_state_dict(Net(), numbers(Net()), options=spread, address=daemon.path, timeout=8)
    assert_kept(asked, 8, "InspectCheckpoint", *LOAD)


@BOTH
def test_a_path_that_is_spread_over_a_dist_module(daemon, asked, path, timeout):
    ckptd.torch.DistModule(Net(), address=daemon.path, timeout=timeout).load_state_dict(path)
    assert_kept(asked, timeout, "InspectCheckpoint", *LOAD)


@BOTH
def test_load_file(daemon, asked, path, timeout):
    ckptd.torch.load_file(path, address=daemon.path, timeout=timeout)
    assert_kept(asked, timeout, *LOAD)


@BOTH
def test_load_file_that_is_refused_for_its_device(daemon, asked, path, timeout):
    with pytest.raises(ckptd.FailedPrecondition):
        ckptd.torch.load_file(path, "cuda", address=daemon.path, timeout=timeout)
    assert_kept(asked, timeout, "ListCheckpoints")


@BOTH
def test_safe_open(daemon, asked, path, timeout):
    with ckptd.safe_open(path, "pt", address=daemon.path, timeout=timeout) as file:
        assert_kept(asked, timeout, "InspectCheckpoint")
        asked.clear()
        file.get_tensor("up.bias")
    assert_kept(asked, timeout, *LOAD)


@BOTH
def test_a_value_of_a_lazy_dict(daemon, asked, path, timeout):
    lazy = ckptd.torch.load_state_dict(path, address=daemon.path, timeout=timeout)
    assert_kept(asked, timeout, "InspectCheckpoint")
    asked.clear()
    assert lazy["up.bias"].numel()
    assert_kept(asked, timeout, *LOAD)


@BOTH
def test_counts_of_batch_norms_that_are_looked_for(daemon, asked, tmp_path, timeout):
    model = nn.BatchNorm1d(3)
    state = {name: tensor for name, tensor in model.state_dict().items() if name != "num_batches_tracked"}
    save_file(state, tmp_path / "norm.safetensors")
    ckptd.torch.load_into(model, tmp_path / "norm.safetensors", address=daemon.path, timeout=timeout)
    assert_kept(asked, timeout, "InspectCheckpoint", *LOAD)


@BOTH
def test_plans(client, asked, path, timeout):
    client.plan(path, timeout=timeout)
    assert_kept(asked, timeout, "PlanLoad")
    asked.clear()
    client.plan_devices(path, max_memory={0: "1GiB"}, timeout=timeout)
    assert_kept(asked, timeout, "PlanLoad")


def test_calls_that_are_given_no_timeout(client, asked, path):
    for call in (lambda: client.plan(path), client.list, client.device):
        call()
    assert [seconds for _, seconds in asked] == pytest.approx([UNTIMED] * len(asked))


SHORT = 0.1  # seconds


def answers_slowly(daemon, monkeypatch):
    enter = daemon._enter_call
    monkeypatch.setattr(daemon, "_enter_call", lambda *call: time.sleep(3 * SHORT) or enter(*call))


UNTIMED_CALLS = [lambda c: c.get("1"), lambda c: c.list(), lambda c: c.device()]


@pytest.mark.parametrize("call", UNTIMED_CALLS, ids=["get", "list", "device"])
def test_who_cannot_raise_a_timeout_is_not_told_to(daemon, client, monkeypatch, call):
    answers_slowly(daemon, monkeypatch)
    monkeypatch.setattr(_client, "_CALL_SECONDS", SHORT)
    with pytest.raises(ckptd.DeadlineExceeded, match="not done after 0.1 s, .* see its log and try again") as caught:
        call(client)
    assert "timeout=" not in caught.value.message


TIMED_CALLS = [lambda c, p: c.plan(p, timeout=0.1), lambda c, p: c.device(timeout=0.1),
               lambda c, p: c.plan_devices(p, max_memory={0: "1GiB"}, timeout=0.1)]


@pytest.mark.parametrize("call", TIMED_CALLS, ids=["plan", "device", "plan_devices"])
def test_who_can_raise_a_timeout_is_told_so(daemon, client, path, monkeypatch, call):
    answers_slowly(daemon, monkeypatch)
    with pytest.raises(ckptd.DeadlineExceeded, match="not done after 0.1 s, .*; raise timeout=, or see"):
        call(client, path)


def opened(path, address, timeout):
    file = ckptd.safe_open(path, "pt", address=address)
    file.file.source.timeout = timeout
    return file.get_tensor("up.bias")


def looked_up(path, address, timeout):
    entries = ckptd.torch.load_state_dict(path, address=address).entries
    return ckptd.torch.LazyStateDict(entries, address=address, timeout=timeout)["up.bias"]


def filed(path, address, timeout):
    return ckptd.torch.load_file(path, address=address, timeout=timeout)


class Stopped(Exception):
    pass


@pytest.mark.parametrize("late", ["load", "acquire"])
@pytest.mark.parametrize("read", [opened, looked_up, filed])
def test_what_is_left_is_never_nothing(daemon, path, monkeypatch, clock, read, late):
    """A load without a timeout would have the daemon's."""
    said, connect, load = [], _client.connect, _client.Client.load

    def note(*_, timeout, **__):
        said.append(timeout)
        raise Stopped

    def connect_late(address, timeout, **named):
        clock.ahead += 200  # till the time of the read is up, not that of opening before it
        return connect(address, **named)

    def load_late(own, source, timeout, **named):
        done = load(own, source, timeout=timeout, **named)
        clock.ahead += 200
        return done

    monkeypatch.setattr(_client, "connect", connect_late if late == "load" else connect)
    monkeypatch.setattr(_client.Client, "load", note if late == "load" else load_late)
    monkeypatch.setattr(_client.Client, "acquire", note)
    with pytest.raises(Stopped):
        read(path, daemon.path, 100)
    assert said == [1e-3]
