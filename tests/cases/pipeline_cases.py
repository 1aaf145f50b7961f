"""Cases of load_into on models of which each rank has a part, or each rank all of it.

Each compares with the same model filled by torch, after the load and after training it
with torch's own pipeline schedules or DistributedDataParallel.
"""

import ckptd
import ckptd.torch
import torch
import torch.distributed as dist
from fsdp_bench import Net, assert_in_daemon_memory, assert_same, numbers
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

WIDTH, VOCABULARY, MICROBATCHES = 8, 11, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Stage(nn.Module):
    """Some of the layers of a model, under their names in the whole; None stands for what others have."""

    def __init__(self, layers, first, last, gate=False):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH) if first else None
        self.layers = nn.ModuleDict({str(i): Block() for i in layers})
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False) if last else None
        self.gate = nn.Linear(WIDTH, WIDTH) if gate else None

    def forward(self, x):
        x = self.embed(x) if self.embed is not None else x
        for layer in self.layers.values():
            x = layer(x)
        x = self.gate(x) if self.gate is not None else x
        return self.head(x) if self.head is not None else x


def whole():
    """The whole model's state, gate included, the same on every rank."""
    return numbers(Stage(range(4), True, True, gate=True))


def part(stage, stages=2):
    """The stage's part of a model of four layers."""
    per = 4 // stages
    return Stage(range(stage * per, (stage + 1) * per), stage == 0, stage == stages - 1)


def filled(module, state):
    module.load_state_dict({name: state[name].clone() for name in module.state_dict()})
    return module


def on_meta(stage):
    with torch.device("meta"):
        return part(stage)


def train(module, stage, group=None):
    """Five steps of the pipeline; the losses of the last stage."""
    stages = PipelineStage(module, stage, 2, torch.device("cpu"), group=group)
    schedule = ScheduleGPipe(stages, MICROBATCHES, loss_fn=lambda y, t: y.float().square().mean())
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.05)
    told = []
    for step in range(5):
        tokens = torch.arange(12).add(step).remainder(VOCABULARY).reshape(4, 3)
        losses = []
        schedule.step(*([tokens] if stage == 0 else []), **({"target": tokens, "losses": losses} if stage == 1 else {}))
        optimizer.step()
        optimizer.zero_grad()
        told += [loss.item() for loss in losses]
    return told


def each_stage_gets_its_layers_and_trains_as_with_torch(bench):
    state = {name: value for name, value in whole().items() if not name.startswith("gate")}
    path, stage = bench.save(state), bench.rank
    theirs, ours = filled(part(stage), state), on_meta(stage)
    result = bench.load(ours, path, init_buffers=None)
    assert result.missing == [] and result.copied == {}, result
    assert_same(ours, theirs, "after the load")
    assert_in_daemon_memory(ours)
    assert train(ours, stage) == train(theirs, stage)
    assert_same(ours, theirs, "after training")


def a_name_that_no_stage_has_is_unexpected_on_every_rank(bench):
    path = bench.save(whole())
    try:
        bench.load(on_meta(bench.rank), path, init_buffers=None)
        raise AssertionError("the load was not refused")
    except ckptd.Error as error:
        assert error.reason == "UNEXPECTED_TENSORS" and "gate" in str(error), error


def replicas_of_a_model_are_filled_inside_of_ddp(bench):
    state = numbers(Net())
    path = bench.save(state)
    theirs, ours = DistributedDataParallel(Net()), DistributedDataParallel(Net())
    theirs.module.load_state_dict(state)
    bench.load(ours, path)
    assert_same(ours.module, theirs.module, "after the load")
    assert_in_daemon_memory(ours.module, skip=("freq",))
    assert replicas_train(bench, ours) == replicas_train(bench, theirs)
    assert_same(ours.module, theirs.module, "after training")


def replicas_of_a_model_are_wrapped_after_the_load(bench):
    state = numbers(Net())
    theirs = Net()
    theirs.load_state_dict(state)
    with torch.device("meta"):
        ours = Net()
    bench.load(ours, bench.save(state))
    theirs, ours = DistributedDataParallel(theirs), DistributedDataParallel(ours)
    assert replicas_train(bench, ours) == replicas_train(bench, theirs)
    assert_same(ours.module, theirs.module, "after training")
    assert_in_daemon_memory(ours.module, skip=("freq",))


def replicas_train(bench, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for step in range(5):
        tokens = torch.arange(6).add(step + bench.rank).remainder(VOCABULARY)
        loss = model(tokens).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def stages_that_are_sharded_get_their_slices(bench):
    """Two stages of two ranks each: FSDP2 inside of a stage."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stage", "shard"))
    stage, state = bench.rank // 2, {n: v for n, v in whole().items() if not n.startswith("gate")}

    def wrap(module):
        for layer in module.layers.values():
            fully_shard(layer, mesh=mesh["shard"])
        return fully_shard(module, mesh=mesh["shard"])

    path, ours = bench.save(state), wrap(on_meta(stage))
    result = bench.load(ours, path, init_buffers=None)
    assert result.missing == [] and result.copied == {}, result
    for name, parameter in ours.named_parameters():
        assert torch.equal(parameter.full_tensor(), state[name]), name
    assert_in_daemon_memory(ours)
    theirs = wrap(filled(part(stage), state))
    group = mesh["stage"].get_group()
    assert train(ours, stage, group) == train(theirs, stage, group)
    assert_same(ours, theirs, "after training")
    dist.barrier()


CASES = {
    2: [
        each_stage_gets_its_layers_and_trains_as_with_torch,
        a_name_that_no_stage_has_is_unexpected_on_every_rank,
        replicas_of_a_model_are_filled_inside_of_ddp,
        replicas_of_a_model_are_wrapped_after_the_load,
    ],
    4: [stages_that_are_sharded_get_their_slices],
}
