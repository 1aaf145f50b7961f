"""load_into where a checkpoint has other names, shapes and types than the model: compared with PyTorch."""

import itertools
import re
import warnings

import ckptd
import pytest

torch = pytest.importorskip("torch")

import ckptd.torch  # noqa: E402
from fsdp_bench import Net, copied, equal_to, numbers, on_meta  # noqa: E402
from torch import nn  # noqa: E402


class One(nn.Module):
    """One tensor, as a parameter or a buffer."""

    def __init__(self, shape=(3,), dtype=torch.float32, kind="parameter"):
        super().__init__()
        zeros = torch.zeros(shape, dtype=dtype)
        if kind == "parameter":
            learns = dtype.is_floating_point or dtype.is_complex
            self.w = nn.Parameter(zeros, requires_grad=learns)
        else:
            self.register_buffer("w", zeros)


def by_torch(model, state, assign=False):
    """The tensor that PyTorch makes of it; None where it refuses."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # imaginary parts are dropped
            model.load_state_dict(copied(state), assign=assign)
    except RuntimeError:
        return None
    return model.w


SHAPES = [(), (1,), (1, 1), (2,), (0,)]


@pytest.mark.parametrize("kind", ["parameter", "buffer"])
@pytest.mark.parametrize("meta", [True, False], ids=["meta", "real"])
def test_a_number_is_taken_in_the_shapes_that_pytorch_takes(make, kind, meta):
    for stored, shape in itertools.product(SHAPES, SHAPES):
        state = {"w": torch.ones(stored)}
        theirs = by_torch(One(shape, kind=kind), state)
        mine = on_meta(lambda: One(shape, kind=kind)) if meta else One(shape, kind=kind)
        if theirs is None:
            with pytest.raises(ckptd.InvalidArgument):
                make.load(mine, state)
        else:
            make.load(mine, state)
            assert mine.w.shape == theirs.shape and torch.equal(mine.w, theirs), (stored, shape)


TYPES = [
    torch.float32,
    torch.bfloat16,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.float8_e4m3fn,
    torch.complex64,
]


def _bits(tensor):
    return tensor.detach().reshape(-1).view(torch.uint8)


def of_type(dtype):
    values = torch.tensor([0.0, 1.0, 2.5])
    return (values + 1j).to(dtype) if dtype.is_complex else values.to(dtype)


@pytest.mark.parametrize("kind", ["parameter", "buffer"])
def test_a_real_model_gets_values_of_any_type_as_by_load_state_dict(make, kind):
    for dtype, stored in itertools.product(TYPES, TYPES):
        state, mine = {"w": of_type(stored)}, One(dtype=dtype, kind=kind)
        theirs, before = by_torch(One(dtype=dtype, kind=kind), state), mine.w
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = make.load(mine, state)
        assert mine.w is before and mine.w.dtype == dtype, (dtype, stored)
        assert torch.equal(_bits(mine.w), _bits(theirs)), (dtype, stored)
        assert mine.w.requires_grad == theirs.requires_grad
        casts_here = stored != dtype and not {stored, dtype} <= {torch.float32, torch.bfloat16}
        assert list(result.copied) == (["w"] if casts_here else []), (dtype, stored)


def test_a_model_on_meta_is_refused_another_type_in_a_sentence_that_says_what_pytorch_does(make):
    for stored in (torch.int64, torch.bool, torch.float8_e4m3fn, torch.complex64):
        theirs = by_torch(on_meta(lambda: One(kind="buffer")), {"w": of_type(stored)}, assign=True)
        assert theirs.dtype == stored
        with pytest.raises(ckptd.InvalidArgument, match=r"\(assign=True\) would make it \w+: build .* on the host"):
            make.load(on_meta(lambda: One(kind="buffer")), {"w": of_type(stored)})


def prefixed(state, prefix="model."):
    return {prefix + name: value for name, value in state.items()}


RENAMES = {
    "a function": lambda state: lambda name: name[len("model.") :],
    "pairs": lambda state: [(r"^model\.", "")],
    "a dict": lambda state: {f"model.{name}": name for name in state},
}


@pytest.mark.parametrize("rename", RENAMES)
@pytest.mark.parametrize("meta", [True, False], ids=["meta", "real"])
def test_a_checkpoint_with_other_names_is_loaded_with_rename(make, rename, meta):
    state = numbers(Net())
    model = on_meta() if meta else Net()
    result = make.load(model, prefixed(state), rename=RENAMES[rename](state))
    assert equal_to(model, state) and not result.missing and not result.unexpected
    assert not result.copied and set(result.made) <= {"freq"}


def test_names_may_change_places(make):
    def build():
        return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

    state, model = numbers(build()), on_meta(build)
    make.load(model, state, rename=lambda name: ("1" if name[0] == "0" else "0") + name[1:])
    assert torch.equal(model[0].weight, state["1.weight"]) and torch.equal(model[1].bias, state["0.bias"])


def test_tied_weights_are_found_under_either_renamed_name(make):
    state = numbers(Net(tied=True))
    for name in ("embed.weight", "head.weight"):
        stored = {**state}
        stored[name] = stored.pop("embed.weight")
        model = on_meta(lambda: Net(tied=True))
        make.load(model, prefixed(stored), rename=[("^model.", "")])
        assert model.head.weight is model.embed.weight and equal_to(model, state)


def test_what_a_renamed_checkpoint_lacks_is_missing_and_nothing_of_that_name_is_taken(make):
    state = {"a.weight": torch.ones(2, 2), "b.weight": torch.full((2, 2), 2.0)}
    rename = {"a.weight": "b.weight", "b.weight": "c.weight"}

    def build():
        return nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in "abc"})

    model = on_meta(build)
    with pytest.raises(ckptd.NotFound, match="lacks 1 of its tensors: a.weight; rename=") as raised:
        make.load(model, state, rename=rename)
    assert raised.value.reason == "TENSOR_NOT_FOUND" and model["b"].weight.is_meta
    result = make.load(model, state, rename=rename, strict=False)
    assert result.missing == ["a.weight"] and not result.unexpected and model["a"].weight.is_meta
    assert torch.equal(model["b"].weight, state["a.weight"])
    assert torch.equal(model["c"].weight, state["b.weight"])


def test_a_renaming_that_fits_nothing_is_an_error_also_without_strict(make):
    with pytest.raises(ckptd.NotFound, match="lacks 2 of its tensors"):
        make.load(on_meta(lambda: nn.Linear(2, 2)), numbers(nn.Linear(2, 2)), rename=lambda n: f"x.{n}", strict=False)


@pytest.mark.parametrize("stored, named", [
    (lambda state: prefixed(state), r"rename=[(r'^model\.', '')]"),
    (lambda state: {name.replace("model.", ""): v for name, v in state.items()}, "rename=[(r'^', 'model.')]"),
])
def test_the_error_about_a_prefix_names_the_renaming_that_helps(make, stored, named):
    def build():
        return nn.ModuleDict({"model": nn.Linear(2, 2)}) if "'model" in named else nn.Linear(2, 2)

    state = numbers(build())
    with pytest.raises(ckptd.NotFound, match=re.escape(named)):
        make.load(on_meta(build), stored(state))
    model = on_meta(build)
    make.load(model, stored(state), rename=eval(named.partition("=")[2]))
    assert equal_to(model, state)


def test_what_ignore_names_may_be_unexpected(make):
    state = numbers(nn.Linear(2, 2))
    more = {**state, "rotary.inv_freq": torch.ones(2), "x.inv_freq": torch.ones(2), "head": torch.ones(1)}
    with pytest.raises(ckptd.InvalidArgument, match="1 tensor.s. that no rank asks for: head; .*ignore=") as raised:
        make.load(on_meta(lambda: nn.Linear(2, 2)), more, ignore=[r"inv_freq$"])
    assert raised.value.reason == "UNEXPECTED_TENSORS"
    model = on_meta(lambda: nn.Linear(2, 2))
    result = make.load(model, more, ignore=[r"inv_freq$", re.compile("^head")])
    assert equal_to(model, state) and sorted(result.unexpected) == ["head", "rotary.inv_freq", "x.inv_freq"]


class Pretrained(nn.Linear):
    """As a class of transformers says which names old checkpoints have besides."""

    config = None
    _keys_to_ignore_on_load_unexpected = [r"\.inv_freq$"]

    def __init__(self):
        super().__init__(2, 2)

    def _init_weights(self, module):
        pass


def test_a_hugging_face_class_names_what_may_be_unexpected(make):
    state = {**numbers(Pretrained()), "a.inv_freq": torch.ones(2)}
    model = on_meta(Pretrained)
    assert make.load(model, state).unexpected == ["a.inv_freq"] and equal_to(model, state)
    with pytest.raises(ckptd.InvalidArgument, match="head"):
        make.load(model, {**state, "head": torch.ones(2)})


def test_patterns_and_renamings_are_looked_at_before_anything_is_loaded(make, daemon):
    for wrong in ({"ignore": ["("]}, {"ignore": "freq"}, {"rename": [("(", "")]}, {"rename": {"no": "w"}}):
        with pytest.raises(ckptd.InvalidArgument, match="reading (ignore|rename)="):
            make.load(on_meta(One), {"w": torch.ones(3)}, **wrong)
    assert "LoadCheckpoint" not in daemon.calls


@pytest.mark.parametrize("meta", [True, False], ids=["meta", "real"])
def test_set_model_state_dict_gives_the_types_and_shapes_that_load_state_dict_does(make, daemon, meta):
    """Torch's own assigns where the model is on meta, and copies else."""
    cells = [((3,), dtype, of_type(stored)) for dtype, stored in itertools.product(TYPES, TYPES)]
    cells += [((), torch.float32, torch.ones(1)), ((1,), torch.float32, torch.ones(()))]
    for shape, dtype, value in cells:
        mine, theirs = (One(shape, dtype).to("meta" if meta else "cpu") for _ in range(2))
        state = {"w": value}
        expected, path = by_torch(theirs, state, assign=meta), make.save(state)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if expected is None:
                with pytest.raises(RuntimeError):
                    ckptd.torch.set_model_state_dict(mine, path, address=daemon.path)
                continue
            ckptd.torch.set_model_state_dict(mine, path, address=daemon.path)
        assert mine.w.dtype == expected.dtype and mine.w.shape == expected.shape, (shape, dtype, value)
        assert torch.equal(_bits(mine.w), _bits(expected)), (shape, dtype, value)
