"""What importing costs, and what the package offers."""

import gc
import importlib
import inspect
import os
import subprocess
import sys
import weakref

import ckptd
import pytest
from ckptd import _proto


def run(program, *arguments, **environment):
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["torch", "grpc", "numpy", "google.protobuf"])
def test_importing_the_package_does_not_import(module):
    assert run(f"import sys, ckptd; print({module!r} in sys.modules)") == "False"


def test_whoever_connects_has_imported_what_a_first_acquire_needs():
    needs = "{'ckptd._shard', 'ckptd._fds', 'ckptd._cuda', 'ckptd._mapping', 'ckptd._table'}"
    say = f"print(sorted({needs} - set(sys.modules)))"
    assert run(f"import sys, ckptd; ckptd.connect; {say}") == "[]"


def test_importing_the_loading_functions_imports_no_library_they_stand_in_for():
    pytest.importorskip("torch")
    libraries = "{'accelerate', 'transformers', 'safetensors'}"
    program = f"import sys, ckptd.torch, ckptd.accelerate; print(sorted({libraries} & set(sys.modules)))"
    assert run(program) == "[]"


def test_importing_the_loading_functions_imports_no_checkpoints_of_torch():
    pytest.importorskip("torch")
    name = "torch.distributed.checkpoint"
    assert run(f"import sys, torch; before = {name!r} in sys.modules; import ckptd.torch; "
               f"print(before, {name!r} in sys.modules, ckptd.torch.StorageReader.__name__)") in (
                   "False False StorageReader", "True True StorageReader")


# What programs call already, name by name. accelerate's own functions are in both packages.
ACCELERATE_S = (
    "compute_module_sizes",
    "disable_fsdp_ram_efficient_loading",
    "enable_fsdp_ram_efficient_loading",
    "fsdp2_load_full_state_dict",
    "fsdp2_prepare_model",
    "fsdp2_switch_optimizer_parameters",
    "get_balanced_memory",
    "get_max_layer_size",
    "infer_auto_device_map",
    "load_checkpoint_in_model",
    "load_offloaded_weights",
    "load_state_dict",
    "offload_state_dict",
    "retie_parameters",
    "set_module_tensor_to_device",
    "shard_checkpoint",
)
BOTH = (*ACCELERATE_S, "patch", "unpatch")
TORCH_S = (
    "DistModule",
    "StorageReader",
    "apply_fsdp2",
    "broadcast_and_shard_state_dict",
    "set_model_state_dict",
    "shard_broadcasted_state_dict",
)


@pytest.mark.parametrize(
    "module,names", [("torch", BOTH + TORCH_S), ("accelerate", BOTH)], ids=["torch", "accelerate"]
)
def test_every_loading_function_is_there_under_its_name(module, names):
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    package = importlib.import_module(f"ckptd.{module}")
    assert [name for name in names if not callable(getattr(package, name, None))] == []
    assert set(names) - set(package.__all__) == set() == set(names) - set(dir(package))


@pytest.mark.parametrize("name", BOTH)
def test_both_packages_have_the_same_function(name):
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    assert getattr(ckptd.torch, name) is getattr(ckptd.accelerate, name)


def test_every_name_that_a_package_lists_is_there():
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    packages = (ckptd.torch, ckptd.accelerate, ckptd.transformers)
    assert [(p, name) for p in packages for name in p.__all__ if not hasattr(p, name)] == []


@pytest.mark.parametrize("name", ["DistModule", "LazyStateDict", "LoadResult", "StorageReader"])
def test_pickles_name_a_class_as_users_do(name):
    pytest.importorskip("torch")
    kind = getattr(ckptd.torch, name)
    assert (kind.__module__, kind.__qualname__) == ("ckptd.torch", name)


@pytest.mark.parametrize("module", ["torch", "accelerate"])
def test_an_unknown_loading_function_is_an_attribute_error(module):
    pytest.importorskip("torch")
    with pytest.raises(AttributeError, match="no attribute 'laod_file'"):
        importlib.import_module(f"ckptd.{module}").laod_file


def test_the_first_loading_function_of_big_models_does_not_import_the_library_either():
    pytest.importorskip("torch")
    program = "import sys, ckptd.torch; ckptd.torch.load_checkpoint_in_model; print('accelerate' in sys.modules)"
    assert run(program) == "False"


# accelerate 0.34 had the last shard_checkpoint.
def shard_checkpoint(state_dict, max_shard_size="10GB", weights_name="pytorch_model.bin"):
    pass


def original(name):
    """What `name` stands in for."""
    if name == "set_model_state_dict":
        from torch.distributed.checkpoint import state_dict

        return state_dict.set_model_state_dict
    if name == "shard_checkpoint":
        return shard_checkpoint
    import accelerate.utils.fsdp_utils
    import accelerate.utils.modeling

    places = (accelerate.utils, accelerate.utils.fsdp_utils, accelerate.utils.modeling)
    return next(getattr(place, name) for place in places if hasattr(place, name))


def parameters(function):
    """[(name, kind, default)]"""
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def assert_called_alike(ours, theirs):
    """All arguments of the original in their order; others of ours can only be named."""
    mine, known = parameters(ours), parameters(theirs)
    assert mine[: len(known)] == known
    more = mine[len(known) :]
    assert [name for name, kind, _ in more if kind is not inspect.Parameter.KEYWORD_ONLY] == []
    assert [name for name, _, default in more if default is inspect.Parameter.empty] == []


@pytest.mark.parametrize("name", (*ACCELERATE_S, "set_model_state_dict"))
def test_a_stand_in_is_called_as_its_original(name):
    pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    assert_called_alike(getattr(ckptd.torch, name), original(name))


def test_a_wrapped_module_is_loaded_as_any_other():
    torch = pytest.importorskip("torch")
    assert_called_alike(ckptd.torch.DistModule.load_state_dict, torch.nn.Module.load_state_dict)


def test_every_public_name_exists():
    assert [name for name in ckptd.__all__ if not hasattr(ckptd, name)] == []


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        ckptd.laod


CHILD = (
    "child = os.fork()\n"
    "if child == 0:\n"
    "    signal.alarm(20)\n"
    "    try:\n"
    "        os._exit(len(ckptd.connect(sys.argv[1]).list()))\n"
    "    except ckptd.Error as error:\n"
    "        os._exit(7 if error.reason == 'FORKED' else 8)\n"
    "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
)


@pytest.mark.parametrize("before_the_fork", ["client.close()", "pass"])
def test_a_child_forked_after_a_call_is_told_that_it_cannot_call(daemon, source, before_the_fork):
    # In a process of its own: a fork beside a gRPC server is not what trainers do.
    program = (
        "import os, signal, sys, ckptd\n"
        "client = ckptd.connect(sys.argv[1])\n"
        "shard = client.acquire(client.load(sys.argv[2]))\n"
        f"{before_the_fork}\n{CHILD}"
    )
    assert run(program, daemon.path, source[0]) == "7"


def test_a_child_forked_before_any_call_works(daemon, client, source):
    client.load(source[0])
    assert run(f"import os, signal, sys, ckptd\n{CHILD}", daemon.path) == "1"


def test_a_process_that_ends_without_closing_ends_its_lease(daemon, source):
    run(
        "import sys, ckptd; keep = ckptd.connect(sys.argv[1]); s = "
        "keep.acquire(keep.load(sys.argv[2]))",
        daemon.path,
        source[0],
    )
    daemon.wait_for(lambda: daemon.leases == 0 and "AcquireShard" in daemon.calls)


def test_a_killed_process_ends_its_lease(daemon, source):
    program = (
        "import os, sys, ckptd; c = ckptd.connect(sys.argv[1]); s = c.acquire(c.load(sys.argv[2]));"
        "print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, daemon.path, source[0]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert holder.stdout.readline() == b"held\n"
    daemon.wait_for(lambda: daemon.leases == 1)
    holder.kill()
    holder.communicate(timeout=60)
    daemon.wait_for(lambda: daemon.leases == 0)


def test_the_class_of_a_part_of_a_message_outlives_its_messages():
    def part():
        return type(_proto.message("LoadSpec")().layout.rank_layout)
    first = weakref.ref(part())
    gc.collect()
    assert first() is part()
