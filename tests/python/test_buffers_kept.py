"""What must be as it was after models of transformers have computed their buffers."""

import ckptd
import pytest

torch = pytest.importorskip("torch")

from test_buffers_hugging_face import (  # noqa: E402
    FLAG,
    FREQUENCIES,
    Layered,
    Older,
    Outer,
    Pretrained,
    Raising,
    Rotary,
    buffers_on_meta,
    remade,
)
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard  # noqa: E402


class Facts:
    """What must be as it was before, but for buffers that were on meta."""

    def __init__(self, model):
        self.model = model
        for each in (*model.modules(), *model.parameters()):  # from_pretrained leaves some
            if isinstance(each, (nn.Linear, nn.Parameter)):
                setattr(each, FLAG, "as it was")
        self.before = self.now()

    def now(self):
        flags = [(id(m), vars(m).get(FLAG)) for m in self.model.modules()]
        held = []
        for module in self.model.modules():
            real = (*vars(module).items(), *module._parameters.items(), *module._buffers.items())
            real = [(n, t) for n, t in real if isinstance(t, torch.Tensor) and n != "inv_freq"]
            held += [(n, id(t), t._version, vars(t).get(FLAG), bytes_of(t)) for n, t in real]
        return flags, held, [n for n, b in self.model.named_buffers() if hasattr(b, FLAG)]

    def assert_kept(self):
        assert self.now() == self.before


def bytes_of(tensor):
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return bytes(local.detach().reshape(-1).view(torch.uint8).tolist())


@pytest.fixture
def alone(tmp_path):
    """A process group of this process."""
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_an_older_model_is_asked_only_about_modules_with_open_buffers():
    model = buffers_on_meta(Older())
    facts = Facts(model)
    remade(model)
    facts.assert_kept()
    assert model.asked == [model.rotary] and model.rotary.inv_freq.tolist() == FREQUENCIES


def plain(build):
    return build()


def tied(build):
    model = build()
    model.proj.weight = model.norm.weight
    return model


def marked(build):
    """As from_pretrained leaves it, with a buffer that is shared and one that is filled."""
    model = build()
    setattr(model.rotary or model.part.rotary, FLAG, True)
    model.proj.register_buffer("filled", torch.ones(2), persistent=False)
    model.norm.filled = model.proj.filled
    return model


def with_a_script(build):
    model = build()
    model.script = torch.jit.script(nn.BatchNorm1d(4))
    return model


def of_fsdp2(build):
    model = build()
    fully_shard(model.proj, mesh=init_device_mesh("cpu", (1,)))
    return fully_shard(model, mesh=init_device_mesh("cpu", (1,)))


def of_fsdp1(build):
    cpu = torch.device("cpu")
    return FullyShardedDataParallel(build(), device_id=cpu, sharding_strategy=ShardingStrategy.NO_SHARD)


def of_fsdp1_with_parameters(build):
    return FullyShardedDataParallel(build(), device_id=torch.device("cpu"), use_orig_params=True)


WAYS = [plain, tied, marked, with_a_script, of_fsdp2, of_fsdp1, of_fsdp1_with_parameters, nn.Sequential]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [Pretrained, Layered, Outer])
@pytest.mark.parametrize("way", WAYS)
def test_nothing_but_open_buffers_is_written_or_replaced(alone, way, kind):
    model = buffers_on_meta(way(kind) if way is not nn.Sequential else nn.Sequential(kind(), kind()))
    facts = Facts(model)
    assert remade(model)
    facts.assert_kept()


@pytest.mark.parametrize("error", [AttributeError, KeyboardInterrupt])
def test_all_is_as_before_when_the_model_s_own_code_raises(error):
    model = buffers_on_meta(Raising())
    facts = Facts(model)

    def raises(module):
        if module is model.second:
            raise error("no such setting")

    model._init_weights = raises
    with pytest.raises(ckptd.FailedPrecondition if error is AttributeError else error):
        remade(model)
    facts.assert_kept()
    assert model.rotary.inv_freq.is_meta and model.second.inv_freq.is_meta


def test_the_model_s_own_code_finds_tensors_initialised_and_tied_as_they_are():
    model, found = buffers_on_meta(tied(Pretrained)), []

    def looks(module):
        weight, mean = model.proj.weight, model.norm.running_mean
        found.append((getattr(weight, FLAG, False), getattr(mean, FLAG, False), weight is model.norm.weight))
        Pretrained._init_weights(model, module)

    model._init_weights = looks
    remade(model)
    assert set(found) == {(True, True, True)}


def test_parameters_that_a_module_has_in_a_list_of_its_own_are_not_written():
    """By code that looks at flags: transformers 5 makes torch's initialising functions such."""
    model = buffers_on_meta(Pretrained())
    model.kept = [model.proj.weight]

    def writes(module):
        model.kept[0].zero_() if not getattr(model.kept[0], FLAG, False) else None
        Pretrained._init_weights(model, module)

    model._init_weights = writes
    facts = Facts(model)
    for parameter in model.parameters():
        del parameter._is_hf_initialized
    facts.before = facts.now()
    remade(model)
    facts.assert_kept()


class Replacing(Pretrained):
    """Registers anew what it has, and more."""

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            del module.weight
            module.weight, module.more = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(1))
            module.register_buffer("further", torch.ones(1))
        if isinstance(module, Rotary):
            module.inv_freq = torch.tensor(FREQUENCIES)
            setattr(module.inv_freq, FLAG, True)


def test_parameters_that_the_model_s_own_code_replaces_are_put_back_in_order():
    model = buffers_on_meta(Replacing())
    facts = Facts(model)
    remade(model)
    facts.assert_kept()
    assert list(model.proj._parameters) == ["weight", "bias"]
    assert model.rotary.inv_freq.tolist() == FREQUENCIES


def test_a_plain_attribute_on_meta_may_come_to_be_the_new_buffer():
    """Older remote code keeps the buffer it starts from under a second name."""
    model = Older()
    model.rotary.original = model.rotary.inv_freq.to("meta")
    buffers_on_meta(model)

    def fills(module):
        module.inv_freq.copy_(torch.tensor(FREQUENCIES))
        module.original = module.inv_freq

    model._init_weights = fills
    remade(model)
    assert model.rotary.original is model.rotary.inv_freq
