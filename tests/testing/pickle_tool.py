"""Speaks with build/bin/pickle_tool: what the daemon's interpreter sees in a pickle."""

import atexit
import collections
import json
import os
import pathlib
import subprocess

import pytest

# A call that a pickle would have made: arguments, what was put in and appended, state.
Record = collections.namedtuple("Record", "callee items entries appended keywords state")
Symbol = collections.namedtuple("Symbol", "name")
Persistent = collections.namedtuple("Persistent", "id")
SetOf = collections.namedtuple("SetOf", "items")
# A dict that has attributes, as OrderedDict may.
WithState = collections.namedtuple("WithState", "value state")


class Refused(Exception):
    def __init__(self, reason, sentence):
        super().__init__(f"{reason}: {sentence}")
        self.reason = reason
        self.sentence = sentence


class _Reader:
    """Makes Python's values of the tool's JSON."""

    def __init__(self):
        self._seen = []

    def read(self, node):
        kind = node[0] if node else None
        if kind == "none" or node is None:
            return None
        if kind in ("bool", "text"):
            return node[1]
        if kind == "int":
            return int(node[1])
        if kind == "float":
            return float.fromhex(node[1]) if "n" not in node[1] else float(node[1])
        if kind == "complex":
            return complex(*(self.read(["float", part]) for part in node[1:]))
        if kind == "bytes":
            return bytes.fromhex(node[1])
        if kind == "symbol":
            return Symbol(node[1])
        if kind == "again":
            return self._seen[node[1]]
        return self._container(kind, *node[1:])

    def _container(self, kind, items, entries, appended, callee, keywords, state):
        made = {"list": list, "dict": dict}.get(kind, tuple)()
        empty_tuple = kind == "tuple" and not items
        number = len(self._seen)
        if not empty_tuple:
            self._seen.append(made)
        callee = self.read(callee)
        items = [self.read(item) for item in items]
        entries = [(self.read(key), self.read(value)) for key, value in entries]
        if kind == "list":
            made.extend(items)
        elif kind == "dict":
            made.update(entries)
        else:
            made = {"tuple": lambda: tuple(items), "set": lambda: SetOf(items),
                    "persistent": lambda: Persistent(items[0]),
                    "record": lambda: Record(callee, items, entries, [self.read(one) for one in appended],
                                             self.read(keywords), self.read(state))}[kind]()
        if state is not None and kind != "record":
            made = WithState(made, self.read(state))
        if not empty_tuple:
            self._seen[number] = made
        return made


class PickleTool:
    def __init__(self):
        root = pathlib.Path(__file__).resolve().parents[2]
        path = pathlib.Path(os.environ.get("CKPTD_BUILD_DIR", root / "build")) / "bin" / "pickle_tool"
        if not path.exists():
            pytest.skip(f"{path} is not built")
        self._process = subprocess.Popen([str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        atexit.register(self.close)

    def close(self):
        if self._process.poll() is None:
            self._process.stdin.close()
            self._process.wait(timeout=60)

    def read(self, pickled):
        """The object that the pickle describes, in Python's own values; raises Refused."""
        self._process.stdin.write(pickled.hex() + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "pickle_tool ended"
        node = json.loads(line)
        if node[0] == "error":
            raise Refused(node[1], node[2])
        return _Reader().read(node)
