"""Speaks with build/bin/plan_tool and carries plans out with numpy."""

import atexit
import json
import math
import os
import pathlib
import subprocess

import numpy as np

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
ITEM_BYTES = {"U8": 1, "U32": 4, "F32": 4, "I64": 8}


def tool_path():
    build = os.environ.get("CKPTD_BUILD_DIR", str(REPOSITORY / "build"))
    return pathlib.Path(build) / "bin" / "plan_tool"


class PlanError(Exception):
    """The tool's refusal, with its reason."""

    def __init__(self, reply):
        super().__init__(f"{reply['reason']}: {reply['message']}")
        self.reason = reply["reason"]


class PlanTool:
    """One running tool; requests and replies are lines."""

    def __init__(self):
        path = tool_path()
        if not path.exists():
            raise FileNotFoundError(
                f"{path} is missing: build the target plan_tool, or set CKPTD_BUILD_DIR"
            )
        self._process = subprocess.Popen(
            [str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        atexit.register(self.close)

    def close(self):
        if self._process.poll() is None:
            self._process.stdin.close()
            self._process.wait(timeout=60)

    def ask(self, request):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "plan_tool ended"
        reply = json.loads(line)
        if "reason" in reply:
            raise PlanError(reply)
        return reply


_shared = None


def shared_tool():
    global _shared
    if _shared is None:
        _shared = PlanTool()
    return _shared


class Source:
    """One file in memory. Every element of every tensor has another value."""

    def __init__(self):
        self.tensors = {}
        self._entries = []
        self._bytes = bytearray()
        self._next = 1

    def add(self, name, shape, dtype=np.uint32, cuts=(), stored=None):
        """Appends a tensor; `cuts` are indices of dimension 0 at which it is
        split into pieces, stored in reverse order. `stored`: the dimensions in the
        order in which each piece is stored, outermost first."""
        count = math.prod(shape)
        values = np.arange(self._next, self._next + count).astype(dtype).reshape(shape)
        self._next += count
        self.tensors[name] = values
        edges = [0, *sorted(cuts), shape[0]] if shape else []
        boxes = list(zip(edges[:-1], edges[1:]))[::-1] if shape else [None]
        pieces = []
        for box in boxes:
            part = values if box is None else values[box[0] : box[1]]
            order = list(stored or range(len(shape)))
            data = np.ascontiguousarray(part.transpose(order)).tobytes()
            strides = [0] * len(shape)
            for place, dim in enumerate(order):
                strides[dim] = math.prod(part.shape[inner] for inner in order[place + 1 :])
            pieces.append(
                {
                    "offset": len(self._bytes),
                    "bytes": len(data),
                    "offsets": [] if box is None else [box[0]] + [0] * (len(shape) - 1),
                    "extents": [] if box is None else list(part.shape),
                    "strides": strides if stored else [],
                }
            )
            self._bytes += data
        name_of = {"uint32": "U32", "uint8": "U8", "float32": "F32", "int64": "I64"}
        self._entries.append(
            {
                "name": name,
                "dtype": name_of[np.dtype(dtype).name],
                "shape": list(shape),
                "pieces": pieces,
            }
        )

    def request(self, **rest):
        tensors = sorted(self._entries, key=lambda entry: entry["name"].encode())
        return {"tensors": tensors, "file_bytes": len(self._bytes), **rest}

    def execute(self, plan):
        """name -> (local array, padding bytes), of flat parameters all of it and 0.
        Checks that no byte is written twice and that every byte of every tensor is
        written."""
        slab = np.zeros(plan["slab_bytes"], np.uint8)
        writes = np.zeros(plan["slab_bytes"], np.uint8)
        data = np.frombuffer(bytes(self._bytes), np.uint8)
        for op in plan["ops"]:
            assert op["from"] == op["to"]
            grid = np.array([[op["file_offset"], op["slab_offset"]]], dtype=np.int64)
            for count, file_stride, slab_stride in zip(
                op["count"], op["file_stride"], op["slab_stride"]
            ):
                steps = np.arange(count)[:, None] * np.array([[file_stride, slab_stride]])
                grid = (grid[:, None, :] + steps[None, :, :]).reshape(-1, 2)
            run = np.arange(op["run_bytes"])
            to = (grid[:, 1][:, None] + run).reshape(-1)
            slab[to] = data[(grid[:, 0][:, None] + run).reshape(-1)]
            np.add.at(writes, to, 1)
        result = {}
        for tensor in plan["tensors"]:
            begin, end = tensor["offset"], tensor["offset"] + tensor["bytes"]
            assert begin % (4 if plan["flats"] else 512) == 0
            assert (writes[begin:end] == 1).all(), tensor["name"]
            writes[begin:end] = 0
            values = slab[begin:end].view(self.tensors[self._source_of(tensor)].dtype)
            local = values.reshape(tensor["shape"])
            padding = tensor["padded_bytes"] - tensor["bytes"]
            for name in [tensor["name"], *tensor["aliases"]]:
                result[name] = (local, padding)
        for flat in plan["flats"]:
            assert flat["offset"] % 512 == 0
            begin, nbytes = flat["offset"], flat["elements"] * ITEM_BYTES[flat["dtype"]]
            dtype = np.uint32 if flat["dtype"] == "U32" else np.float32
            result[flat["name"]] = (slab[begin : begin + nbytes].view(dtype), 0)
        assert not writes.any(), "bytes outside of all tensors were written"
        return result

    def _source_of(self, tensor):
        return next(n for n in [tensor["name"], *tensor["aliases"]] if n in self.tensors)


def plan_ranks(source, ranks, tool=None, **rest):
    """Plans and carries out; one result of Source.execute per rank."""
    reply = (tool or shared_tool()).ask(source.request(ranks=list(ranks), **rest))
    return [source.execute(plan) for plan in reply["plans"]], reply
