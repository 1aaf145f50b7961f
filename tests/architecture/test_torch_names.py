"""Private names of torch, accelerate, transformers and megatron-core are known to the package's compat/ folders alone."""

import ast
import pathlib
import re

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "client/python/src/ckptd"
LIBRARIES = ("torch", "accelerate", "transformers", "megatron")
NAMED_TUPLE_S = {"_asdict", "_replace"}
PATH = re.compile(r"[A-Za-z_][\w.:]*")


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def defined_names(text):
    """Private names that a file defines: of functions, classes, constants and its objects' attributes."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                yield node.attr


def names_of(path):
    """What a file may call private: what it and the files beside it define, and modules of this package."""
    beside = (name for file in path.parent.glob("*.py") for name in defined_names(file.read_text()))
    return {*beside, *(file.stem for file in PACKAGE.rglob("_*.py")), *NAMED_TUPLE_S}


def imported_names(node):
    """Parts of the paths that an import of one of the libraries names."""
    if isinstance(node, ast.ImportFrom):
        paths = [f"{node.module}.{alias.name}" for alias in node.names] if not node.level else []
    else:
        paths = [alias.name for alias in node.names]
    return [part for path in paths if path.split(".")[0] in LIBRARIES for part in path.split(".")]


def private_names(text, own=()):
    """(line, name) of each private name in `text` that is not one of `own`."""
    tree = ast.parse(text)
    own = {*own, *defined_names(text)}
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        found = []
        if isinstance(node, ast.Attribute):
            found = [node.attr]
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((node.lineno, name) for name in imported_names(node) if is_private(name))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            found = re.split("[.:]", node.value) if PATH.fullmatch(node.value) else []
        yield from ((node.lineno, name) for name in found if is_private(name) and name not in own)


def files(in_compat):
    return [path for path in PACKAGE.rglob("*.py") if ("compat" in path.parts) == in_compat]


def test_only_compat_uses_private_names_of_the_libraries():
    assert len(files(in_compat=False)) > 50
    found = [f"{path.relative_to(PACKAGE)}:{line} {name}"
             for path in files(in_compat=False) for line, name in private_names(path.read_text(), names_of(path))]
    assert not found, "\n".join(found)


def test_only_compat_overrides_private_methods_of_torch():
    nn = pytest.importorskip("torch").nn
    theirs = {name for name in dir(nn.Module()) if is_private(name)}
    found = [f"{path.relative_to(PACKAGE)}:{method.lineno} {method.name}"
             for path in files(in_compat=False)
             for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
             for method in node.body if isinstance(method, ast.FunctionDef) and method.name in theirs]
    assert not found, "\n".join(found)


def test_compat_does_use_some():
    found = {name for path in files(in_compat=True) for _, name in private_names(path.read_text())}
    assert {"_parameters", "_init_weights", "_is_on_hf_mount"} <= found


@pytest.mark.parametrize("text, name", [
    ("module._parameters", "_parameters"),
    ("getattr(model, '_no_split_modules', None)", "_no_split_modules"),
    ("patch('transformers.modeling_utils:PreTrainedModel._load')", "_load"),
    ("from torch.distributed.fsdp._fully_shard import fully_shard", "_fully_shard"),
    ("from transformers import _name", "_name"),
    ("import torch._C", "_C"),
])
def test_a_private_name_is_found(text, name):
    assert [found for _, found in private_names(text)] == [name]


@pytest.mark.parametrize("text", [
    "class C:\n    def _own(self):\n        return self._own",
    "'''_parameters'''",
    "self._x = 1\nother._x",
    "from . import _own",
    "x.__dict__",
    "raise ValueError('use _StridedShard')",
])
def test_what_is_nobody_else_s_is_not(text):
    assert list(private_names(text)) == []


ROOMS = ("compat", "agree", "load", "spread", "dcp", "resume")


def rooms_above(path):
    """Rooms of ckptd.torch that a file in one of them imports although they build on it."""
    own = ROOMS.index(path.parent.name)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 2:
            names = [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]
            yield from (f"{path.parent.name}/{path.name}:{node.lineno} {name}" for name in names
                        if name in ROOMS and ROOMS.index(name) > own)


def test_each_room_of_ckptd_torch_builds_on_those_before_it_alone():
    paths = [path for room in ROOMS for path in (PACKAGE / "torch" / room).glob("*.py")]
    assert len(paths) > 30
    found = [line for path in paths for line in rooms_above(path)]
    assert not found, "\n".join(found)
