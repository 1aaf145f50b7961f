"""Cases of load_into for what was loaded by rule before, run on each rank by fsdp_worker.

Each is a case of fsdp_cases or fsdp1_cases, whose checkpoint rank 0 has loaded by rule when the
models are filled. Needs real daemons.
"""

import ckptd
import fsdp1_cases
import torch
import torch.distributed as dist
from fsdp_bench import Bench, Net, numbers
from group import wait_until
from spread_bench import storage_bytes_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

# FSDP2 keeps buffers whole, which no checkpoint tells from parameters.
WITH_BUFFERS = {
    "mesh": {"shape": [2]},
    "rules": [{"match": "mean"}],
    "default": {"placements": ["shard(0)"], "padded": True},
}


class Weights(Net):
    """Without persistent buffers, as language models are."""

    def __init__(self, **options):
        super().__init__(**options)
        for name in ("mean", "steps"):
            del self._buffers[name]
        self.mean = 0.0


class Preloaded(Bench):
    """A bench whose checkpoints are loaded by rule as soon as they are saved."""

    def __init__(self, bench, layout, **options):
        super().__init__(bench.address, bench.folder, bench.rank, bench.world, bench.case)
        self.rule = {"layout": layout, **options}
        self.results, self.path, self.name, self.read = [], None, None, 0

    def save(self, tensors):
        self.path = super().save(tensors)
        with ckptd.connect(self.address) as client:
            if self.rank == 0:
                client.load(self.path, **self.rule)
            dist.barrier()
            # The rank that asked may hear of its shard before another one has its own.
            (mine,) = wait_until(lambda: self.of_path(client), "this rank's shard")
            self.name = mine.name
        self.read = storage_bytes_of(self, self.path)
        return self.path

    def of_path(self, client):
        return [c for c in client.list() if c.source == self.path and c.state == "ACTIVE"]

    def load(self, model, path, **options):
        self.results.append(super().load(model, path, **options))
        return self.results[-1]

    def assert_served(self):
        """The first load, too, was of what is resident: no second copy, and not a byte was read."""
        assert [r.resident for r in self.results] == [True] * len(self.results), self.results
        assert {r.checkpoint for r in self.results} == {self.name}, self.results
        dist.barrier()
        with ckptd.connect(self.address) as client:
            assert [one.name for one in self.of_path(client)] == [self.name]
        assert storage_bytes_of(self, self.path) == self.read

    def assert_not_served(self):
        assert not self.results[0].resident and self.results[0].checkpoint != self.name


def served(bench, wrap, layout="fsdp:2", build=Weights, rule=None, **options):
    own = Preloaded(bench, layout, **(rule or {}))
    model, _ = own.compare(wrap, build=build, **options)
    own.assert_served()
    return model


def layers_and_root(model):
    for layer in (model.embed, model.up, model.down, model.odd, model.head):
        fully_shard(layer)
    fully_shard(model)


def fsdp2(bench):
    served(bench, layers_and_root)


def the_root_alone(bench):
    served(bench, fully_shard)


def buffers_that_the_rules_keep_whole(bench):
    served(bench, layers_and_root, WITH_BUFFERS, build=Net)


def tied_weights(bench):
    model = served(bench, fully_shard, build=lambda: Weights(tied=True))
    assert model.head.weight is model.embed.weight


def a_cast(bench):
    served(
        bench,
        fully_shard,
        rule={"dtype": "bfloat16"},
        cast=torch.bfloat16,
        optimizer=torch.optim.SGD,
    )


def a_checkpoint_in_bf16_for_a_model_in_fp32(bench):
    served(bench, fully_shard, rule={"dtype": torch.float32}, dtype=torch.bfloat16)


def one_replica_of_two_shards(bench):
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard"))
    served(bench, lambda model: fully_shard(model, mesh=mesh), layout="fsdp:2")


def two_replicas(bench):
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    served(bench, lambda model: fully_shard(model, mesh=mesh), layout="hsdp:2x1")


def a_model_that_is_not_sharded(bench):
    served(bench, lambda model: None, layout="replicate:2", build=Net)


def names_that_the_model_lacks(bench):
    own = Preloaded(bench, "fsdp:2")
    state = numbers(Weights())
    path = own.save({**state, "zz": torch.ones(4)})
    with torch.device("meta"):
        model = Weights()
    fully_shard(model)
    try:
        own.load(model, path)
        raise AssertionError("an unexpected name is an error")
    except ckptd.Error as error:
        assert error.reason == "UNEXPECTED_TENSORS", error
    result = own.load(model, path, strict=False)
    assert result.unexpected == ["zz"] and result.missing == []
    assert torch.equal(model.up.weight.full_tensor(), state["up.weight"])
    own.assert_served()


def a_rank_that_comes_again_alone(bench):
    own = Preloaded(bench, "fsdp:2")
    path = own.save(numbers(Weights()))
    with torch.device("meta"):
        models = [Weights(), Weights()]
    for model in models:
        fully_shard(model)
    own.load(models[0], path)
    dist.barrier()
    if own.rank == 1:
        own.load(models[1], path, timeout=60)
    own.assert_served()


def another_dtype(bench):
    own = Preloaded(bench, "fsdp:2")
    own.compare(fully_shard, build=Weights, cast=torch.bfloat16, optimizer=torch.optim.SGD)
    own.assert_not_served()


def another_dimension(bench):
    def columns(param):
        return Shard(1) if param.dim() == 2 and param.shape[1] % 2 == 0 else Shard(0)

    own = Preloaded(bench, "fsdp:2")
    own.compare(lambda model: fully_shard(model, shard_placement_fn=columns), build=Weights)
    own.assert_not_served()


def flat_parameters(bench):
    """As many bytes on each rank, at other places."""
    own = Preloaded(bench, "fsdp:2")
    state = numbers(Weights())
    theirs = fsdp1_cases.wrapped(Weights(), auto_wrap_policy=fsdp1_cases.of_layers)
    fsdp1_cases.load_natively(theirs, state)
    ours = fsdp1_cases.wrapped(
        fsdp1_cases.built(Weights),
        param_init_fn=fsdp1_cases.empty,
        auto_wrap_policy=fsdp1_cases.of_layers,
    )
    own.load(ours, own.save(state))
    fsdp1_cases.assert_same(ours, theirs, "after the load")
    own.assert_not_served()


CASES = {
    2: [
        fsdp2,
        the_root_alone,
        buffers_that_the_rules_keep_whole,
        tied_weights,
        a_cast,
        a_checkpoint_in_bf16_for_a_model_in_fp32,
        one_replica_of_two_shards,
        two_replicas,
        a_model_that_is_not_sharded,
        names_that_the_model_lacks,
        a_rank_that_comes_again_alone,
        another_dtype,
        another_dimension,
        flat_parameters,
    ],
}
