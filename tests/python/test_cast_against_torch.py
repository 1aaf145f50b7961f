"""Casts of the daemon against PyTorch's own, bit for bit.

Drives the program cast_tool, found through CKPTD_BUILD_DIR (its bin folder) or
build/bin of the repository.
"""

import os
import pathlib
import subprocess

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

TYPES = {
    "F16": (torch.float16, np.uint16),
    "BF16": (torch.bfloat16, np.uint16),
    "F32": (torch.float32, np.uint32),
    "F64": (torch.float64, np.uint64),
}
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
PAIRS = [(a, b) for a in TYPES for b in TYPES if a != b]
# All of torch's kernels give these the same NaN bits; elsewhere NaN is NaN.
SAME_NANS = {("F32", "F64"), ("F64", "F32"), ("F16", "F64"), ("F16", "BF16"),
             ("BF16", "F32"), ("BF16", "F64")}


def tool():
    root = pathlib.Path(__file__).resolve().parents[2]
    build = pathlib.Path(os.environ.get("CKPTD_BUILD_DIR", root / "build"))
    path = build / "bin" / "cast_tool"
    if not path.exists():
        pytest.skip(f"{path} is not built")
    return str(path)


def cast(bits, source, target):
    done = subprocess.run([tool(), source, target], input=bits.tobytes(),
                          stdout=subprocess.PIPE, check=True, timeout=60)
    return np.frombuffer(done.stdout, TYPES[target][1])


def as_tensor(bits, name):
    signed = torch.from_numpy(bits.view(f"i{bits.itemsize}").copy())
    return signed.view(TYPES[name][0])


def bits_of(tensor):
    signed = tensor.view(INTEGERS[tensor.element_size()]).numpy()
    return signed.view(f"u{tensor.element_size()}")


def every_16_bits():
    return np.arange(1 << 16, dtype=np.uint16)


def many(name):
    """Random bits, bits near every rounding boundary, and special values."""
    kind = TYPES[name][1]
    if kind is np.uint16:
        return every_16_bits()
    generator = np.random.default_rng(7)
    top = np.iinfo(kind).max
    wild = generator.integers(0, top, 1_000_000, dtype=kind, endpoint=True)
    narrow = generator.integers(0, 1 << 16, 1_000_000, dtype=np.uint16)
    with np.errstate(all="ignore"):
        exact = narrow.view(np.float16).astype(f"f{np.dtype(kind).itemsize}")
        # Half way to the next F16, and one unit to either side of it.
        half = exact * (1 + 2.0**-11)
    ties = half.astype(exact.dtype).view(kind)
    shift = 8 * np.dtype(kind).itemsize - 16
    upper = generator.integers(0, 1 << 17, 500_000, dtype=np.uint64)
    bf16_ties = (upper << np.uint64(shift - 1)).astype(kind)
    return np.concatenate([wild, ties, ties + kind(1), ties - kind(1), bf16_ties,
                           bf16_ties + kind(1)])


@pytest.mark.parametrize("source,target", PAIRS)
def test_numbers_have_the_bits_that_torch_gives_them(source, target):
    bits = many(source)
    tensor = as_tensor(bits, source)
    wanted = bits_of(tensor.to(TYPES[target][0]))
    got = cast(bits, source, target)
    numbers = ~torch.isnan(tensor).numpy()
    np.testing.assert_array_equal(got[numbers], wanted[numbers])


@pytest.mark.parametrize("source,target", PAIRS)
def test_nan_stays_nan(source, target):
    bits = many(source)
    nans = torch.isnan(as_tensor(bits, source))
    assert nans.any()
    got = as_tensor(cast(bits, source, target), target)
    assert torch.equal(torch.isnan(got), nans)


@pytest.mark.parametrize("source,target", sorted(SAME_NANS))
def test_nans_have_the_bits_that_all_torch_kernels_agree_on(source, target):
    bits = many(source)
    tensor = as_tensor(bits, source)
    nans = torch.isnan(tensor).numpy()
    wanted = bits_of(tensor.to(TYPES[target][0]))
    np.testing.assert_array_equal(cast(bits, source, target)[nans], wanted[nans])
