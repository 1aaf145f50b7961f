"""Tensors in rank 0's state dict that are not their elements in memory: named, with what to pass instead."""

import warnings

import pytest

torch = pytest.importorskip("torch")

import ckptd  # noqa: E402
import ckptd.torch  # noqa: E402
from torch import nn  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.distributed.checkpoint.state_dict import StateDictOptions  # noqa: E402


class Wrapper(torch.Tensor):
    """Holds its values in another tensor, as quantised ones do."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        arguments = [a.inner if isinstance(a, Wrapper) else a for a in arguments]
        found = function(*arguments, **(options or {}))
        return Wrapper(found) if isinstance(found, torch.Tensor) else found


class Mute(Wrapper):
    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        raise NotImplementedError(function)


class Named(torch.Tensor):
    """Of its own type, and yet with plain memory."""


def fake():
    with FakeTensorMode():
        return torch.ones(2, 3)


def freed():
    tensor = torch.ones(2, 3)
    tensor.untyped_storage().resize_(0)
    return tensor


def nested():
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


ODD = {
    "sparse": (lambda: torch.ones(2, 3).to_sparse(), "TENSOR_SUBCLASS", "of layout torch.sparse_coo, .*; pass its .to_dense"),
    "csr": (lambda: torch.ones(2, 3).to_sparse_csr(), "TENSOR_SUBCLASS", "of layout torch.sparse_csr, .*to_dense"),
    "wrapper": (lambda: Wrapper(torch.ones(2, 3)), "TENSOR_SUBCLASS", "of type Wrapper, .*; pass what it wraps as a plain tensor"),
    "parameter": (lambda: nn.Parameter(Wrapper(torch.ones(2, 3)), False), "TENSOR_SUBCLASS", "of type Wrapper, "),
    "mute": (lambda: Mute(torch.ones(2, 3)), "TENSOR_SUBCLASS", "of type Mute, "),
    "fake": (fake, "TENSOR_SUBCLASS", "of type FakeTensor, "),
    "nested": (nested, "TENSOR_SUBCLASS", "a nested tensor, .*; pass its parts"),
    "lazy": (nn.UninitializedParameter, "NO_VALUES", "of type UninitializedParameter, .* before the first forward; take"),
    "freed": (freed, "NO_VALUES", "its memory has been freed, .*; pass a state dict that has them"),
    "meta": (lambda: torch.empty(2, 3, device="meta"), "NO_VALUES", "it is on meta"),
}


def load(daemon, state, **options):
    model = nn.ModuleDict({"up": nn.Linear(3, 2, bias=False)})
    wish = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, **options)
    return model, ckptd.torch.set_model_state_dict(model, state, options=wish, address=daemon.path)


@pytest.mark.parametrize("make,reason,sentence", ODD.values(), ids=ODD)
def test_it_is_refused_by_name_with_what_to_pass_instead(daemon, make, reason, sentence):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that some of these are experimental
        state = {"up.weight": make()}
    with pytest.raises(ckptd.FailedPrecondition, match=f"^spreading up.weight: on rank 0 (it is )?{sentence}") as raised:
        load(daemon, state)
    assert raised.value.reason == reason and raised.value.facts == {"tensor": "up.weight"}


@pytest.mark.parametrize("make", [row[0] for row in ODD.values()], ids=ODD)
def test_it_is_no_matter_under_a_name_that_the_model_lacks(daemon, make):
    weight = torch.randn(2, 3)
    model, keys = load(daemon, {"up.weight": weight, "other": make()}, strict=False)
    assert torch.equal(model["up"].weight, weight) and keys.unexpected_keys == ["other"]


def test_a_type_of_its_own_over_plain_memory_is_taken(daemon):
    weight = torch.randn(2, 3)
    model, _ = load(daemon, {"up.weight": weight.as_subclass(Named)})
    assert torch.equal(model["up"].weight, weight)
