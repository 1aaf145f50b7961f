"""ckptctl convert, split, diff and verify: what they write is what the stock tools write and read.

The program is found through CKPTD_BUILD_DIR (its bin folder) or build/bin of the repository.
"""

import io
import json
import os
import pathlib
import resource
import shlex
import shutil
import signal
import struct
import subprocess
import zipfile

import pytest

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")
hub = pytest.importorskip("huggingface_hub")

import torch.distributed.checkpoint as dcp  # noqa: E402
from safetensors import safe_open  # noqa: E402
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/fixtures"
PATIENCE = 120
PT = {"format": "pt"}
# Dtypes that torch and safetensors both have.
DTYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64,
          torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
          torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2]
ODD_NAMES = ["with space", 'quote"d', "back\\slash", "tab\t", "line\nfeed", "\x01", "ümlaut", "日本", "😀", "a.b.c", ""]


def program():
    path = pathlib.Path(os.environ.get("CKPTD_BUILD_DIR", ROOT / "build")) / "bin/ckptctl"
    if not path.exists():
        pytest.skip(f"{path} is not built")
    return str(path)


def ckptctl(*arguments, code=0, **options):
    done = subprocess.run([program(), *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE, **options)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def random(shape, dtype, seed=0):
    """Random bits, NaNs and all."""
    size = torch.empty(0, dtype=dtype).element_size()
    generator = torch.Generator().manual_seed(seed)
    count = max(1, torch.Size(shape).numel())
    high = 2 if dtype == torch.bool else 256
    bits = torch.randint(0, high, (count * size,), generator=generator, dtype=torch.uint8)
    return bits.view(dtype)[:torch.Size(shape).numel()].reshape(shape)


def every_kind():
    tensors = {f"t.{dtype}".replace("torch.", ""): random((3, 5), dtype, i) for i, dtype in enumerate(DTYPES)}
    tensors.update({name: random((2,), torch.float32, i) for i, name in enumerate(ODD_NAMES)})
    tensors.update(scalar=torch.tensor(7), empty=torch.zeros(0, 3), none=torch.zeros(3, 0, 2, dtype=torch.float16))
    return tensors


def save(tensors, path):
    safetensors_torch.save_file(tensors, path, metadata=PT)
    return path


def same(a, b):
    bits = torch.uint8
    return (a.dtype, a.shape) == (b.dtype, b.shape) and torch.equal(
        a.contiguous().reshape(-1).view(bits), b.contiguous().reshape(-1).view(bits))


def assert_same(found, wanted):
    assert set(found) == set(wanted)
    assert [name for name in wanted if not same(found[name], wanted[name])] == []


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """(folder, tensors): two files and an index, with files beside them."""
    folder = tmp_path_factory.mktemp("source")
    tensors = every_kind()
    names = sorted(tensors, key=hash)
    shards = {"a-00001-of-00002.safetensors": names[::2], "a-00002-of-00002.safetensors": names[1::2]}
    for file, keys in shards.items():
        save({key: tensors[key] for key in keys}, folder / file)
    weight_map = {key: file for file, keys in shards.items() for key in keys}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text("{}")
    (folder / "optimizer.pt").write_text("no weights")
    return folder, tensors


def test_a_file_is_byte_for_byte_save_file_s(source, tmp_path):
    folder, tensors = source
    ckptctl("convert", folder, tmp_path / "out.safetensors")
    assert (tmp_path / "out.safetensors").read_bytes() == save(tensors, tmp_path / "want").read_bytes()


def test_a_folder_has_the_files_beside_the_weights(source, tmp_path):
    folder, tensors = source
    answer = json.loads(ckptctl("convert", folder, tmp_path / "out", "--output", "json").stdout)
    assert answer["files"] == ["model.safetensors", "config.json"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    assert answer["tensor_count"] == str(len(tensors))


def test_torch_loads_what_is_written_for_it(source, tmp_path):
    folder, tensors = source
    out = tmp_path / "out.pt"
    ckptctl("convert", folder, out)
    for options in ({}, {"mmap": True}):
        assert_same(torch.load(out, weights_only=True, **options), tensors)
    with zipfile.ZipFile(out) as archive:
        assert archive.testzip() is None


def test_tensors_of_a_torch_file_begin_at_multiples_of_64(tmp_path):
    ckptctl("convert", save({"a": torch.zeros(3), "b": torch.ones(5)}, tmp_path / "in.safetensors"), tmp_path / "o.bin")
    raw = (tmp_path / "o.bin").read_bytes()
    with zipfile.ZipFile(tmp_path / "o.bin") as archive:
        for one in archive.infolist():
            name, extra = struct.unpack_from("<HH", raw, one.header_offset + 26)
            assert (one.header_offset + 30 + name + extra) % 64 == 0


def test_dcp_loads_what_is_written_for_it(source, tmp_path):
    folder, tensors = source
    ckptctl("convert", folder, tmp_path / "out", "--to", "dcp")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {".metadata", "__0_0.distcp", "config.json"}
    found = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    dcp.load(found, checkpoint_id=tmp_path / "out", no_dist=True)
    assert_same(found, tensors)
    dcp_to_torch_save(tmp_path / "out", tmp_path / "flat.pt")
    assert_same(torch.load(tmp_path / "flat.pt", weights_only=True), tensors)


def test_a_dcp_folder_fills_a_model_whose_names_it_has(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    wanted = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ckptctl("convert", save(wanted, tmp_path / "in.safetensors"), tmp_path / "out", "--to", "dcp", "--rename", "^=model.")
    state = {"model": {name: torch.zeros_like(tensor) for name, tensor in wanted.items()}}
    dcp.load(state, checkpoint_id=tmp_path / "out", no_dist=True)
    assert_same(state["model"], wanted)


def test_documented_commands_on_lightning_s_files_work(tmp_path):
    weights = {"model.up.weight": torch.randn(3, 2), "model.up.bias": torch.randn(3)}
    torch.save({"epoch": 1, "pytorch-lightning_version": "2.6.0", "state_dict": weights, "optimizer_states": [{}]},
               tmp_path / "last.ckpt")
    text = ckptctl("convert", "--help").stdout + (ROOT / "deploy/formats.md").read_text() + ckptctl("diff", "--help").stdout
    lines = [line.split("#")[0] for line in text.splitlines() if line.strip().startswith("ckptctl") and "last.ckpt" in line]
    assert len(lines) == 3
    for line in lines:
        verb, *words = shlex.split(line)[1:]
        ckptctl(verb, *words, cwd=tmp_path, code=5 if verb == "diff" else 0)  # BF16 differs
    assert set(safetensors_torch.load_file(tmp_path / "model.safetensors")) == {"up.weight", "up.bias"}


@pytest.mark.parametrize("verb", ["convert", "split"])
@pytest.mark.parametrize("source", ["peft_adapter", "peft_adapter_bin/adapter_model.bin"])
def test_an_adapter_has_the_names_that_peft_opens(verb, source, tmp_path):
    def names(folder):
        return {path.name for path in (tmp_path / folder).iterdir()} - {"expected.json"}

    ckptctl(verb, FIXTURES / source, tmp_path / "out")
    to = "bin" if verb == "split" and source.endswith(".bin") else "safetensors"
    assert names("out") == {"adapter_config.json", f"adapter_model.{to}"}
    ckptctl("diff", FIXTURES / source, tmp_path / "out")
    ckptctl("convert", tmp_path / "out", tmp_path / "torch", "--to", "torch")
    assert names("torch") == {"adapter_config.json", "adapter_model.bin"}
    refused = ckptctl(verb, FIXTURES / source, tmp_path / "shards", "--max-shard-size", "1KB", code=2)
    assert "PEFT" in refused.stderr and not (tmp_path / "shards").exists()


@pytest.mark.parametrize("name", ["BF16", "F16", "F32", "F64"])
def test_casts_are_torch_s(name, tmp_path):
    dtype = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}[name]
    values = torch.randn(300, 7, dtype=torch.float64) * 10.0 ** torch.randint(-12, 12, (300, 1))
    tensors = {str(one): values.to(one) for one in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}
    tensors["integers"] = torch.arange(5)
    ckptctl("convert", save(tensors, tmp_path / "in.safetensors"), tmp_path / "out.safetensors", "--dtype", name)
    wanted = {key: value.to(dtype) if value.is_floating_point() else value for key, value in tensors.items()}
    assert_same(safetensors_torch.load_file(tmp_path / "out.safetensors"), wanted)


def test_names_are_chosen_and_changed_as_by_re_sub(tmp_path):
    names = ["model.layers.0.w", "model.layers.1.w", "model.layers.0.b", "head"]
    made = save({name: torch.full((2,), float(i)) for i, name in enumerate(names)}, tmp_path / "in.safetensors")
    (tmp_path / "rules").write_text("# numbers\n^model\\.=\n\nlayers\\.(\\d+)=h.\\1\n")
    ckptctl("convert", made, tmp_path / "out.safetensors", "--exclude", "*.b", "--rename", f"@{tmp_path / 'rules'}")
    found = safetensors_torch.load_file(tmp_path / "out.safetensors")
    assert {name: tensor[0].item() for name, tensor in found.items()} == {"h.0.w": 0, "h.1.w": 1, "head": 3}


# --- spreading over files ------------------------------------------------------

KB = 250  # elements of float32
SPLITS = {
    "one file": ([1, 1], "2KB"),
    "a sum that is the limit": ([1, 1, 1, 1], "2KB"),
    "one above the limit": ([1, 3, 1, 1], "2KB"),
    "all above it": ([3, 3, 5], "2KB"),
    "the largest last": ([1, 1, 9], "2KB"),
    "hub's example": ([6, 6, 2, 6, 2, 2], "10KB"),
    "tensors without bytes": ([2, 0, 2, 0, 1, 0], "3KB"),
    "only those": ([0, 0], "1KB"),
    "a fraction": ([1, 1, 1], "1.5KB"),
}


@pytest.mark.parametrize("case", SPLITS)
def test_split_is_huggingface_hub_s_rule_and_accelerate_s_files(case, tmp_path):
    sizes, limit = SPLITS[case]
    made = save({f"t{i:02}": torch.randn(size * KB) for i, size in enumerate(sizes)}, tmp_path / "in.safetensors")
    ckptctl("split", made, tmp_path / "out", "--max-shard-size", limit)
    # As in a model, where each tensor has memory of its own: all that have no bytes are one to the hub.
    state = {name: tensor.clone() for name, tensor in safetensors_torch.load_file(made).items()}
    split = hub.split_torch_state_dict_into_shards(state, max_shard_size=limit)
    want = {}
    for file, names in split.filename_to_tensors.items():
        want[file] = save({name: state[name] for name in names}, tmp_path / "shard").read_bytes()
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        want["model.safetensors.index.json"] = (json.dumps(index, indent=2, sort_keys=True) + "\n").encode()
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == want


def test_torch_files_are_spread_as_well(source, tmp_path):
    folder, tensors = source
    ckptctl("convert", folder, tmp_path / "out", "--to", "torch", "--max-shard-size", "100")
    index = json.loads((tmp_path / "out/pytorch_model.bin.index.json").read_text())
    assert index["metadata"] == {"total_size": sum(tensor.nbytes for tensor in tensors.values())}
    found = {}
    for file in set(index["weight_map"].values()):
        shard = torch.load(tmp_path / "out" / file, weights_only=True)
        assert {index["weight_map"][name] for name in shard} == {file}
        found.update(shard)
    assert_same(found, tensors)


@pytest.mark.parametrize("size", ["5GiB", "0", "much"])
def test_a_size_that_hub_does_not_know_is_refused(size, tmp_path):
    done = ckptctl("split", "x", tmp_path / "out", "--max-shard-size", size, code=2)
    assert size in done.stderr


# --- whole, or not at all ------------------------------------------------------

def opens(path):
    """Whether a stock loader takes what lies there."""
    try:
        if path.is_dir():
            dcp.FileSystemReader(path).read_metadata()
            return True
        if path.suffix == ".json":
            return path.name.endswith(".index.json")
    except Exception:
        return False
    for load in (lambda: safe_open(path, "pt").keys(), lambda: torch.load(path, weights_only=True)):
        try:
            load()
            return True
        except Exception:
            continue
    return False


@pytest.mark.parametrize("to", ["safetensors", "torch", "dcp"])
def test_a_run_that_is_killed_leaves_nothing_that_a_loader_takes_and_can_be_called_again(to, tmp_path):
    tensors = {"a": torch.randn(1000), "b": torch.randn(500_000)}
    made = save(tensors, tmp_path / "in.safetensors")
    out = tmp_path / "work/out"
    out.parent.mkdir()
    arguments = ["convert", made, out, "--to", to] + (["--max-shard-size", "1MB"] if to != "dcp" else [])
    limit = 1_500_000  # of a file: the kernel ends the process within the second tensor
    done = subprocess.run([program(), *map(str, arguments)], capture_output=True, timeout=PATIENCE,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert done.returncode == -signal.SIGXFSZ, done.stderr
    left = list(out.parent.rglob("*"))
    assert not out.exists() and left
    # A first file may be whole, under the hidden folder's name alone.
    assert [path for path in left if opens(path) and ".out.ckptd-partial" not in str(path)] == []
    assert [path for path in left if path.suffix in (".json", ".metadata")] == []
    ckptctl(*arguments)
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    ckptctl("diff", made, out)


def test_what_is_there_is_not_replaced(tmp_path):
    made = save({"a": torch.zeros(3)}, tmp_path / "in.safetensors")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("")
    for target in ("in.safetensors", "full"):
        done = ckptctl("convert", made, tmp_path / target, "--output", "json", code=1)
        assert json.loads(done.stderr)["error"]["reason"] == "TARGET_INVALID"


def test_a_full_disk_is_said_beforehand_and_leaves_nothing(tmp_path):
    made = tmp_path / "large.safetensors"
    size = 2 * shutil.disk_usage(tmp_path).free
    header = json.dumps({"t": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with open(made, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        try:
            file.truncate(8 + len(header) + size)
        except OSError:
            pytest.skip("no sparse file of that size here")
    done = ckptctl("convert", made, tmp_path / "out", code=1)
    assert "free" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [made.name]


def test_memory_stays_small(tmp_path):
    size = 1 << 30
    header = json.dumps({f"t{i}": {"dtype": "F32", "shape": [size // 16], "data_offsets": [i * size // 4, (i + 1) * size // 4]}
                         for i in range(4)}).encode()
    made = tmp_path / "large.safetensors"
    with open(made, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)  # zeros that take no room
    code = ("import os, resource, subprocess, sys\n"
            "done = subprocess.run(sys.argv[1:])\n"
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
            "sys.exit(done.returncode)")
    import sys
    done = subprocess.run([sys.executable, "-c", code, program(), "convert", str(made), str(tmp_path / "out.bin"),
                           "--dtype", "BF16", "--quiet"], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < 200 * 1024


# --- comparing -----------------------------------------------------------------

def differences(*arguments, code):
    answer = json.loads(ckptctl("diff", *arguments, "--output", "json", code=code).stdout)
    return {one["tensor"]: one for one in answer["differences"]}


def test_diff_finds_what_differs_and_by_how_much(tmp_path):
    first = {"same": torch.arange(4.0), "moved": torch.tensor([1.0, 2.0, 3.0]), "gone": torch.zeros(1), "shape": torch.zeros(2),
             "dtype": torch.tensor([1.0, 1.0 / 3]), "number": torch.tensor([5, -7]), "nan": torch.tensor([1.0, float("nan")])}
    second = {**first, "moved": torch.tensor([1.0, 2.5, -3.0]), "shape": torch.zeros(3), "new": torch.zeros(1),
              "dtype": first["dtype"].to(torch.bfloat16), "number": torch.tensor([5, 9]), "nan": torch.tensor([1.0, 2.0])}
    del second["gone"]
    a, b = save(first, tmp_path / "a.safetensors"), save(second, tmp_path / "b.safetensors")
    found = differences(a, b, code=5)
    assert {name: one["kind"] for name, one in found.items()} == {
        "moved": "values", "gone": "missing", "shape": "shape", "new": "extra", "dtype": "dtype", "number": "values",
        "nan": "values"}
    assert (found["moved"]["elements"], found["moved"]["largest"]) == ("2", 6.0)
    assert found["number"]["largest"] == 16.0
    assert found["nan"]["largest"] == "NaN"
    assert found["dtype"]["elements"] == "1"
    assert found["dtype"]["largest"] == (first["dtype"][1].double() - second["dtype"][1].double()).abs().item()


def test_diff_finds_nothing_across_formats_and_cuts(source, tmp_path):
    folder, _ = source
    ckptctl("convert", folder, tmp_path / "out", "--max-shard-size", "300")
    done = ckptctl("diff", folder, tmp_path / "out")
    assert "no difference" in done.stdout


def test_verify_reads_every_byte(source, tmp_path):
    folder, tensors = source
    answer = json.loads(ckptctl("verify", folder, "--output", "json").stdout)
    assert answer["ok"] and answer["bytes"] == str(sum(tensor.nbytes for tensor in tensors.values()))


def test_plan_draws_a_page_that_needs_nothing_else(source, tmp_path):
    folder, _ = source
    page = tmp_path / "plan.html"
    ckptctl("plan", folder, "--layout", "fsdp:2", "--html", page)
    text = page.read_text()
    assert "rank 1" in text and "http" not in text and "quote&quot;d" in text
    assert io.StringIO(text).readline() == "<!DOCTYPE html>\n"
