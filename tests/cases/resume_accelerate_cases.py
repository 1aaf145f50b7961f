"""Cases of accelerate and the Trainer of transformers that resume, under the patch. See resume_bench."""

import hashlib
import json
import os
import pathlib
import types

import ckptd.accelerate
import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import fsdp_utils
from fsdp1_cases import CPU
from fsdp_bench import Net, assert_same, train
from resume_bench import (
    adamw,
    assert_same_states,
    assert_states_in_daemon_memory,
    by_layer,
    fails,
    momentum,
    path_of,
    trained,
    two_groups,
    unsharded,
)
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "fixtures"


def with_accelerate():
    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")):
        os.environ.setdefault(name, value)  # asked for, though the group is there
    PartialState(cpu=True)


def what_accelerate_saves(bench):
    """Its functions that load, patched."""
    with_accelerate()
    for kind, use_dcp in (("FULL_STATE_DICT", True), ("SHARDED_STATE_DICT", True), ("SHARDED_STATE_DICT", False)):
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type=kind)
        accelerator = types.SimpleNamespace(
            wait_for_everyone=dist.barrier, is_fsdp2=True, process_index=bench.rank, num_processes=bench.world,
            is_main_process=bench.rank == 0,
        )
        theirs, their_optimizer = trained(by_layer, adamw)
        folder = path_of(bench)
        os.makedirs(folder, exist_ok=True)
        fsdp_utils.save_fsdp_model(plugin, accelerator, theirs, folder, use_dcp=use_dcp)
        fsdp_utils.save_fsdp_optimizer(plugin, accelerator, their_optimizer, theirs, folder, use_dcp=use_dcp)
        torch.manual_seed(bench.rank)
        ours = by_layer(Net())
        our_optimizer = adamw(ours.parameters())
        with ckptd.accelerate.patch(address=bench.address):
            keys = fsdp_utils.load_fsdp_model(plugin, accelerator, ours, folder, use_dcp=use_dcp)
            fsdp_utils.load_fsdp_optimizer(plugin, accelerator, our_optimizer, ours, folder, use_dcp=use_dcp)
        assert (keys.missing_keys, keys.unexpected_keys) == ([], [])
        assert_same(ours, theirs, "after the load")
        assert_same_states(our_optimizer, their_optimizer)
        assert_states_in_daemon_memory(our_optimizer, f"{kind}, {use_dcp}: ")
        assert train(ours, our_optimizer) == train(theirs, their_optimizer), "losses differ"


class Prepared:
    """Two models, whose values `seed` decides, with their optimizers and a scheduler, prepared by accelerate."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        self.accelerator = Accelerator(cpu=True)
        pairs = [(net, optimizer(net.parameters())) for net, optimizer in ((Net(), two_groups), (Net(), momentum))]
        scheduler = torch.optim.lr_scheduler.StepLR(pairs[0][1], 2, 0.5)
        self.pairs = [self.accelerator.prepare(*pair) for pair in pairs]
        self.scheduler = self.accelerator.prepare(scheduler)

    def train(self, steps):
        losses = []
        for _ in range(steps):
            losses += [train(model, optimizer, 1) for model, optimizer in self.pairs]
            self.scheduler.step()
        return losses, torch.get_rng_state().tolist()


def without_fsdp(bench):
    """Accelerator.load_state, in one process and with DistributedDataParallel."""
    with_accelerate()
    for is_safe in (True, False):
        first = Prepared(5)
        first.train(3)
        folder = path_of(bench)
        first.accelerator.save_state(folder, safe_serialization=is_safe)
        dist.barrier()
        theirs, ours = Prepared(6), Prepared(7)
        theirs.accelerator.load_state(folder)
        expected = torch.get_rng_state()
        with ckptd.accelerate.patch(address=bench.address):
            ours.accelerator.load_state(folder)
        assert torch.equal(torch.get_rng_state(), expected)
        for (model, optimizer), (other, its) in zip(ours.pairs, theirs.pairs):
            assert_same(model, other, "after the load")
            assert_same_states(optimizer.optimizer, its.optimizer)
            assert_states_in_daemon_memory(optimizer.optimizer)
        assert ours.scheduler.state_dict() == theirs.scheduler.state_dict()
        trains_alike = ours.train(3), theirs.train(3), first.train(3)
        assert trains_alike[0] == trains_alike[1] == trains_alike[2], "trains otherwise"


def what_a_training_with_other_processes_saved(bench):
    """The names of accelerate's file begin with "module." or not: of a file of torch the daemon's begin with neither."""
    with_accelerate()
    for is_safe in (True, False):
        model, optimizer = trained(unsharded, momentum)
        saved = types.SimpleNamespace(state_dict=lambda: {f"module.{n}": t for n, t in model.state_dict().items()})
        one = Accelerator(cpu=True)
        one._models, one._optimizers = [saved], [optimizer]
        folder = path_of(bench)
        one.save_state(folder, safe_serialization=is_safe)
        dist.barrier()
        accelerator = Accelerator(cpu=True)
        net = Net()
        ours, our_optimizer = accelerator.prepare(net, momentum(net.parameters()))
        with ckptd.accelerate.patch(address=bench.address):
            accelerator.load_state(folder)
        assert_same(net, model, "after the load")
        assert_same_states(our_optimizer.optimizer, optimizer)


def the_trainer_of_transformers(bench):
    """An unchanged script with resume_from_checkpoint, without FSDP."""
    from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

    class Tiny(PreTrainedModel):
        config_class = PretrainedConfig

        def __init__(self, config):
            super().__init__(config)
            self.net = Net()
            self.post_init()

        def forward(self, tokens):
            return {"loss": self.net(tokens).float().square().mean()}

    def run(seed, resume=None):
        torch.manual_seed(seed)
        args = TrainingArguments(
            folder, use_cpu=True, max_steps=4, save_steps=2, logging_steps=1, per_device_train_batch_size=2,
            report_to=[], disable_tqdm=True, seed=3, ddp_backend="gloo",
        )
        trainer = Trainer(Tiny(PretrainedConfig()), args, train_dataset=data)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    data = [{"tokens": torch.arange(6).add(number).remainder(11)} for number in range(16)]
    folder = path_of(bench)
    whole = run(5)
    checkpoint = os.path.join(folder, "checkpoint-2")
    theirs = run(6, checkpoint)
    with ckptd.accelerate.patch(address=bench.address):
        ours = run(7, checkpoint)
    for other in (theirs, whole):
        assert_same(ours.model, other.model, "after training")
        assert_same_states(ours.optimizer.optimizer, other.optimizer.optimizer)
        assert ours.lr_scheduler.state_dict() == other.lr_scheduler.state_dict()
    losses = [[entry["loss"] for entry in each.state.log_history if "loss" in entry] for each in (ours, theirs, whole)]
    assert losses[0] == losses[1] == losses[2] and len(losses[0]) == 4, losses
    assert_states_in_daemon_memory(ours.optimizer.optimizer)


class Saved(nn.Module):
    """The model of the fixtures that accelerate saved with FSDP1."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(7, 4)
        self.layers = nn.ModuleList()
        for _ in range(2):
            layer = nn.Module()
            layer.a, layer.b = nn.Linear(4, 5), nn.Linear(5, 4, bias=False)
            self.layers.append(layer)
        self.head = nn.Linear(4, 3)
        self.register_buffer("scale", torch.zeros(3))


def hashes(prefix, tensors):
    return {f"{prefix}{name}": hashlib.sha256(t.detach().numpy().tobytes()).hexdigest() for name, t in tensors.items()}


def of_layers(module, recurse, **_):
    return recurse or hasattr(module, "b")


def runs_of_ranks(bench, model, optimizer):
    """Name of a parameter -> its states. torch 2.13 gathers all of them in one buffer where nothing is offloaded."""
    names = {param: name.replace("_fsdp_wrapped_module.", "") for name, param in model.named_parameters()}
    every = [None] * bench.world
    dist.all_gather_object(every, {names[param]: dict(state) for param, state in optimizer.state.items()})
    found = {}
    for name in names.values():
        held = [states[name] for states in every if name in states]
        found[name] = {key: torch.cat([each[key].flatten() for each in held]) for key in held[0] if key != "step"}
        found[name]["step"] = held[0]["step"]
    return found


def local_state_dicts_of_two_ranks(bench):
    """LOCAL_STATE_DICT of FSDP1, which accelerate itself loads at the same number of ranks alone."""
    with_accelerate()
    accelerator = types.SimpleNamespace(
        wait_for_everyone=dist.barrier, is_fsdp2=False, process_index=bench.rank, num_processes=bench.world,
        is_main_process=bench.rank == 0,
    )
    plugin = FullyShardedDataParallelPlugin(fsdp_version=1, state_dict_type="LOCAL_STATE_DICT")
    for saved, use_orig_params in (("flat", False), ("orig", True), ("orig", False), ("flat", True)):
        folder = FIXTURES / f"accelerate_fsdp1_local_{saved}"
        model = FSDP(Saved(), device_id=CPU, auto_wrap_policy=of_layers, use_orig_params=use_orig_params)
        optimizer = torch.optim.AdamW(model.parameters())
        with ckptd.accelerate.patch(address=bench.address):
            load = lambda: fsdp_utils.load_fsdp_model(plugin, accelerator, model, str(folder))  # noqa: E731
            if (saved, use_orig_params) == ("flat", True):
                fails(load, "FAILED_PRECONDITION", "MODEL_PART", "use_orig_params=False")
                continue
            keys = load()
            fsdp_utils.load_fsdp_optimizer(plugin, accelerator, optimizer, model, str(folder))
        assert (keys.missing_keys, keys.unexpected_keys) == ([], [])
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            found = hashes("model.", model.state_dict())
            states = runs_of_ranks(bench, model, optimizer) if use_orig_params else FSDP.optim_state_dict(model, optimizer)["state"]
        for name, state in states.items():
            found.update(hashes(f"optimizer.state.{name}.", state))
        expected = json.loads((folder / "expected.json").read_text())["tensors"]
        wrong = [name for name in {**found, **expected} if found.get(name) != expected.get(name, {}).get("sha256")]
        assert not wrong, (saved, use_orig_params, wrong)
        assert_states_in_daemon_memory(optimizer)
