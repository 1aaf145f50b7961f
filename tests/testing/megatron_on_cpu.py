"""Imports megatron-core where it would not be imported: without triton, and with NumPy 2.

Its versions from 0.17 on import triton, and those before 0.13 know numpy.product, which NumPy 2 has not.
"""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import sys
import types

import numpy


class _Anything:
    """Whatever a kernel's text names. Nothing runs it."""

    def __getattr__(self, name):
        return _Anything()

    def __call__(self, *given, **named):
        return given[0] if given and callable(given[0]) else _Anything()


class _Module(types.ModuleType):
    __path__, __version__ = (), "3.0.0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


@contextlib.contextmanager
def importable():
    """A block in which megatron-core can be imported."""
    if not hasattr(numpy, "product"):
        numpy.product = numpy.prod
    wants = importlib.metadata.version("megatron-core").split(".")[:2] >= ["0", "17"]
    names = ["triton", "triton.language"] if wants and not importlib.util.find_spec("triton") else []
    for module in ("hints", "triton_compat"):  # they look for triton, and would take this one for it
        importlib.import_module(f"torch._inductor.runtime.{module}")
    sys.modules.update({name: _Module(name) for name in names})
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
