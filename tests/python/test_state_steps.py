"""On which device an optimizer gets its step. No daemon."""

import types

import pytest

torch = pytest.importorskip("torch")

from ckptd.torch.resume import _load_optimizers  # noqa: E402


class OnGpu:
    """A tensor in a GPU's memory."""

    def cpu(self):
        return "on the host"


@pytest.mark.parametrize("name,options,is_moved", [
    ("step", {}, True), ("step", {"capturable": False, "fused": None}, True), ("step", {"capturable": True}, False),
    ("step", {"fused": True}, False), ("exp_avg", {}, False)])
def test_a_step_is_where_torch_counts_it(name, options, is_moved):
    view, param = OnGpu(), types.SimpleNamespace(options=options)
    found = _load_optimizers._tensor(types.SimpleNamespace(spec=None), param, name, None, view, None)
    assert found == ("on the host" if is_moved else view)
