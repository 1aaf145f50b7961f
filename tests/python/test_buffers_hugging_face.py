"""Buffers that models of transformers compute again: who is asked, and what is said where it fails."""

import contextlib
import gc
import weakref

import ckptd
import pytest

torch = pytest.importorskip("torch")

from fsdp_bench import numbers, on_meta  # noqa: E402
from torch import nn  # noqa: E402

FLAG = "_is_hf_initialized"
FREQUENCIES = [1.0, 0.5, 0.25, 0.125]


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("inv_freq", torch.tensor(FREQUENCIES), persistent=False)


class Pretrained(nn.Module):
    """Initialises as transformers 5 does; writes into weights as older models do, flags or not."""

    config = {}

    def __init__(self):
        super().__init__()
        self.rotary = Rotary()
        self.proj, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def _init_weights(self, module):
        assert not torch.is_grad_enabled()
        if type(module) in (nn.Linear, nn.BatchNorm1d):
            module.weight.data.normal_()
            nn.init.ones_(module.bias)
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.zero_()
        if isinstance(module, Rotary):
            module.inv_freq.copy_(torch.tensor(FREQUENCIES))

    def _initialize_weights(self, module):
        if not getattr(module, FLAG, False):
            self._init_weights(module)
            setattr(module, FLAG, True)

    def initialize_weights(self):
        self._walk(self, self._initialize_weights)

    def _walk(self, module, initialise):
        for child in module.children():
            own = child._initialize_weights if isinstance(child, Pretrained) else initialise
            self._walk(child, own)
        initialise(module)


class Outer(Pretrained):
    """Its part alone knows how to initialise that part."""

    def __init__(self):
        super().__init__()
        self.part, self.rotary = Pretrained(), None

    def _init_weights(self, module):
        assert not isinstance(module, Rotary), "that is not mine"
        super()._init_weights(module)


class Layered(Pretrained):
    """As falcon_h1, where only the whole model can fill its layers' buffers."""

    def _init_weights(self, module):
        if module is self:
            self.rotary.inv_freq.copy_(torch.tensor(FREQUENCIES))
        elif not isinstance(module, Rotary):
            super()._init_weights(module)


class Raising(Pretrained):
    """Raises when its first buffer is filled and its second is not."""

    def __init__(self):
        super().__init__()
        self.second = Rotary()

    def _init_weights(self, module):
        if module is getattr(self, "second", None):
            raise AttributeError("no such setting")
        super()._init_weights(module)


class Older(nn.Module):
    """Of a transformers that has no initialize_weights: a model initialises the module it is given."""

    config = {}

    def __init__(self):
        super().__init__()
        self.rotary, self.proj, self.asked = Rotary(), nn.Linear(4, 4), []

    def _init_weights(self, module):
        assert not torch.is_grad_enabled()
        self.asked.append(module)
        if isinstance(module, Rotary):
            module.inv_freq.copy_(torch.tensor(FREQUENCIES))


def load(make, model, built=None, init_buffers=None):
    return make.load(model, numbers(built or type(model)()), init_buffers=init_buffers)


def compute(model, names):
    for name in names:
        model.get_buffer(name).copy_(torch.tensor(FREQUENCIES))


def buffers_on_meta(model):
    """A real model whose Rotary modules have theirs on meta."""
    for module in model.modules():
        if isinstance(module, Rotary):
            module.inv_freq = torch.empty(4, device="meta")
    return model


def remade(model, init_buffers=None):
    """Without a daemon: all else is as it was before the call."""
    from ckptd.torch.compat import _checkpoint_names
    from ckptd.torch.load import _buffers, _load_into

    targets = _load_into.list_targets(_checkpoint_names.modules_of(model))
    left = [t for t in targets if not t.persistent and t.tensor.is_meta]
    return _buffers.recompute(model, left, init_buffers, torch.device("cpu"))[0]


# -- models of transformers ----------------------------------------------------------------


TEXT = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 30}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
          "image_size": 8, "patch_size": 4}


def blip(hf):
    text = {**TEXT, "projection_dim": 8, "max_position_embeddings": 16, "encoder_hidden_size": 16}
    return hf.BlipModel(hf.BlipConfig(text_config=text, vision_config={**VISION, "projection_dim": 8}))


def llava(hf):
    parts = {"vision_config": hf.CLIPVisionConfig(**VISION), "text_config": hf.LlamaConfig(**TEXT)}
    return hf.LlavaForConditionalGeneration(hf.LlavaConfig(**parts, image_token_index=29))


def dpr(hf):
    return hf.DPRQuestionEncoder(hf.DPRConfig(**TEXT))


def falcon_h1(hf):
    sizes = {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16}
    return hf.FalconH1Model(hf.FalconH1Config(**TEXT, num_key_value_heads=2, **sizes))


def tied_llama(hf):
    return hf.LlamaForCausalLM(hf.LlamaConfig(**TEXT, tie_word_embeddings=True))


@pytest.fixture(scope="session")
def hf():
    transformers = pytest.importorskip("transformers")
    if int(transformers.__version__.split(".")[0]) < 5:
        pytest.skip("models of transformers 4 do not compute their buffers")
    return transformers


@pytest.mark.parametrize("build", [blip, llava, dpr, falcon_h1, tied_llama])
def test_a_model_of_transformers_has_all_buffers_and_the_checkpoint_s_weights(make, hf, build):
    theirs = build(hf)
    with torch.device("meta"):
        model = build(hf)
    state = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    if build is tied_llama:
        del state["lm_head.weight"]
    make.load(model, state, init_buffers=None)
    for kind in ("named_buffers", "named_parameters"):
        mine, others = dict(getattr(model, kind)()), dict(getattr(theirs, kind)())
        assert mine.keys() == others.keys()
        assert all(torch.equal(mine[name], others[name]) for name in mine)


# -- who is asked ------------------------------------------------------------------------


@pytest.mark.parametrize("kind, name", [
    (Outer, "part.rotary.inv_freq"), (Layered, "rotary.inv_freq"), (Pretrained, "rotary.inv_freq")])
def test_the_model_that_knows_how_fills_a_buffer(make, kind, name):
    model = on_meta(kind)
    assert load(make, model).made == [name]
    assert model.get_buffer(name).tolist() == FREQUENCIES


class Pair(nn.Module):
    def __init__(self, kind=Pretrained):
        super().__init__()
        self.left, self.right = kind(), kind()


class Passing(Pair):
    """As some wrappers: what it lacks it has from one of its parts."""

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("left"), name)


@pytest.mark.parametrize("build", [Pair, Passing, lambda: Pair(Older), lambda: nn.Sequential(Pair(), Older())])
def test_each_outermost_model_inside_of_another_module_is_asked(make, build):
    model = on_meta(build)
    load(make, model, build())
    assert all(b.tolist() == FREQUENCIES for n, b in model.named_buffers() if n.endswith("inv_freq"))


class Sharing(Pair):
    def __init__(self):
        super().__init__()
        self.right.rotary = self.left.rotary


@pytest.mark.parametrize("part", ["module", "buffer"])
def test_what_two_models_share_is_left_to_the_first(part):
    model = buffers_on_meta(Pair())
    if part == "module":
        model.right.rotary = model.left.rotary
    else:
        model.right.rotary._buffers["inv_freq"] = model.left.rotary.inv_freq
    asked = []
    model.left._init_weights = lambda module: asked.append(("left", module))
    model.right._init_weights = lambda module: [asked.append(("right", module)), model.right.rotary.inv_freq.fill_(1)]
    with pytest.raises(ckptd.FailedPrecondition):
        remade(model)
    assert ("left", model.left.rotary) in asked and model.left.rotary.inv_freq.is_meta
    assert ("right", model.left.rotary) not in asked


def test_only_the_first_of_two_models_is_asked_for_what_they_share():
    model = buffers_on_meta(Sharing())
    model.right.initialize_weights = lambda: pytest.fail("asked")
    assert remade(model) == ["left.rotary.inv_freq"]


def test_the_second_of_two_models_cannot_write_what_the_first_filled():
    model, asked = buffers_on_meta(Pair()), []
    model.right.other, model.left.other = model.left.rotary, model.left.rotary

    def fills_both(module):
        asked.append(module)
        model.right.rotary.inv_freq.copy_(torch.tensor(FREQUENCIES))
        model.right.other.inv_freq.fill_(3)

    model.right._init_weights = fills_both
    remade(model)
    assert model.left.rotary.inv_freq.tolist() == model.right.rotary.inv_freq.tolist() == FREQUENCIES
    assert model.right.rotary in asked and model.right.other not in asked


def test_a_model_inside_of_another_is_not_asked_though_it_is_found_first():
    outer = Outer()
    model = buffers_on_meta(nn.Sequential(outer.part, outer))
    outer.part.initialize_weights = lambda: pytest.fail("asked")
    assert remade(model) == ["0.rotary.inv_freq"]


def test_a_module_around_a_model_may_have_an_attribute_of_such_a_name():
    model = buffers_on_meta(nn.Sequential(Older()))
    model.config, model._init_weights = {}, True
    assert remade(model) == ["0.rotary.inv_freq"]


def test_a_model_without_a_configuration_is_none_of_transformers(monkeypatch):
    monkeypatch.delattr(Older, "config")
    model = buffers_on_meta(Older())
    with pytest.raises(ckptd.FailedPrecondition):
        remade(model)
    assert model.asked == []


@pytest.mark.parametrize("kind", [Pretrained, Older])
def test_a_model_without_open_buffers_is_not_asked(kind):
    model = kind()
    model.initialize_weights = model._init_weights = lambda *_: pytest.fail("asked")
    model.plain = nn.Module()
    model.plain.register_buffer("steps", torch.zeros(2, device="meta"))
    model.plain.register_buffer("table", None)
    assert remade(model) == []


def test_a_model_that_lacks_a_batch_norm_s_count_only_is_not_asked(make):
    model = Pretrained()
    state = numbers(model)
    del state["norm.num_batches_tracked"]
    model.norm.num_batches_tracked = torch.empty((), dtype=torch.int64, device="meta")
    model.initialize_weights = lambda: pytest.fail("asked")
    assert make.load(model, state, init_buffers=None).made == ["norm.num_batches_tracked"]


def test_a_model_inside_of_one_that_looks_like_an_older_one_is_asked_itself():
    model = Older()
    model.inner, model.rotary = Pretrained(), None
    remade(buffers_on_meta(model))
    assert model.inner.rotary.inv_freq.tolist() == FREQUENCIES and model.asked == []


# -- what the model's own code raises --------------------------------------------------------


def test_what_the_model_s_own_code_raises_is_named_where_buffers_are_left(make):
    model = on_meta(Raising)
    with pytest.raises(ckptd.FailedPrecondition, match="2 buffers .*init_buffers=.*raised AttributeError") as caught:
        load(make, model)
    assert caught.value.reason == "BUFFERS_LEFT" and isinstance(caught.value.__cause__, AttributeError)
    assert model.rotary.inv_freq.is_meta and model.second.inv_freq.is_meta


def test_where_the_model_s_own_code_raises_init_buffers_is_asked_for_all(make):
    """Also for what was filled before: what came later may have been to change it."""
    model, asked = on_meta(Raising), []
    load(make, model, init_buffers=lambda m, names: [asked.extend(names), compute(m, names)])
    assert asked == ["rotary.inv_freq", "second.inv_freq"]
    assert model.rotary.inv_freq.tolist() == model.second.inv_freq.tolist() == FREQUENCIES


def test_an_older_model_s_exception_is_named(make, monkeypatch):
    monkeypatch.setattr(Older, "_init_weights", lambda self, module: self.no_such)
    with pytest.raises(ckptd.FailedPrecondition, match="raised AttributeError: .*no_such") as caught:
        load(make, on_meta(Older))
    assert isinstance(caught.value.__cause__, AttributeError)


def test_a_model_that_raised_is_not_blamed_for_another_s_buffers():
    model = Pair(Older)
    model.left = Raising()
    buffers_on_meta(model)
    model.right._init_weights = lambda module: None
    fill_left = lambda m, names: compute(m, [n for n in names if n.startswith("left")])  # noqa: E731
    with pytest.raises(ckptd.FailedPrecondition, match=r"\(right.rotary.inv_freq\).*computes them \[") as caught:
        remade(model, fill_left)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("init_buffers", [compute, None])
def test_what_was_raised_does_not_keep_the_model_till_a_collection(init_buffers):
    model = buffers_on_meta(Raising())
    held = weakref.ref(model)
    gc.disable()
    try:
        with contextlib.suppress(ckptd.FailedPrecondition):
            remade(model, init_buffers)
        del model
        assert held() is None
    finally:
        gc.enable()


def test_one_model_s_exception_does_not_keep_another_from_being_asked():
    model = Pair()
    model.left = Raising()
    buffers_on_meta(model)
    asked = []
    remade(model, lambda m, names: [asked.extend(names), compute(m, names)])
    assert asked == ["left.rotary.inv_freq", "left.second.inv_freq"]
    assert model.right.rotary.inv_freq.tolist() == FREQUENCIES
