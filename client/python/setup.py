"""Builds the message descriptors before the package, when the contract is at hand.

A source distribution carries the finished descriptors and has no proto folder.
"""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent))
import generate  # noqa: E402


class BuildWithDescriptors(build_py):
    def run(self):
        if generate.proto_root().is_dir():
            generate.generate()
        elif not generate.OUTPUT.exists():
            raise SystemExit(f"setup.py: {generate.OUTPUT} is missing; build from the repository")
        super().run()


setup(cmdclass={"build_py": BuildWithDescriptors})
