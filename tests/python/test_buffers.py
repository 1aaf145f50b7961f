"""Buffers that no checkpoint holds, and buffers in general."""

import ckptd
import pytest

torch = pytest.importorskip("torch")

from fsdp_cases import Net, numbers, on_meta  # noqa: E402
from torch import nn  # noqa: E402


def test_buffers_left_on_meta_are_an_error_that_names_them(make):
    with pytest.raises(ckptd.FailedPrecondition, match=r"\(freq\); pass init_buffers="):
        make.load(on_meta(), numbers(Net()), init_buffers=None)


def test_buffers_nobody_filled_are_not_left_with_arbitrary_values(make):
    model = on_meta()
    with pytest.raises(ckptd.FailedPrecondition):
        make.load(model, numbers(Net()), init_buffers=lambda m, names: None)
    assert model.freq.is_meta


def test_a_buffer_may_be_filled_in_place(make):
    model = on_meta()
    assert make.load(model, numbers(Net())).made == ["freq"]
    assert torch.equal(model.freq, torch.arange(8.0))


def test_a_buffer_that_two_modules_share_stays_one(make):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Module(), nn.Module()
            self.first.register_buffer("table", torch.zeros(3))
            self.second.register_buffer("table", self.first.table)

    model = on_meta(Pair)
    make.load(model, {"first.table": torch.arange(3.0)})
    assert model.second.table is model.first.table and model.first.table.tolist() == [0, 1, 2]


def test_a_buffer_may_be_replaced(make):
    def replace(model, names):
        model.freq = torch.full((8,), 2.0)

    model = on_meta()
    make.load(model, numbers(Net()), init_buffers=replace)
    assert torch.equal(model.freq, torch.full((8,), 2.0))


def test_a_real_non_persistent_buffer_is_left_alone(make):
    model = Net()
    model.freq.fill_(9)
    make.load(model, numbers(Net()))
    assert torch.equal(model.freq, torch.full((8,), 9.0))


def test_a_non_persistent_buffer_in_the_checkpoint_fills_one_on_meta(make):
    model = on_meta()
    make.load(model, {**numbers(Net()), "freq": torch.full((8,), 4.0)}, init_buffers=None)
    assert torch.equal(model.freq, torch.full((8,), 4.0))


class Rotary(nn.Module):
    """As transformers has it: frequencies that only _init_weights can compute."""

    def __init__(self):
        super().__init__()
        self.register_buffer("inv_freq", torch.zeros(4), persistent=False)


class Pretrained(nn.Module):
    config = object()

    def __init__(self):
        super().__init__()
        self.rotary = Rotary()
        self.proj = nn.Linear(2, 2)
        self.touched = []

    def _init_weights(self, module):
        self.touched.append(type(module).__name__)
        for parameter in module.parameters():
            if not getattr(parameter, "_is_hf_initialized", False):
                parameter.fill_(float("nan"))
        if isinstance(module, Rotary):
            module.inv_freq.copy_(torch.tensor([1.0, 0.5, 0.25, 0.125]))


def test_a_hugging_face_model_computes_its_own_buffers(make):
    model = on_meta(Pretrained)
    result = make.load(model, numbers(Pretrained()), init_buffers=None)
    assert result.made == ["rotary.inv_freq"] and model.rotary.inv_freq.tolist() == [
        1.0,
        0.5,
        0.25,
        0.125,
    ]


def test_a_hugging_face_model_initialises_only_modules_with_open_buffers(make):
    model = on_meta(Pretrained)
    make.load(model, numbers(Pretrained()), init_buffers=None)
    assert model.touched == ["Rotary"]


def test_a_hugging_face_model_that_does_not_fill_them_is_an_error(make, monkeypatch):
    monkeypatch.setattr(Pretrained, "_init_weights", lambda self, module: None)
    with pytest.raises(ckptd.FailedPrecondition, match="rotary.inv_freq"):
        make.load(on_meta(Pretrained), numbers(Pretrained()), init_buffers=None)
