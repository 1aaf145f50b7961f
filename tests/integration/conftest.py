"""Shared parts of the integration tests: groups of daemons and small checkpoints."""

import contextlib
import gc
import os
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
for path in (
    str(HERE),
    str(HERE.parent / "python"),
    str(HERE.parent / "cases"),
    str(HERE.parent / "testing"),
    str(HERE.parents[1] / "client/python/src"),
):
    if path not in sys.path:
        sys.path.insert(0, path)

import warm  # noqa: E402
from group import BINARIES, Group, clean_environment, key_for, save  # noqa: E402
from ranks import outcome_of  # noqa: E402


# Files that take longest come first: one of them that begins last is waited for alone.
LONGEST = (
    "test_gpu_run.py",
    "test_spread.py",
    "test_docs_transformers.py",
    "test_nccl_hosts.py",
    "test_fsdp1.py",
    "test_foreign.py",
    "test_main_job.py",
    "test_load_checkpoint.py",
    "test_cuda_memory.py",
    "test_nccl.py",
    "test_autopatch.py",
    "test_transformers.py",
    "test_dying_processes.py",
    "test_spread_lost_ranks.py",
    "test_fsdp_matrix.py",
    "test_find_package.py",
    "test_membership_changes.py",
)


def pytest_collection_finish():
    """Neither Python nor libraries that collect garbage in each call look through all that was imported."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in LONGEST)
    if items and not (BINARIES / "ckptd").exists():
        pytest.exit(f"there is no {BINARIES}/ckptd; run deploy/setup --build first", returncode=3)


def recorded(terminalreporter, name):
    """The values that tests recorded under `name`."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    return [value for report in reports if report.when == "call"
            for key, value in report.user_properties if key == name]


class FailuresAtOnce:
    """Names them as they come, too: a suite that is ended before its summary would not say."""

    def __init__(self, config):
        self.config = config

    def pytest_runtest_logreport(self, report):
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message.splitlines()[0] if crash and crash.message else ""
            terminal = self.config.pluginmanager.get_plugin("terminalreporter")
            terminal.write_line(f"\nFAILED {report.nodeid} ({report.when}): {why}"[:500])


def pytest_configure(config):
    if not hasattr(config, "workerinput"):  # in a worker of pytest-xdist nobody would see it
        config.pluginmanager.register(FailuresAtOnce(config))
        warm.share()


def pytest_terminal_summary(terminalreporter):
    """The table of what became of loads in which something died, and what tests of others passed."""
    counts = recorded(terminalreporter, "foreign")
    if counts:
        terminalreporter.section("tests of others, without ckptd and with it")
        terminalreporter.write("".join(counts))
    show_kept(terminalreporter)
    rows = recorded(terminalreporter, "fault")
    if not rows:
        return
    terminalreporter.section("stage x process x outcome")
    line = "{:<22} {:<24} {:<9} {:<24} {}"
    terminalreporter.line(line.format("stage", "process", "was", "clients heard", "longest wait"))
    for stage, who, what, heard, longest in rows:
        terminalreporter.line(line.format(stage, who, what, heard, f"{longest:.2f} s"))


def show_kept(terminalreporter):
    """The table of what outlives whom."""
    rows = recorded(terminalreporter, "kept")
    if not rows:
        return
    terminalreporter.section("who dies x what is kept x time to re-attach")
    for who, what, seconds in sorted(rows):
        terminalreporter.line(f"{who:<36} {what:<50} {seconds:.2f} s")


@pytest.fixture
def outcome(record_property):
    """outcome(stage, who, what, loads, since) -> what each client got; a row of the table."""
    from holds import outcomes_of, summary

    def add(stage, who, what, loads, since):
        results, longest = outcomes_of(loads, since)
        heard = " ".join(sorted({summary(result) for result in results}))
        record_property("fault", (stage, who, what, heard, longest))
        return results

    return add


@pytest.fixture(autouse=True)
def no_ambient_daemon(monkeypatch):
    for name in set(os.environ) - set(clean_environment()) | {"CKPTD_ARENA"} & set(os.environ):
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """(module, world, memory) -> the outcome of all its cases for that size, run once."""
    from tiers import skip_without_fake_gpus
    cache = {}

    def get(module, world, memory="host"):
        asked = (module, world, memory)
        if asked not in cache:
            if memory == "cuda":
                skip_without_fake_gpus()
            cache[asked] = outcome_of(tmp_path_factory.mktemp, world, module.__name__, memory=memory)
        return cache[asked]

    return get


@pytest.fixture(scope="session")
def fake_gpus(tmp_path_factory):
    """Four fake GPUs of 1 GiB that this process shares with daemons and clients of tests."""
    from tiers import join_fake_gpus
    return join_fake_gpus(tmp_path_factory.mktemp("gpus"))


@pytest.fixture
def memory(request):
    """The Tier that `start` starts groups on: of the host, unless a test asks for "cuda"."""
    from tiers import Tier
    on_gpus = getattr(request, "param", "host") == "cuda"
    tier = Tier(request.getfixturevalue("fake_gpus") if on_gpus else None)
    yield tier
    tier.assert_clean()


@pytest.fixture
def start(tmp_path_factory, memory):
    """start(ranks, *launch options) -> a Group that is ready; stopped after the test."""
    started = contextlib.ExitStack()  # all are stopped, whatever becomes of one

    def make(ranks, *options, **named):
        # Unix socket paths are short: the test's own name would not fit.
        folder = tmp_path_factory.mktemp("g")
        named["environment"] = {**memory.environment, **named.get("environment", {})}
        group = Group(folder, ranks, *memory.options, *options, **named)
        group.__enter__()
        started.callback(group.stop)
        return group

    with started:
        yield make


@pytest.fixture
def cuda(tmp_path, tmp_path_factory):
    """cuda(ranks, fault, ..., gpu_bytes=) -> a Bench; at the end nothing may be held, and no rule broken."""
    from cuda_bench import Bench
    from group import wait_until
    made = []

    def make(ranks, *faults, **named):
        bench = Bench(tmp_path, tmp_path_factory.mktemp("g"), ranks, *faults, **named)
        made.append(bench)
        bench.group.__enter__()
        return bench

    yield make
    for bench in made:
        bench.group.stop()
    for bench in made:
        assert bench.fake.violations() == []
        assert bench.nccl is None or bench.nccl.violations() == []
        wait_until(lambda: bench.held() == 0, f"memory to be free, not {bench.held()} bytes")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two ranks, shared by the tests of a module that leave the group healthy."""
    with Group(tmp_path_factory.mktemp("p"), 2) as group:
        yield group


@pytest.fixture
def source(tmp_path):
    """(path, tensors) of a checkpoint with even, uneven, empty, scalar and odd tensors."""
    import torch
    generator = torch.Generator().manual_seed(11)
    tensors = {
        "embed.weight": torch.randn(37, 16, generator=generator).to(torch.bfloat16),
        "layer.0.weight": torch.randn(64, 32, generator=generator),
        "layer.0.bias": torch.randn(3, generator=generator),
        "layer.1.weight": torch.randn(5, 3, 7, generator=generator).to(torch.float16),
        "one": torch.randn(1, generator=generator).double(),
        "scalar": torch.tensor(7, dtype=torch.int64),
        "empty": torch.zeros(0, 4),
        "mask": torch.tensor([True, False, True]),
        "quantised": torch.randint(-128, 127, (9, 2), generator=generator, dtype=torch.int8),
        "fp8": torch.randn(6, 4, generator=generator).to(torch.float8_e4m3fn),
        "large": torch.randn(700, 1111, generator=generator),
    }
    return save(tmp_path / "ein Modell ü" / "model.safetensors", tensors), tensors


@contextlib.contextmanager
def scene_on(tier, folder):
    import ckptd
    from faults import sparse
    from noise import Scene
    path = sparse(folder / "m.safetensors", 1 << 20)
    environment = {**key_for(()), **tier.environment}
    with Group(folder, 2, *tier.options, environment=environment) as group, \
            Group(folder, 1, *tier.options, job="beside", environment=environment) as beside:
        with ckptd.connect(group.address(0)) as client:
            yield Scene(group, client, path, beside)
        assert group.ready()
    tier.assert_clean()


@pytest.fixture(scope="session")
def scene(tmp_path_factory):
    """A group with a checkpoint that hostile tests share: they must leave it healthy."""
    from tiers import Tier
    with scene_on(Tier(), tmp_path_factory.mktemp("h")) as made:
        yield made


@pytest.fixture(scope="module")
def gpu_scene(tmp_path_factory, fake_gpus):
    """The same in GPU memory."""
    from tiers import Tier
    with scene_on(Tier(fake_gpus), tmp_path_factory.mktemp("h")) as made:
        yield made


@pytest.fixture(scope="session")
def unshown(scene):
    """(AcquireShard reply, when) whose token nobody shows for as long as other tests take."""
    import time

    from faults import ticket
    return ticket(scene.client, scene.checkpoint), time.monotonic()


@pytest.fixture(scope="session")
def layouts(tmp_path_factory, worker_id):
    """(name) -> images.Layout of an image of this build, made once for processes that run tests beside each other."""
    import functools

    import images
    own = tmp_path_factory.getbasetemp()
    shared = (own if worker_id == "master" else own.parent) / "images"
    return functools.cache(lambda name: images.Layout(images.archive(shared, name), tmp_path_factory.mktemp(name)))


@pytest.fixture
def network():
    from hosts import TwoHosts
    with TwoHosts() as made:
        yield made


@pytest.fixture
def spread(network, tmp_path_factory):
    """spread(hosts, *options) -> a SpreadGroup that is ready."""
    from hosts import SpreadGroup
    started = []

    def make(hosts, *options, **named):
        group = SpreadGroup(tmp_path_factory.mktemp("s"), network, hosts, *options, **named)
        started.append(group)
        return group.__enter__()

    yield make
    for group in started:
        group.stop()


@pytest.fixture
def big(tmp_path):
    """48 MB: long enough to be cut in the middle of a slow link."""
    import torch
    tensors = {f"w{i}": torch.randn(1024, 1024 + i) for i in range(12)}
    return save(tmp_path / "big.safetensors", tensors), tensors
