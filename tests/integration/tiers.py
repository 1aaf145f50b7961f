"""Where the daemons of a test keep shards: in host memory, or in that of fake GPUs."""

import ctypes
import os

import fake_cuda
import pytest
from faults import client_environment
from group import wait_until

# For tests that hold whichever memory it is: @pytest.mark.parametrize(*BOTH).
BOTH = ("memory", ["host", "cuda"])
both = pytest.mark.parametrize(*BOTH, indirect=True)


class Tier:
    """`fake` is None for host memory."""

    def __init__(self, fake=None):
        self.fake = fake
        self.name = "cuda" if fake else "host"
        self.options = ("--memory", "cuda") if fake else ()
        # Of groups that outlive one test.
        self._held = fake.held_bytes() if fake else 0
        self._known = len(fake.violations()) if fake else 0

    @property
    def environment(self):
        """What daemons need."""
        return self.fake.environment("daemon") if self.fake else {}

    @property
    def client_environment(self):
        """What a client in a process of its own needs."""
        own = self.fake.environment("trainer") if self.fake else {}
        return {**client_environment(), **own}

    def assert_clean(self):
        """No process has broken a rule of the driver, none has any memory more than before."""
        if self.fake is None:
            return
        assert self.fake.violations()[self._known :] == []
        wait_until(lambda: self._more() <= 0, f"{self._more()} bytes of GPU memory to be free")

    def _more(self):
        return self.fake.held_bytes() - self._held


def skip_without_fake_gpus():
    """Skips a test where they are not built, or Python cannot call them. -> the calls."""
    cu = pytest.importorskip("cuda.bindings.driver")
    if fake_cuda.why_not():
        pytest.skip(fake_cuda.why_not())
    return cu


def join_fake_gpus(folder):
    """Fake GPUs that this process uses too: from now on, and for good."""
    cu = skip_without_fake_gpus()
    fake = fake_cuda.FakeCuda(folder, gpus=4, bytes=0x40000000)
    os.environ.update(CKPTD_FAKE_CUDA=str(fake.config), CKPTD_FAKE_CUDA_ROLE="test")
    # Loaded under its own name, it is what a later look for libcuda.so.1 finds.
    ctypes.CDLL(str(fake_cuda.LIBRARY), mode=ctypes.RTLD_GLOBAL)
    assert int(cu.cuInit(0)[0]) == 0
    return fake
