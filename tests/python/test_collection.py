"""The garbage collector: off while tensors are gone through, on in all that waits and in children."""

import gc
import os
import threading

import pytest

torch = pytest.importorskip("torch")

import ckptd  # noqa: E402
import ckptd.torch  # noqa: E402
from ckptd.torch.load import _gc_pause, _load_into, _place_tensors  # noqa: E402
from ckptd.torch.load._gc_pause import gc_paused  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch import nn  # noqa: E402

LOADS = {
    "load_into": ckptd.torch.load_into,
    "load_file": lambda model, path, **near: ckptd.torch.load_file(path, **near),
    "set_model_state_dict": ckptd.torch.set_model_state_dict,
}


@pytest.fixture(autouse=True)
def switched_on():
    assert gc.isenabled()
    yield
    assert gc.isenabled()


@pytest.fixture
def path(tmp_path):
    save_file(nn.Linear(3, 2).state_dict(), str(tmp_path / "m.safetensors"))
    return str(tmp_path / "m.safetensors")


def seen_in(monkeypatch, owner, name):
    """A list to which each call of owner.name adds whether the collector is on."""
    seen, original = [], getattr(owner, name)

    def wrapped(*arguments, **options):
        seen.append(gc.isenabled())
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, wrapped)
    return seen


def held_by_a_thread():
    """Returns when a thread is within no_collection; what makes it leave."""
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with gc_paused():
            inside.set()
            leave.wait(60)

    def go_on():
        leave.set()
        thread.join(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(60)
    return go_on


@pytest.mark.parametrize("call", LOADS.values(), ids=LOADS)
def test_it_is_on_while_the_daemons_are_waited_for(daemon, path, monkeypatch, call):
    waits = seen_in(monkeypatch, ckptd.Client, "load")
    call(nn.Linear(3, 2), path, address=daemon.path)
    assert waits == [True]


def test_it_is_on_in_functions_of_the_caller(daemon, path):
    class Model(nn.Linear):
        def __init__(self):
            super().__init__(3, 2)
            self.register_buffer("table", torch.empty(2, device="meta"), persistent=False)

    seen = []
    model = Model()
    model.register_load_state_dict_post_hook(lambda module, keys: seen.append(gc.isenabled()))

    def init_buffers(model, names):
        seen.append(gc.isenabled())
        model.table = torch.zeros(2)

    ckptd.torch.load_into(model, path, address=daemon.path, init_buffers=init_buffers)
    assert seen == [True, True]


def test_it_is_off_while_tensors_are_listed_and_placed(daemon, path, monkeypatch):
    listed = seen_in(monkeypatch, _load_into, "list_targets")
    prepared, placed = seen_in(monkeypatch, _place_tensors, "prepare"), seen_in(monkeypatch, _place_tensors, "fill")
    ckptd.torch.load_into(nn.Linear(3, 2), path, address=daemon.path)
    assert listed == [False] and set(prepared + placed) == {False}


def test_it_comes_on_again_with_the_last_of_several_threads():
    with gc_paused():
        go_on = held_by_a_thread()
    assert not gc.isenabled()
    go_on()
    assert gc.isenabled()


def test_it_stays_off_where_the_caller_had_turned_it_off():
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_child_that_is_forked_meanwhile_has_it_on():
    go_on = held_by_a_thread()
    assert not gc.isenabled()
    child = os.fork()
    if child == 0:
        on = gc.isenabled()
        with gc_paused():  # and it works there
            off = not gc.isenabled()
        os._exit(0 if on and off and gc.isenabled() else 1)
    go_on()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_child_that_is_forked_within_leaves_the_block_with_it_on():
    child = -1
    with gc_paused():
        child = os.fork()
    if child == 0:
        os._exit(0 if gc.isenabled() and _gc_pause._depth == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
