"""The Python package never unpickles: a pickle runs what it says."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2] / "client/python"
MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "multiprocessing"}
# What pickles inside, in torch and NumPy.
CALLS = {"broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list", "send_object_list",
         "recv_object_list", "_object_to_tensor", "_tensor_to_object", "Unpickler", "eval", "exec"}


def breaches(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            yield from (name for name in names if name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.Constant) and node.value in MODULES:
            yield node.value  # as for importlib
        elif isinstance(node, ast.Call):
            yield from bad_call(node)


def bad_call(node):
    of = getattr(node.func, "value", None)
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    options = {k.arg: getattr(k.value, "value", None) for k in node.keywords}
    if name in CALLS and not (name == "eval" and of is not None):  # a module's eval() is another
        yield name
    if name == "load" and getattr(of, "id", "") == "torch" and options.get("weights_only") is not True:
        yield "torch.load"
    if name == "load" and getattr(of, "id", "") in ("np", "numpy") and options.get("allow_pickle") is not False:
        yield "numpy.load"


@pytest.mark.parametrize("file", sorted(ROOT.rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT)))
def test_no_file_of_the_package_unpickles(file):
    assert list(breaches(file.read_text())) == []


@pytest.mark.parametrize("text", [
    "import pickle", "from pickle import loads", "import multiprocessing.connection", "__import__('pickle')",
    "dist.broadcast_object_list(x)", "torch.load(f)", "torch.load(f, weights_only=False)", "np.load(f)", "eval(x)",
])
def test_what_unpickles_is_found(text):
    assert len(list(breaches(text))) == 1
