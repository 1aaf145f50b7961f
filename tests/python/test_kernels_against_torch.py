"""The GPU kernels' host twins against PyTorch: casts bit for bit, and copies of random shapes.

Drives the program kernel_tool (tests/testing), found as cast_tool is.
"""

import dataclasses
import os
import pathlib
import random
import subprocess

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from test_cast_against_torch import PAIRS, TYPES, as_tensor, bits_of, cast, many  # noqa: E402

# What is copied as it is, by width; 16 bytes as rows only.
VERBATIM = {"U8": 1, "F8_E4M3": 1, "BF16": 2, "F32": 4, "F64": 8}


def tool():
    root = pathlib.Path(__file__).resolve().parents[2]
    build = pathlib.Path(os.environ.get("CKPTD_BUILD_DIR", root / "build"))
    path = build / "bin" / "kernel_tool"
    if not path.exists():
        pytest.skip(f"{path} is not built (it needs cuda.h)")
    return str(path)


@dataclasses.dataclass
class Job:
    source: str
    target: str
    skew: int
    block_begin: int
    block: bytes
    begin: int
    run_bytes: int
    count: list
    source_stride: list
    target_stride: list
    target_offset: int
    before: bytes

    def text(self):
        numbers = [self.skew, self.block_begin, len(self.block), self.begin, self.run_bytes, len(self.count),
                   *self.count, *self.source_stride, *self.target_stride, self.target_offset, len(self.before)]
        line = " ".join([self.source, self.target, *map(str, numbers)])
        return line.encode() + b"\n" + self.block + self.before


def run(jobs, mode):
    done = subprocess.run([tool(), mode], input=b"".join(job.text() for job in jobs),
                          stdout=subprocess.PIPE, check=True, timeout=100)
    results, at = [], 0
    for job in jobs:
        results.append(done.stdout[at:at + len(job.before)])
        at += len(job.before)
    assert at == len(done.stdout)
    return results


def width(name):
    return VERBATIM.get(name) or np.dtype(TYPES[name][1]).itemsize


def plain_job(bits, source, target, skew, mode):
    """All elements, one run."""
    block = bits.tobytes()
    before = bytes(len(bits) * width(target))
    job = Job(source, target, skew, 0, block, 0, len(block), [], [], [], 0, before)
    return np.frombuffer(run([job], mode)[0], TYPES[target][1])


@pytest.mark.parametrize("skew", [0, 1, 2, 8, 13], ids="skew{}".format)
@pytest.mark.parametrize("source,target", PAIRS)
def test_casts_have_the_bits_of_torch_and_nans_those_of_the_processor(source, target, skew):
    # Another skew is another way: the source's units lie straight, or across two of them.
    bits = many(source)
    if skew:
        bits = bits[: 200_001]
    got = plain_job(bits, source, target, skew, "batch" if skew == 8 else "single")
    tensor = as_tensor(bits, source)
    numbers = ~torch.isnan(tensor).numpy()
    wanted = bits_of(tensor.to(TYPES[target][0]))
    np.testing.assert_array_equal(got[numbers], wanted[numbers])
    np.testing.assert_array_equal(got, cast(bits, source, target))


def random_loops(rng, rank, run, most):
    """Counts and strides, outermost first, in elements; and the spans."""
    count, source, target = [], [], []
    # In half of them every run begins aligned, even if it is odd in length.
    grain = rng.choice([1, 8])
    spans = [run, run]
    elements = run
    for _ in range(rank):
        n = rng.choice([1, 1, 2, 3, 4, 7]) if elements * 7 <= most else 1
        elements *= n
        strides = [span + rng.choice([0, 0, 1, 2, 4, 5, 64]) for span in spans]
        strides = [-(-stride // grain) * grain for stride in strides]
        spans = [(n - 1) * stride + span for stride, span in zip(strides, spans)]
        count.insert(0, n)
        source.insert(0, strides[0])
        target.insert(0, strides[1])
    return count, source, target, spans


def offsets(count, stride, run):
    """Of each element, in elements: by broadcasting, unlike the kernels."""
    places = np.arange(run, dtype=np.int64)
    for n, step in zip(reversed(count), reversed(stride)):
        places = (np.arange(n, dtype=np.int64)[:, None] * step + places.reshape(1, -1)).reshape(-1)
    return places


def finite(rng, name, n):
    """Bytes of n elements without NaN."""
    if name in TYPES:
        values = torch.from_numpy(rng.standard_normal(n) * np.exp2(rng.integers(-30, 30, n)))
        return np.frombuffer(bits_of(values.to(TYPES[name][0])).tobytes(), np.uint8)
    return rng.integers(0, 256, n * width(name), dtype=np.uint8)


def random_job(seed, source, target):
    """A job, and what its target must hold afterwards."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    from_size, to_size = width(source), width(target)
    run = rng.choice([1, 2, 3, 8, 16, 100, 128, 1024])
    if rng.random() < 0.1:
        run *= 40
    loops = random_loops(rng, rng.randint(0, 8), run, 12_000)
    count, source_stride, target_stride, spans = loops
    file = finite(numbers, source, spans[0] + 20)
    begin = rng.choice([0, 8, 16, 3, 2]) + 4096
    # The block is any stretch of the file around the copy, or one that cuts it.
    low, high = 0, spans[0] + 20
    if rng.random() < 0.6:
        low = rng.randint(0, spans[0])
        high = rng.randint(low, spans[0] + 20)
    places = offsets(count, source_stride, run)
    inside = (places >= low) & (places < high)
    before = numbers.integers(0, 256, spans[1] * to_size + 64, dtype=np.uint8)
    target_offset = 8 * rng.randint(0, 4)
    after = before.copy()
    rows = file.reshape(-1, from_size)[places[inside]]
    if source != target:
        elements = as_tensor(rows.reshape(-1).view(TYPES[source][1]), source)
        rows = np.frombuffer(bits_of(elements.to(TYPES[target][0])).tobytes(), np.uint8).reshape(-1, to_size)
    to = offsets(count, target_stride, run)[inside] * to_size + target_offset
    after[to[:, None] + np.arange(to_size)] = rows
    job = Job(source, target, rng.choice([0, 0, 8, 4, 2, 1, 7, 11, 12, 15]), begin + low * from_size,
              file[low * from_size:high * from_size].tobytes(), begin, run * from_size, count,
              [n * from_size for n in source_stride], [n * to_size for n in target_stride],
              target_offset, before.tobytes())
    return job, after


@pytest.mark.parametrize("mode", ["single", "batch"])
def test_random_copies_land_where_numpy_puts_them_and_nowhere_else(mode):
    pairs = PAIRS * 20 + [(name, name) for name in VERBATIM] * 60
    made = [random_job(seed, *pair) for seed, pair in enumerate(pairs)]
    for seed, (got, (job, wanted)) in enumerate(zip(run([job for job, _ in made], mode), made)):
        np.testing.assert_array_equal(np.frombuffer(got, np.uint8), wanted, err_msg=f"seed {seed}: {job.count}")
