"""Builds the message descriptors before the package, when the contract is at hand.

A source distribution carries the finished descriptors and has no proto folder. Where
src/ckptd/bin holds the programs (deploy/package puts them there), the wheel is one for
their platform, whatever the Python, and installs them as commands.
"""

import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import generate  # noqa: E402

PROGRAMS = [name for name in ("ckptd", "ckptctl") if (HERE / "src/ckptd/bin" / name).exists()]


class BuildWithDescriptors(build_py):
    def run(self):
        if generate.proto_root().is_dir():
            generate.generate()
        elif not generate.OUTPUT.exists():
            raise SystemExit(f"setup.py: {generate.OUTPUT} is missing; build from the repository")
        super().run()


class DistributionOfPrograms(Distribution):
    def has_ext_modules(self):
        """Belongs where files of one platform go, not among those for all."""
        return bool(PROGRAMS) or super().has_ext_modules()


class WheelOfPrograms(bdist_wheel):
    def get_tag(self):
        """One platform, any Python."""
        python, abi, platform = super().get_tag()
        return ("py3", "none", platform) if PROGRAMS else (python, abi, platform)


setup(
    distclass=DistributionOfPrograms,
    cmdclass={"build_py": BuildWithDescriptors, "bdist_wheel": WheelOfPrograms},
    entry_points={
        "console_scripts": [f"{name} = ckptd._programs:{name}" for name in PROGRAMS],
        # Called at the end of `import torch`; does nothing without CKPTD_PATCH.
        "torch.backends": ["ckptd = ckptd_autoload:on_torch_import"],
    },
)
