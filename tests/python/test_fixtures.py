"""Checkpoints that the real tools wrote (tests/fixtures), each tensor by its hash.

Drives the program hash_tool, found through CKPTD_BUILD_DIR (its bin folder) or build/bin of the repository: one
process opens all sources.
"""

import collections
import functools
import hashlib
import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/fixtures"
PATIENCE = 300

# Cases that no reader reads yet. One that is read may not stay here.
NOT_YET = set("""
""".split())

DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "uint16": "U16", "int32": "I32", "uint32": "U32",
    "int64": "I64", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex32": "C32", "complex64": "C64", "complex128": "C128", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0",
    "bits8": "BITS8", "bits16": "BITS16",
}

# A source of a case: its path there, and what stands before its names in expected.json.
Source = collections.namedtuple("Source", "path prefix", defaults=("",))
MODEL, OPTIMIZER = "model.", "optimizer."
DCP_FOLDERS = [Source("pytorch_model_fsdp_0", MODEL), Source("optimizer_0", OPTIMIZER)]
FULL_FILES = [Source("pytorch_model_fsdp.bin", MODEL), Source("optimizer.bin", OPTIMIZER)]
SOURCES = {
    "accelerate_fsdp1_full": FULL_FILES,
    "accelerate_fsdp1_local_flat": [Source("optimizer_0", OPTIMIZER)],
    "accelerate_fsdp1_local_orig": [Source("optimizer_0", OPTIMIZER)],
    "accelerate_fsdp1_no_dcp": [Source("#model", MODEL), Source("#optimizer", OPTIMIZER)],
    "accelerate_fsdp1_sharded": DCP_FOLDERS,
    "accelerate_fsdp1_sharded_flat": DCP_FOLDERS,
    "accelerate_fsdp2_full": FULL_FILES,
    "accelerate_fsdp2_no_dcp": [Source("#model", MODEL), Source("#optimizer", OPTIMIZER)],
    "accelerate_fsdp2_sharded": DCP_FOLDERS,
    "accelerate_save_state_fsdp2": [Source("#all"), Source("", MODEL), Source("#optimizer", OPTIMIZER)],
    "bnb_fp4": [Source("model.safetensors"), Source("pytorch_model.bin")],
    "bnb_nf4": [Source("model.safetensors"), Source("pytorch_model.bin")],
    "dcp_hf_consolidated": [Source("")],
    "hf_trainer_checkpoint": [Source("#all"), Source("", MODEL), Source("optimizer.pt", OPTIMIZER)],
    "lightning_fsdp_dir": [Source("epoch=0-step=2.ckpt#all")],
    "torch_checkpointing": [Source("", MODEL), Source("#optimizer", OPTIMIZER)],
    "torch_checkpointing_no_metadata": [Source("", MODEL)],
    "torch_checkpointing_safetensors": [Source("", MODEL)],
    "torch_legacy_python2": [Source("py2_checkpoint.pth.tar#all")],
    "torch_sharded_bin": [Source("pytorch_model.bin.index.json"), Source("")],
    "lightning_ckpt": [Source("epoch=0-step=2.ckpt#all")],
    "torch_zip_namespace": [Source("iter_0000100/mp_rank_00/model_optim_rng.pt#all")],
    "torch_zip_opaque_zoo": [Source("checkpoint.pth#all")],
    "torch_zip_prefixes": [Source("checkpoint.pth.tar#all")],
    "torch_zip_whole_module": [Source("best.pt#all")],
}
# Tensors that a remark says that it left out, in words of it.
LEFT_OUT = {"torch_zip_dtypes": {"float4_e2m1fn_x2_t": "packed 4-bit"}}
# Whole training states, of which a folder means the model alone.
WHOLE = ("dcp_fsdp2", "dcp_hsdp", "dcp_safetensors_items", "dcp_torch", "megatron")
# Sources that are refused, each with words of the sentence about it.
SAYS = {
    "dcp_zstd": {"": "zstd"},
    "dcp_interrupted": {"": ".metadata"},
    "torch_tar": {"*": "tar"},
    "torch_zip_repacked_deflated": {"*": "compressed"},
    "torch_zip_shared_dag": {"*": ""},
    "torch_not_checkpoints": {
        "empty.pt": "empty", "git_lfs_pointer.bin": "Git LFS", "html_error_page.pt": "HTML", "json_error.bin": "JSON",
        "numpy.npz.pt": "NumPy", "one_byte.pt": "", "plain_pickle_no_torch.pkl": "pickle",
        "torchscript.pt": "TorchScript", "truncated_at_central_directory.pt": "", "truncated_zip.pt": "",
        "xml_denied.pth": "XML", "zip_head_zeroed.pt": "",
    },
}


def cases():
    return sorted(path.parent.name for path in FIXTURES.glob("*/expected.json"))


@functools.cache
def expected(case):
    return json.loads((FIXTURES / case / "expected.json").read_text())


def files_of(case):
    return sorted(path.name for path in (FIXTURES / case).iterdir() if path.name != "expected.json")


def sources(case):
    """All that hold the tensors of a case: its folder, or the one file in it."""
    if case in SAYS:
        return [Source(files_of(case)[0] if name == "*" else name) for name in SAYS[case]]
    files = files_of(case)
    if case.startswith(WHOLE):
        return [Source("#all")]
    alone = len(files) == 1 and (FIXTURES / case / files[0]).is_file()
    return SOURCES.get(case, [Source(files[0] if alone else "")])


def more_sources(case):
    """Sources with an expectation of their own."""
    if case.startswith("peft_adapter"):
        return {"second": {"tensors": expected(case)["second/tensors"]}}
    if case == "torch_legacy_python2":
        return {"sys_info_says_big.pth": expected(case)["files"]["sys_info_says_big.pth"]}
    return {}


def path_of(case, source):
    name, _, part = source.partition("#")
    path = str(FIXTURES / case / name) if name else str(FIXTURES / case)
    return path + ("#" + part if part else "")


def tool():
    build = pathlib.Path(os.environ.get("CKPTD_BUILD_DIR", ROOT / "build"))
    path = build / "bin/hash_tool"
    if not path.exists():
        pytest.skip(f"{path} is not built")
    return str(path)


def parse(answers):
    """Dicts from what hash_tool writes: each tensor with its hash."""
    while answers:
        length, answers = answers.split(b"\n", 1)
        answer, answers = json.loads(answers[:int(length)]), answers[int(length):]
        for tensor in answer.get("tensors", []):
            size = tensor.pop("bytes")
            tensor["sha256"], answers = hashlib.sha256(answers[:size]).hexdigest(), answers[size:]
        answer["tensors"] = {tensor["name"]: tensor for tensor in answer.get("tensors", [])}
        yield answer


@pytest.fixture(scope="module")
def opened():
    paths = [path_of(case, source) for case in cases()
             for source in [*(one.path for one in sources(case)), *more_sources(case)]]
    done = subprocess.run([tool()], input="".join(f"{path}\n" for path in paths).encode(), stdout=subprocess.PIPE,
                          check=True, timeout=PATIENCE)
    return dict(zip(paths, parse(done.stdout), strict=True))


def full_name(prefix, name):
    return name if name.startswith(prefix) and prefix else prefix + name


def merged(case, opened):
    """The content of all sources of a case together, by the names of expected.json."""
    together = {"tensors": {}, "aliases": {}, "values": {}, "opaque": {}, "remarks": []}
    for source in sources(case):
        answer = opened[path_of(case, source.path)]
        assert "error" not in answer, answer["error"]
        # A file of one part has the names as they were saved, or with the part's name already.
        for field in ("tensors", "values", "opaque"):
            for name, value in answer[field].items():
                together[field].setdefault(source.prefix + name, value)
                together[field].setdefault(full_name(source.prefix, name), value)
        for name, of in answer["aliases"].items():
            together["aliases"][source.prefix + name] = source.prefix + of
        together["remarks"] += answer["remarks"]
    return together


def check_tensor(name, want, got):
    assert got is not None, f"{name} is missing"
    assert got["sha256"] == want["sha256"], f"the bytes of {name} differ"
    if want["dtype"] in DTYPES:
        assert (got["dtype"], got["shape"]) == (DTYPES[want["dtype"]], want["shape"]), name


def check_tensors(case, wanted, got):
    left_out = {*expected(case).get("only_in_memory", ()), *(name for name, why in LEFT_OUT.get(case, {}).items()
                                                             if any(why in remark for remark in got["remarks"]))}
    if case == "megatron_old_fully_sharded_model_space":
        # These have the shapes of the model: test_dcp.py.
        left_out |= {name for name in wanted if name.startswith(OPTIMIZER)}
    aliases = {name: got["tensors"].get(of) for name, of in got["aliases"].items()}
    for name, want in wanted.items():
        if name not in left_out:
            check_tensor(name, want, got["tensors"].get(name, aliases.get(name)))


def check_aliases(case, got):
    left_out = set(expected(case).get("only_in_memory", ()))
    for names in expected(case).get("aliases", []):
        kept = {got["aliases"].get(name, name) for name in names if name not in left_out}
        assert len(kept) == 1, f"{names} are {kept}"


def check_values(case, got):
    for path, want in expected(case).get("scalars", {}).items():
        assert path in got["values"] or path in got["opaque"], f"{path} is missing"
        if not isinstance(want, dict) and path in got["values"] and want not in ("io.BytesIO", "bytes"):
            assert json.loads(got["values"][path]) == want, path


def check_objects(case, got):
    for path, what in expected(case).get("opaque", {}).items():
        named = path in got["opaque"] or (path in got["values"] and "scalar" in what)
        assert named or any(name.startswith(f"{path}.") for name in got["opaque"]), f"{path} ({what}) is not named"
    for path, what in expected(case).get("not_plain", {}).items():
        assert path not in got["tensors"]
        assert any(path in remark for remark in got["remarks"]), f"{path} ({what}) is not named"


def joined(path):
    return ".".join(str(key) for key in path)


def check_odd_names(case, got):
    """A name never stands for another tensor: it is right, or nobody has it."""
    by_hash = {one["sha256"]: one for one in expected(case)["by_path"]}
    counts = collections.Counter(joined(one["path"]) for one in expected(case)["by_path"])
    for name, tensor in got["tensors"].items():
        want = joined(by_hash[tensor["sha256"]]["path"])
        assert name == want or counts[want] > 1 or "\ud800" in want, (name, want)
    reached = {tensor["sha256"] for tensor in got["tensors"].values()}
    alone = {digest for digest, one in by_hash.items() if counts[joined(one["path"])] == 1}
    assert alone <= reached, [by_hash[digest]["path"] for digest in alone - reached]


def check_gguf(case, got):
    plain = {"F32": "F32", "F16": "F16", "BF16": "BF16"}
    for name, want in expected(case)["tensors"].items():
        if want["ggml_type"] in plain:
            one = got["tensors"][name]
            assert (one["dtype"], one["shape"]) == (plain[want["ggml_type"]], want["shape_row_major"])
            assert one["sha256"] == want["sha256"], name
        else:
            assert name not in got["tensors"]
            assert any(name in remark for remark in got["remarks"]), f"{name} is not named"


def check_refused(case, opened):
    sentences = []
    for source, (name, words) in zip(sources(case), SAYS[case].items(), strict=True):
        answer = opened[path_of(case, source.path)]
        assert "error" in answer, f"{name} was read"
        assert words in answer["error"].replace(str(FIXTURES / case), ""), answer["error"]
        # A limit of names is passed there; nothing else is wrong with it.
        assert answer["reason"].startswith("SOURCE_INVALID" if "shared" in case else "SOURCE_"), answer["reason"]
        sentences.append(answer["error"].split(": ", 1)[-1])
    # The same words for two files may be right only where both are cut short.
    assert len(set(sentences)) >= len(sentences) - 2, sentences


def check(case, opened):
    if case in SAYS:
        return check_refused(case, opened)
    got = merged(case, opened)
    if case == "gguf":
        return check_gguf(case, got)
    if case == "torch_zip_odd_names":
        return check_odd_names(case, got)
    want = expected(case)
    parts = tuple(source.prefix for source in sources(case))
    check_tensors(case, {name: one for name, one in want["tensors"].items() if name.startswith(parts)}, got)
    check_tensors(case, want.get("tensors_inside_opaque", {}), got)
    module = want.get("module_in_file", {})
    check_tensors(case, {name: module[name] for name in want.get("model_names_that_zero_to_fp32_does_not_give", [])},
                  got)
    check_aliases(case, got)
    check_values(case, got)
    check_objects(case, got)
    for source, of in more_sources(case).items():
        answer = opened[path_of(case, source)]
        assert "error" not in answer, answer["error"]
        check_tensors(case, of["tensors"], answer)
    return None


@pytest.mark.parametrize("case", cases())
def test_each_tensor_of_a_real_checkpoint_has_its_bytes(opened, case):
    if case not in NOT_YET:
        check(case, opened)
        return
    with pytest.raises((AssertionError, KeyError)):
        check(case, opened)


def test_what_is_not_read_yet_exists():
    assert set(cases()) >= NOT_YET
