"""Buffers that no checkpoint holds, and buffers in general."""

import ckptd
import pytest

torch = pytest.importorskip("torch")

from fsdp_bench import Net, init_buffers, numbers, on_meta  # noqa: E402
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


def test_a_non_persistent_buffer_in_the_checkpoint_fills_one_that_nobody_computes(make):
    model = on_meta()
    result = make.load(model, {**numbers(Net()), "freq": torch.full((8,), 4.0)}, init_buffers=None)
    assert torch.equal(model.freq, torch.full((8,), 4.0))
    assert result.made == []


def test_a_non_persistent_buffer_is_computed_whatever_the_checkpoint_holds_of_it(make):
    def compute(model, names):
        assert names == ["freq"]
        model.freq.fill_(7)

    model = on_meta()
    held = {**numbers(Net()), "freq": torch.full((8,), 4.0)}
    result = make.load(model, held, init_buffers=compute)
    assert torch.equal(model.freq, torch.full((8,), 7.0))
    assert result.made == ["freq"]


def test_a_rotary_buffer_is_hugging_faces_to_compute_whatever_the_checkpoint_holds(make):
    with torch.device("meta"):
        model = Pretrained()
    held = {**numbers(Pretrained()), "rotary.inv_freq": torch.full((4,), 4.0)}
    make.load(model, held)
    assert model.rotary.inv_freq.tolist() == [1.0, 0.5, 0.25, 0.125]


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


WRITTEN = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.complex64]


@pytest.mark.parametrize("shape", [(), (3, 2)])
@pytest.mark.parametrize("dtype", WRITTEN, ids=str)
@pytest.mark.parametrize("value", [0, 1])
def test_a_buffer_that_is_written_where_no_version_counts_is_filled(make, dtype, shape, value):
    def build():
        model = nn.Linear(2, 2)
        model.register_buffer("table", torch.zeros(shape, dtype=dtype), persistent=False)
        return model

    model = on_meta(build)
    make.load(model, numbers(build()), init_buffers=lambda m, names: m.table.data.fill_(value))
    assert torch.equal(model.table, torch.full(shape, value, dtype=dtype))


def test_a_buffer_that_is_filled_with_what_marks_empty_ones_is_filled(make):
    def build():
        model = nn.Linear(2, 2)
        model.register_buffer("table", torch.zeros(3, dtype=torch.uint8), persistent=False)
        return model

    model = on_meta(build)
    make.load(model, numbers(build()), init_buffers=lambda m, names: m.table.fill_(0xA5))
    assert model.table.tolist() == [0xA5] * 3


def test_a_buffer_whose_data_is_exchanged_is_filled(make):
    def exchange(model, names):
        model.freq.data = torch.arange(8.0)

    model = on_meta()
    make.load(model, numbers(Net()), init_buffers=exchange)
    assert torch.equal(model.freq, torch.arange(8.0))


def test_elements_of_a_buffer_that_nobody_wrote_are_not_numbers(make):
    model = on_meta()
    make.load(model, numbers(Net()), init_buffers=lambda m, names: m.freq[:3].zero_())
    assert model.freq.isnan().tolist() == [False] * 3 + [True] * 5


@pytest.mark.parametrize("replaced", ["first", "second"])
def test_a_shared_buffer_that_is_replaced_at_one_place_only_is_left(make, replaced):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
            for module in (self.first, self.second):
                module.register_buffer("table", torch.zeros(3), persistent=False)
            self.second.table = self.first.table

    def replace(model, names):
        assert names == ["first.table", "second.table"]
        getattr(model, replaced).table = torch.ones(3)

    model = on_meta(Pair)
    with pytest.raises(ckptd.FailedPrecondition, match="first.table"):
        make.load(model, numbers(Pair()), init_buffers=replace)
    assert model.first.table.is_meta and model.second.table.is_meta


def test_buffers_that_are_made_in_inference_mode_are_none_of_it():
    from ckptd.torch.compat import _checkpoint_names
    from ckptd.torch.load import _buffers, _load_into

    model = Net()
    model.freq = torch.empty(8, device="meta")
    left = [t for t in _load_into.list_targets(_checkpoint_names.modules_of(model)) if t.tensor.is_meta]
    with torch.inference_mode():
        made, _ = _buffers.recompute(model, left, init_buffers, torch.device("cpu"))
    assert made == ["freq"] and not model.freq.is_inference()
