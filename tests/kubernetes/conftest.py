"""Finds the programs and modules that the tests of the manifests need."""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
for path in (str(HERE), str(HERE.parent / "testing")):
    if path not in sys.path:
        sys.path.insert(0, path)
