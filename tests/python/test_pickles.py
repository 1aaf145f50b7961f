"""Pickles of Python's own module as the daemon's interpreter sees them."""

import argparse
import collections
import copyreg
import dataclasses
import datetime
import enum
import functools
import io
import os
import pathlib
import pickle
import pickletools
import subprocess
import types

import pytest

pytest.importorskip("hypothesis")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from pickle_tool import PickleTool, Record, Refused, SetOf, Symbol, WithState  # noqa: E402

PROTOCOLS = range(6)


@pytest.fixture(scope="module")
def tool():
    running = PickleTool()
    yield running
    running.close()


def canonical(value):
    """A form that tells 1 from True and 1.0, and -0.0 from 0.0; without the order of sets."""
    if isinstance(value, (set, frozenset)):
        return "set", sorted(map(repr, map(canonical, value)))
    if isinstance(value, SetOf):
        return "set", sorted(map(repr, map(canonical, value.items)))
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [canonical(item) for item in value]
    if isinstance(value, dict):
        return "dict", [(canonical(key), canonical(item)) for key, item in value.items()]
    if isinstance(value, (bytes, bytearray)):
        return "bytes", bytes(value)
    if isinstance(value, str):
        return "text", value.encode("utf-8", "backslashreplace").decode()
    return type(value).__name__, repr(value)


numbers = (st.none() | st.booleans() | st.integers() | st.integers(-(1 << 70), 1 << 70) | st.floats()
           | st.complex_numbers())
texts = st.text() | st.text(st.characters()) | st.binary() | st.builds(bytearray, st.binary())
keys = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
values = st.recursive(
    numbers | texts,
    lambda inner: (st.lists(inner) | st.tuples(inner) | st.tuples(inner, inner) | st.lists(inner, min_size=4).map(tuple)
                   | st.dictionaries(keys, inner) | st.sets(keys) | st.frozensets(keys)),
    max_leaves=25)


@settings(max_examples=300, deadline=None)
@given(value=values, protocol=st.sampled_from(PROTOCOLS), optimized=st.booleans())
def test_plain_values_are_what_python_reads(tool, value, protocol, optimized):
    pickled = pickle.dumps(value, protocol)
    if optimized:
        pickled = pickletools.optimize(pickled)
    assert canonical(tool.read(pickled)) == canonical(pickle.loads(pickled))


@settings(max_examples=100, deadline=None)
@given(value=values, protocol=st.sampled_from(PROTOCOLS))
def test_pickles_of_pythons_own_pickler_are_the_same(tool, value, protocol):
    out = io.BytesIO()
    pickle._Pickler(out, protocol).dump(value)
    assert canonical(tool.read(out.getvalue())) == canonical(value)


@settings(max_examples=100, deadline=None)
@given(value=values, protocol=st.sampled_from(PROTOCOLS), data=st.data())
def test_a_pickle_that_is_cut_is_refused(tool, value, protocol, data):
    pickled = pickle.dumps(value, protocol)
    cut = data.draw(st.integers(0, len(pickled) - 1))
    with pytest.raises(Refused) as refused:
        tool.read(pickled[:cut])
    assert refused.value.reason == "SOURCE_INVALID"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_many_elements_and_deep_ones(tool, protocol):
    wide = {"list": list(range(5000)), "dict": {str(i): (i, i / 7) for i in range(5000)}, "set": set(range(3000))}
    assert canonical(tool.read(pickle.dumps(wide, protocol))) == canonical(wide)
    deep = []
    for _ in range(80):
        deep = [deep, {"a": deep}]
        deep[1]["a"] = None
    assert canonical(tool.read(pickle.dumps(deep, protocol))) == canonical(deep)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_is_shared_stays_shared(tool, protocol):
    shared = ["x"]
    read = tool.read(pickle.dumps({"a": shared, "b": [shared], "c": (shared, shared)}, protocol))
    assert read["a"] is read["b"][0] is read["c"][0] is read["c"][1]
    itself = []
    itself.append(itself)
    read = tool.read(pickle.dumps(itself, protocol))
    assert read[0] is read


@dataclasses.dataclass
class Config:
    lr: float
    name: str

    class Nested:
        pass


class Mode(enum.Enum):
    FAST = 1


class Slotted:
    __slots__ = ("a",)


class WithArguments(float):
    def __getnewargs_ex__(self):
        return (float(self),), {"unit": "m"}

    def __new__(cls, value, unit=None):
        return float.__new__(cls, value)


Point = collections.namedtuple("Point", "x y")
HERE = __name__


def slotted():
    made = Slotted()
    made.a = 5
    return made


def ordered():
    made = collections.OrderedDict(a=1)
    made._metadata = {"version": 2}
    return made


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_objects_are_records(tool, protocol):
    def read(value):
        return tool.read(pickle.dumps(value, protocol))

    def record(value):
        got = read(value)
        assert isinstance(got, Record)
        return got

    config = record(Config(0.5, "n"))
    assert config.callee == Symbol(HERE + ".Config") and config.items == []
    assert config.state == {"lr": 0.5, "name": "n"}
    assert record(Mode.FAST).callee == Symbol(HERE + ".Mode") and record(Mode.FAST).items == [1]
    assert record(Point(1, 2)).callee == Symbol(HERE + ".Point")
    assert record(datetime.timedelta(1)).callee == Symbol("datetime.timedelta")
    assert record(pathlib.PurePosixPath("/a/b")).items == ["/", "a", "b"]
    assert record(functools.partial(print, 1)).items == [Symbol("builtins.print")]
    assert record(argparse.Namespace(a=1)).state == {"a": 1}
    assert record(types.SimpleNamespace(a=1)).state == {"a": 1}
    assert read(ordered()) == WithState({"a": 1}, {"_metadata": {"version": 2}})
    counted = record(collections.defaultdict(list, a=[1]))
    assert counted.callee == Symbol("collections.defaultdict") and counted.entries == [("a", [1])]
    assert counted.items == [Symbol("builtins.list")]
    assert record(collections.deque([1, 2])).callee == Symbol("collections.deque")
    assert record(collections.Counter("aab")).items == [{"a": 2, "b": 1}]
    if protocol >= 2:
        assert record(slotted()).state == (None, {"a": 5})
        assert record(WithArguments(2)).keywords in ({"unit": "m"}, None)
    assert read(collections.OrderedDict) == Symbol("collections.OrderedDict")
    assert read(int) == Symbol("builtins.int")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_names_within_classes_are_symbols(tool, protocol):
    assert tool.read(pickle.dumps(Config.Nested, protocol)) == Symbol(HERE + ".Config.Nested")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_numbers_of_numpy_are_numbers(tool, protocol):
    np = pytest.importorskip("numpy")
    for made in (np.float64(1.5), np.float32(0.1), np.float16(2.5), np.int8(-3), np.int64(1 << 40),
                 np.uint64((1 << 64) - 1), np.bool_(True), np.complex64(1 + 2j), np.array([258], ">i4")[0],
                 np.dtype(">f8").type(7)):
        read = tool.read(pickle.dumps(made, protocol))
        assert read == made.item() and type(read) is type(made.item())
    assert tool.read(pickle.dumps(np.arange(3.0), protocol)).callee.name.endswith(("_reconstruct", "_frombuffer"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_persistent_ids_are_one_item(tool, protocol):
    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            # In protocol 0 it is text.
            return None if value is not self else "storage 7" if protocol == 0 else ("storage", 7)

    out = io.BytesIO()
    pickler = Pickler(out, protocol)
    pickler.dump([pickler])
    assert tool.read(out.getvalue())[0].id == ("storage 7" if protocol == 0 else ("storage", 7))


class Exploit:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call

    def __call__(self):
        """Only what can be called may stand where a call begins; nobody calls it."""


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("call, runs", [
    ((os.system, ("id",)), "posix.system"),
    ((subprocess.Popen, (["id"],)), "subprocess.Popen"),
    ((eval, ("1",)), "builtins.eval"),
    ((exec, ("1",)), "builtins.exec"),
    ((__import__, ("os",)), "builtins.__import__"),
    ((open, ("/tmp/x", "w")), ".open"),
    ((pickle.loads, (b"N.",)), "pickle.loads"),
    ((map, (os.system, ["id"])), "posix.system"),
    ((getattr, (Exploit(__import__, ("os",)), "system")), "builtins.__import__"),
    ((Exploit(functools.partial, (os.system, "id")), ()), "posix.system"),
])
def test_calls_that_execute_are_refused(tool, protocol, call, runs):
    pickled = pickle.dumps({"weights": 1, "x": Exploit(*call)}, protocol)
    with pytest.raises(Refused) as refused:
        tool.read(pickled)
    assert refused.value.reason == "SOURCE_UNSAFE"
    assert runs in refused.value.sentence


def test_references_to_what_executes_are_read(tool):
    assert tool.read(pickle.dumps({"f": os.system})) == {"f": Symbol("posix.system")}


def test_names_of_python_2_are_mapped_as_python_maps_them(tool):
    import _compat_pickle

    known = ["__builtin__", "copy_reg", "Queue", "thread", "repr", "StringIO", "cStringIO", "cPickle", "UserDict",
             "commands", "urllib2", "_abcoll"]
    for module in known:
        read = tool.read(f"c{module}\nsomething\n.".encode())
        assert read == Symbol(_compat_pickle.IMPORT_MAPPING[module] + ".something")
    for (module, name), (new_module, new_name) in _compat_pickle.NAME_MAPPING.items():
        if module in ("__builtin__", "exceptions", "UserDict"):
            assert tool.read(f"c{module}\n{name}\n.".encode()) == Symbol(f"{new_module}.{new_name}")


def test_extensions_and_buffers_outside_are_refused(tool):
    copyreg.add_extension("collections", "deque", 200)
    try:
        extended = pickle.dumps(collections.deque, 2)
    finally:
        copyreg.remove_extension("collections", "deque", 200)
    outside = []
    buffered = pickle.dumps(pickle.PickleBuffer(bytearray(b"x")), 5, buffer_callback=outside.append)
    for pickled in (extended, buffered):
        with pytest.raises(Refused) as refused:
            tool.read(pickled)
        assert refused.value.reason == "SOURCE_UNSUPPORTED"
