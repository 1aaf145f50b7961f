"""The fake NCCL (tests/fakes/nccl) for tests: its configuration, its environment, its trace."""

import fake_cuda

LIBRARY = fake_cuda.LIBRARY.parent / "libnccl.so.2"


def why_not():
    """None where the fake is built, else the reason in one line."""
    if fake_cuda.why_not():
        return fake_cuda.why_not()
    if not LIBRARY.exists():
        return f"{LIBRARY} is not built (it needs nccl.h)"
    return None


class FakeNccl:
    """A fake NCCL beside the fake GPUs of `cuda`.

    `options` are lines of its configuration (tests/fakes/nccl/README.md); faults are given as text:

        FakeNccl(cuda, link_bytes_per_second=1000000, faults=["ncclRecv rank=1 nth=2 die=1"])
    """

    def __init__(self, cuda, *, faults=(), **options):
        self.cuda = cuda
        self.config = cuda.folder / "nccl-config"
        self.options = {"trace": "nccl-trace", **options}
        self.script(*faults)

    def script(self, *faults):
        """Other faults, for processes that start from now on."""
        lines = [f"{key} = {value}" for key, value in self.options.items()]
        self.config.write_text("\n".join([*lines, *(f"fault = {fault}" for fault in faults)]) + "\n")

    def environment(self):
        """What daemons need besides the fake GPUs' environment."""
        return {"CKPTD_FAKE_NCCL": str(self.config), "CKPTD_NCCL_LIBRARY": str(LIBRARY)}

    def trace(self, having=""):
        """The lines so far that contain a text."""
        path = self.cuda.folder / "nccl-trace"
        return [line for line in path.read_text().splitlines() if having in line] if path.exists() else []

    def violations(self):
        """What no program may do."""
        return self.trace('"violation"')
