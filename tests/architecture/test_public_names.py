"""What the Python package offers says what it takes and gives, for type checkers, and what it does, for people."""

import ast
import importlib
import inspect
import pathlib
import sys
import types
import typing

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client/python/src"))
pytest.importorskip("torch")
pytest.importorskip("accelerate")

PACKAGES = [importlib.import_module(name) for name in ("ckptd", "ckptd.torch", "ckptd.accelerate", "ckptd.transformers",
                                                       "ckptd.megatron")]


def is_public(name):
    return not name.startswith("_")


def is_ours(thing):
    return (getattr(thing, "__module__", None) or "").startswith("ckptd")


def written(function):
    """Whether it stands in the source: dataclasses and other decorators make some themselves."""
    return function.__code__.co_filename == sys.modules[function.__module__].__file__


def methods_of(cls):
    """{name: function} of methods and properties, with what is inherited from other classes of ours."""
    found = {}
    for name, member in [item for base in reversed(cls.__mro__) if is_ours(base) for item in vars(base).items()]:
        member = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        member = inspect.unwrap(member) if callable(member) else member
        if isinstance(member, types.FunctionType) and is_ours(member) and written(member):
            found[name] = member
    return found


def names_for_types(module):
    """What annotations in `module` may name: all that it has, and what it imports for type checkers alone."""
    names = dict(vars(module))
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            exec(compile(ast.Module(node.body, []), module.__file__, "exec"), names)  # our own text
    return names


def classes_in(hint):
    if isinstance(hint, type) and is_ours(hint):
        yield hint
    for part in typing.get_args(hint):
        yield from classes_in(part)


def handed_out(function):
    """Classes of ours whose objects it returns. Raises NameError for an annotation that means nothing."""
    names = names_for_types(sys.modules[function.__module__])
    return classes_in(typing.get_type_hints(function, names).get("return"))


def public(packages):
    """{full name: function or class}: what the packages list, and the classes of what that returns."""
    waiting = [(f"{p.__name__}.{name}", getattr(p, name)) for p in packages for name in p.__all__ if is_public(name)]
    found = {}
    while waiting:
        name, thing = waiting.pop(0)
        if not is_ours(thing) or thing in found.values():
            continue
        found[name] = thing
        methods = methods_of(thing) if isinstance(thing, type) else {"": inspect.unwrap(thing)}
        for function in [function for method, function in methods.items() if is_public(method)]:
            waiting += [(f"{cls.__module__}.{cls.__qualname__}", cls) for cls in handed_out(function)]
    return found


def untyped(function, bound):
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1 if bound else 0:]
    lacks = [p.name for p in parameters if p.annotation is p.empty]
    return lacks + (["what it returns"] if signature.return_annotation is signature.empty else [])


def has_text(thing):
    text = inspect.getdoc(thing)
    # A dataclass that says nothing is given its signature.
    return bool(text) and not text.startswith(f"{thing.__name__}(")


def lacks(packages):
    """What is missing of all that is public, a line each."""
    found = set()
    for name, thing in public(packages).items():
        if not has_text(thing):
            found.add(f"{name}: no docstring")
        bound = isinstance(thing, type)
        for method, function in (methods_of(thing) if bound else {"": inspect.unwrap(thing)}).items():
            full = f"{function.__module__}.{function.__qualname__}"
            if is_public(method) or method.startswith("__"):
                found.update(f"{full}: no type of {what}" for what in untyped(function, bound))
            if bound and is_public(method) and not inspect.getdoc(getattr(thing, method)):
                found.add(f"{full}: no docstring")
    return sorted(found)


def test_what_is_public_has_types_and_a_docstring():
    assert {"ckptd.Client", "ckptd.torch.load_into", "ckptd._safe_open.Slice", "ckptd.torch._patch.Patched"} <= set(public(PACKAGES))
    assert lacks(PACKAGES) == []


@pytest.mark.parametrize("text, missing", [
    ("def f(a, b: int) -> None:\n    'Does.'", ["f: no type of a"]),
    ("def f(*a, **b) -> None:\n    'Does.'", ["f: no type of a", "f: no type of b"]),
    ("def f():\n    pass", ["f: no type of what it returns", "f: no docstring"]),
    ("class C:\n    pass", ["C: no docstring"]),
    ("@dataclass\nclass C:\n    a: int", ["C: no docstring"]),
    ("class C:\n    'Is.'\n    def __init__(self, a) -> None: pass", ["C.__init__: no type of a"]),
    ("class C:\n    'Is.'\n    def _own(self, a): pass", []),
    ("class C:\n    'Is.'\n    @property\n    def a(self): return 1", ["C.a: no type of what it returns", "C.a: no docstring"]),
    ("class C:\n    'Is.'\n    @classmethod\n    def a(cls, b) -> int:\n        'Does.'", ["C.a: no type of b"]),
    ("class D:\n    'Is.'\n    def a(self): pass\n\nclass C(D):\n    'Is.'", ["D.a: no type of what it returns", "D.a: no docstring"]),
    ("def f() -> 'C':\n    'Does.'\n\nclass C:\n    'Is.'\n    def a(self) -> int: return 1", ["C.a: no docstring"]),
    ("if TYPE_CHECKING:\n    from fractions import Fraction\n\ndef f() -> 'Fraction':\n    'Does.'", []),
])
def test_what_is_missing_is_named(tmp_path, monkeypatch, text, missing):
    head = "from dataclasses import dataclass\nfrom typing import TYPE_CHECKING\n"
    listed = "\n__all__ = ['f'] if 'f' in globals() else ['C']\n"
    (tmp_path / "ckptd_sample.py").write_text(head + text + listed)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ckptd_sample", raising=False)
    found = lacks([importlib.import_module("ckptd_sample")])
    assert [line.replace("ckptd_sample.", "") for line in found] == sorted(missing)
