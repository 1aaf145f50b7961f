"""Names of wrappers in module paths: which checkpoints lack them, and what only looks like one."""

import pytest

torch = pytest.importorskip("torch")

import ckptd.torch  # noqa: E402
from ckptd.torch.compat import _checkpoint_names  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper  # noqa: E402


def compiled(module):
    return torch.compile(module, backend="eager")


INTO = pytest.mark.parametrize("into", [
    lambda model, path, **how: ckptd.torch.load_into(model, path, **how),
    lambda model, path, **how: ckptd.torch.set_model_state_dict(model, path, **how),
], ids=["load_into", "set_model_state_dict"])


class Named(nn.Module):
    """Its parts are called as wrappers call theirs, but for some letters."""

    def __init__(self):
        super().__init__()
        self.base_orig_mod = nn.Linear(3, 2)
        self.my_fsdp_wrapped_module = nn.Sequential(nn.Linear(2, 2))
        self._checkpoint_wrapped_module_2 = nn.Linear(2, 3)
        self._orig_module = nn.Linear(2, 2)


@pytest.mark.parametrize("name,cleaned", [
    ("_orig_mod.weight", "weight"),
    ("a._orig_mod.b._orig_mod.weight", "a.b.weight"),
    ("_fsdp_wrapped_module.a._checkpoint_wrapped_module._orig_mod.weight", "a.weight"),
    ("a._orig_mod.", "a."),
    ("_orig_mod.", ""),
    ("base_orig_mod.weight", "base_orig_mod.weight"),
    ("a_fsdp_wrapped_module.b.weight", "a_fsdp_wrapped_module.b.weight"),
    ("_orig_module.weight", "_orig_module.weight"),
    ("a._orig_mod", "a._orig_mod"),  # a tensor's own name
    ("model.weight", "model.weight"),
    ("", ""),
])
def test_whole_parts_of_a_path_are_left_out(name, cleaned):
    assert _checkpoint_names.clean(name) == cleaned


@INTO
def test_parts_that_are_called_almost_as_wrappers_are_filled_by_their_names(daemon, tmp_path, into):
    state, model = Named().state_dict(), Named()
    save_file(state, tmp_path / "m.safetensors", metadata={"format": "pt"})
    into(model, tmp_path / "m.safetensors", address=daemon.path)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("saved", ["its own", "a plain one's"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
@INTO
def test_a_model_with_compiled_parts_is_filled_from_its_own_state_dict_and_a_plain_one(
    daemon, tmp_path, into, device, saved
):
    plain = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with torch.device(device):
        model = nn.Sequential(compiled(nn.Linear(2, 2)), compiled(nn.BatchNorm1d(2)))
    own = dict(zip(model.state_dict(), plain.state_dict().values()))
    assert "0._orig_mod.weight" in own
    state = own if saved == "its own" else plain.state_dict()
    save_file(state, tmp_path / "m.safetensors", metadata={"format": "pt"})
    into(model, tmp_path / "m.safetensors", address=daemon.path)
    assert all(torch.equal(tensor, own[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("wrap", [
    lambda part: part,
    compiled,
    checkpoint_wrapper,
    lambda part: compiled(checkpoint_wrapper(part)),
    lambda part: checkpoint_wrapper(compiled(part)),
], ids=["plain", "compiled", "checkpointed", "checkpointed, compiled", "compiled, checkpointed"])
@pytest.mark.parametrize("around", [lambda model: model, compiled], ids=["", "compiled"])
def test_the_names_of_a_model_s_own_state_dict(wrap, around):
    model = around(nn.Sequential(wrap(nn.Linear(2, 2)), nn.Sequential(wrap(nn.BatchNorm1d(2)))))
    own = [_checkpoint_names.as_saved(f"{path}.{name}" if path else name) for path, module in model.named_modules()
           for name in [*module._parameters, *module._buffers]]
    assert own == list(model.state_dict())
