"""LoadStrategy in megatron-core's own dist_checkpointing.load, beside its own strategy."""

import argparse
import contextlib
import functools
import inspect
import logging
import unittest.mock

import ckptd.megatron
import document_cases
import megatron_bench as mb
import megatron_on_cpu
import torch

with megatron_on_cpu.importable():
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import mapping
    from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelLoadStrategyWrapper
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistLoadShardedStrategy
    from megatron.core.dist_checkpointing.validation import StrictHandling

# For megatron-core's own reading of common.pt, as its trainers do it.
torch.serialization.add_safe_globals([argparse.Namespace])
HAS_RUNS = hasattr(mapping.ShardedTensor, "from_rank_offsets_flat")
HAS_COMMON = "common_strategy" in inspect.signature(dist_checkpointing.load).parameters
MODEL = "megatron_torch_dist_tp2"


def ours(bench):
    return ckptd.megatron.LoadStrategy(address=bench.address, timeout=120)


@functools.lru_cache(maxsize=None)
def truth_of(folder):
    return mb.Truth(mb.FIXTURES / folder)


def theirs_can(truth):
    """Without what their strategy cannot load at other sizes: flat runs, which are stored in another shape."""
    tensors = {key: whole for key, whole in truth.tensors.items() if whole.shape == truth.stored[key].shape}
    return type("Part", (), {"tensors": tensors, "objects": truth.objects, "common": truth.common})


def as_their_strategy(bench, folder):
    truth = theirs_can(truth_of(folder))
    for number, at in enumerate(mb.sizes(bench.rank, bench.world)):
        expected = TorchDistLoadShardedStrategy().load(mb.model_of(mapping, truth, at, number % 2 == 0)[0], mb.FIXTURES / folder)
        found = ours(bench).load(mb.model_of(mapping, truth, at, number % 2 == 0)[0], mb.FIXTURES / folder)
        mb.assert_same(found, expected, f"{folder} at {at}")


def case(folder):
    def run(bench):
        as_their_strategy(bench, folder)

    run.__name__ = f"as their strategy: {folder}"
    return run


def flattened_ranges_as_their_strategy(bench):
    """Beside megatron-core up to 0.15: later ones have no flattened ranges."""
    import megatron_cases

    if not HAS_RUNS:
        return
    truth = truth_of(mb.FLAT)
    for at in mb.sizes(bench.rank, bench.world):
        make = functools.partial(megatron_cases.flat_of, bench, truth, at, mapping)
        expected = TorchDistLoadShardedStrategy().load(make()[0], mb.FIXTURES / mb.FLAT)
        mb.assert_same(ours(bench).load(make()[0], mb.FIXTURES / mb.FLAT), expected, str(at))


def metadata_as_their_strategy(bench):
    for folder in mb.FOLDERS:
        if folder == mb.FLAT:
            continue
        for name in ("load_tensors_metadata", "load_sharded_metadata"):
            mine, expected = (getattr(one, name)(mb.FIXTURES / folder) for one in (ours(bench), TorchDistLoadShardedStrategy()))
            assert mine == expected, f"{folder}: {name}"


@contextlib.contextmanager
def on_the_host():
    """A block in which megatron-core may wait for a GPU that is not there."""
    functions = dict.fromkeys(("synchronize", "current_device"), lambda *_: "cpu")
    with unittest.mock.patch.multiple(torch.cuda, **functions):
        yield


# -- dist_checkpointing.load -----------------------------------------------------------------------


def fused(key, param, layer, replica):
    """Two matrices that lie one below the other in a tensor, as megatron-core saves those of SwiGLU."""
    def halves(key, data, replica_id, flattened_range):
        return [mapping.ShardedTensor.from_rank_offsets(key, part, (0, layer, 2), (1, number, 2), replica_id=replica_id,
                                                        prepend_axis_num=1)
                for number, part in enumerate(data.chunk(2))]

    return mapping.ShardedTensorFactory(key, param, halves, lambda parts: torch.cat(list(parts)), replica_id=replica)


def training_of(bench):
    """A sharded state dict as megatron-core's trainers make one: factories, an optimizer, local values."""
    truth, rank, world = truth_of(MODEL), bench.rank, bench.world

    def zeros(*shape):
        return torch.nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16))

    qkv, fc1 = "model.decoder.layers.self_attention.linear_qkv.weight", "model.decoder.layers.mlp.linear_fc1.weight"
    _, rows, width = truth.tensors[qkv].shape
    layers = [{
        "qkv": mapping.ShardedTensor.from_rank_offsets(qkv, zeros(rows // world, width), (0, layer, 2), (1, rank, world),
                                                       prepend_axis_num=1),
        "fc1": fused(fc1, zeros(*truth.tensors[fc1].shape[1:]), layer, rank),
    } for layer in range(2)]
    params = [entry.data for layer in layers for entry in layer.values()]
    optimizer = {"state": {number: {"exp_avg": torch.zeros(param.shape), "step": 1} for number, param in enumerate(params)},
                 "param_groups": [{"lr": 0.5, "params": [0, 1, 2, 3]}]}
    entries = ckptd.megatron.get_param_id_to_sharded_param_map(layers, params)
    ckptd.megatron.optim_state_to_sharding_state(optimizer, entries, ("step",))
    return {"model": {"layers": layers}, "optimizer": optimizer, "local": mapping.LocalNonpersistentObject({"rank": rank}),
            "rng": mapping.ShardedObject("rng_state", None, (1, 1), (0, 0), replica_id=rank)}


def load(state, strategy=None, strict="assume_ok_unexpected", folder=MODEL, **more):
    if strategy is not None:
        more["sharded_strategy"] = strategy
    return dist_checkpointing.load(state, str(mb.FIXTURES / folder), strict=strict, **more)


def a_training_is_loaded_as_by_their_strategy(bench):
    expected, found = load(training_of(bench)), load(training_of(bench), ours(bench))
    mb.assert_same(found, expected, "training")
    assert found["local"] == {"rank": bench.rank} and found["model"]["layers"][1]["fc1"].any()


def ranks_share_the_loading_by_megatron_core_s_wrapper(bench):
    with on_the_host():
        parallel = FullyParallelLoadStrategyWrapper(ours(bench), None, exchange_algo="gather_object")
        found = load(training_of(bench), parallel)
    mb.assert_same(found, load(training_of(bench)), "fully parallel")


def outcome(call):
    try:
        return call()
    except Exception as error:
        return type(error).__name__


def strictness_is_theirs(bench):
    """Of a state dict that asks for what is not there, and leaves out what is."""
    logging.getLogger("megatron.core.dist_checkpointing.validation").setLevel(logging.ERROR)
    for strict in StrictHandling:
        if strict is StrictHandling.ASSUME_OK_UNEXPECTED:
            continue
        found = []
        for strategy in (None, ours(bench)):
            state = training_of(bench)
            whole = torch.zeros(4)
            state["new"] = mapping.ShardedTensor.from_rank_offsets("new.w", whole, replica_id=bench.rank)
            found.append(outcome(lambda: load(state, strategy, strict)))
        expected, mine = found
        if isinstance(expected, tuple):
            assert mine[1:] == expected[1:] and "new.w" in expected[2], strict
            expected, mine = expected[0], mine[0]
        assert mb.same(mine, expected), f"{strict}: {mine} and not {expected}"[:2000]


def what_is_missing_is_an_error_on_every_rank(bench):
    state = training_of(bench)
    state["new"] = mapping.ShardedTensor.from_rank_offsets("new.w", torch.zeros(4), replica_id=bench.rank)
    try:
        load(state, ours(bench))
    except mapping.CheckpointingException as error:
        assert "no 'new.w'" in str(error)
    else:
        raise AssertionError("it was loaded")


def common_values_within_a_folder_of_0_19(bench):
    """megatron-core up to 0.18 cannot read them itself."""
    if not HAS_COMMON:
        return
    key = "model.embedding.word_embeddings.weight"
    whole = truth_of("megatron19_torch_dist_tp2").tensors[key]
    state = {"w": mb.sharded(mapping, key, whole, (0, (0, 0), tuple(whole.shape)), replica_id=bench.rank)}
    strategy = ours(bench)
    found = load(state, strategy, folder="megatron19_torch_dist_tp2", common_strategy=strategy)
    assert mb.same(found.pop("w"), whole) and mb.same(found, truth_of("megatron19_torch_dist_tp2").common)


# -- docs/megatron.md ------------------------------------------------------------------------------


def run_example(bench, code):
    """What an example leaves in the names that it is about."""
    model = training_of(bench)
    params = [entry.data for layer in model["model"]["layers"] for entry in layer.values()]
    optimizer = torch.optim.Adam(params)
    optimizer.zero_grad()
    for param in params:
        param.grad = torch.zeros_like(param)
    optimizer.step()
    names = {"sharded_state_dict": lambda: training_of(bench), "folder": str(mb.FIXTURES / MODEL), "optimizer": optimizer,
             "model_state": model["model"], "parameters": params}
    with on_the_host(), document_cases.daemon_of(bench):
        # Our own text. The wrapper's usual way to exchange tensors needs GPUs.
        exec(code.replace(", None)", ', None, exchange_algo="gather_object")'), names)
    if "loaded" in names:
        return names["loaded"]
    return {number: {name: (type(entry).__name__, entry.key, getattr(entry, "global_offset", ())) for name, entry in held.items()}
            for number, held in names["state"]["state"].items()}


def examples_of_the_page_do_the_same_before_and_after(bench):
    pairs = document_cases.pairs("megatron.md")
    assert len(pairs) == 3
    for title, before, after in pairs:
        expected, found = run_example(bench, before), run_example(bench, after)
        assert expected and mb.same(found, expected), title


CASES = {2: [*map(case, mb.FOLDERS), flattened_ranges_as_their_strategy, metadata_as_their_strategy,
             a_training_is_loaded_as_by_their_strategy,
             ranks_share_the_loading_by_megatron_core_s_wrapper, strictness_is_theirs, what_is_missing_is_an_error_on_every_rank,
             common_values_within_a_folder_of_0_19, examples_of_the_page_do_the_same_before_and_after]}
