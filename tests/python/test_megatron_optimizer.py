"""Functions that shard an optimizer's state: on plain objects, and beside megatron-core's own where it is installed."""

import copy
import importlib.util
import logging
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
import ckptd.megatron  # noqa: E402
import megatron_on_cpu  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from megatron_objects import PLAIN  # noqa: E402

INSTALLED = importlib.util.find_spec("megatron") is not None
KEYS = [f"layer.{number}.weight" for number in range(4)]
STATES = ["exp_avg", "exp_avg_sq", "step"]


def theirs():
    """megatron-core's functions and classes."""
    if not INSTALLED:
        pytest.skip("megatron-core is not installed; tests/python/megatron_core.sh runs this with it")
    with megatron_on_cpu.importable():
        from megatron.core.dist_checkpointing import mapping, optimizer

    return optimizer, mapping


def sharded(kinds, key, param, factory=False):
    if factory:
        return kinds.ShardedTensorFactory(key, param, list, sum, replica_id=(0, 1, 0))
    return kinds.ShardedTensor.from_rank_offsets(key, param, (0, 1, 3), (1, 0, 2), replica_id=(0, 0, 1), prepend_axis_num=1)


def parameter(dtype=None):
    return torch.nn.Parameter(torch.zeros(2, 3, dtype=dtype or torch.float32))


class Case:
    """A model's sharded state dict and an optimizer's state dict, of one kind of objects.

    where: the nesting of each key. picks: which parameters the optimizer has, in its order."""

    def __init__(self, kinds, where, factories, copies, picks, states):
        self.params = [parameter(torch.bfloat16 if number % 2 else None) for number in range(len(KEYS))]
        self.model = {"no tensor": 1, "object": kinds.ShardedObject("o", None, (1,), (0,)), "a tuple": (self.params[0],)}
        for key, param, nesting, factory, copied in zip(KEYS, self.params, where, factories, copies):
            entry = sharded(kinds, key, param.detach().clone() if copied else param, factory)
            at = self.model
            for level in nesting:
                at = at.setdefault(level, {})
            at.setdefault("list", []).append([entry])
        self.picked = [self.params[pick] for pick in picks]
        self.state_dict = {
            "state": {number: {name: torch.full((2, 3), float(number)) for name in names}
                      for number, names in enumerate(states)},
            "param_groups": [{"lr": 0.5, "params": [0, 1]}, {"lr": 0.25, "params": [2]}],
            "other": "stays",
        }

    def found(self, functions, exclude):
        """What the functions make of it, for comparisons."""
        numbers = functions.get_optim_param_to_id_map(iter(self.picked))
        by_place = {place: numbers.get(id(param)) for place, param in enumerate(self.params)}
        entries = functions.get_param_id_to_sharded_param_map(self.model, iter(self.picked))
        before = copy.copy(self.state_dict)
        try:
            result = functions.optim_state_to_sharding_state(self.state_dict, entries, exclude)
        except ValueError as error:
            assert self.state_dict == before and all(self.state_dict[key] is before[key] for key in before)
            return by_place, list(map(self.shown, entries.items())), str(error).split(".")[0].split(" does")[0]
        assert result is None
        state = {number: {name: self.shown((number, entry)) for name, entry in held.items()}
                 for number, held in self.state_dict["state"].items()}
        groups = [{**group, "params": group["params"].unwrap()} for group in self.state_dict["param_groups"]]
        return by_place, list(map(self.shown, entries.items())), state, groups, self.state_dict["other"]

    def shown(self, item):
        """An entry as text, its tensor as the number of the parameter that it is."""
        number, entry = item
        data = next((place for place, param in enumerate(self.params) if param is entry.data), entry.data.tolist())
        fields = {**vars(entry), "data": data, "build_fn": None, "merge_fn": None}
        return number, type(entry).__name__, sorted((name, repr(value)) for name, value in fields.items())


NESTING = st.lists(st.sampled_from("ab"), max_size=2)
FLAGS = st.lists(st.booleans(), min_size=len(KEYS), max_size=len(KEYS))
CASES = st.tuples(st.lists(NESTING, min_size=len(KEYS), max_size=len(KEYS)), FLAGS, FLAGS,
                  st.lists(st.integers(0, len(KEYS) - 1), max_size=6),
                  st.lists(st.lists(st.sampled_from(STATES), unique=True), max_size=5))
EXCLUDED = st.sampled_from([(), ("step",), "step", ["exp_avg"], "exp_avg_sq", STATES])


@settings(max_examples=200, deadline=None)
@given(CASES, EXCLUDED)
def test_results_are_those_of_megatron_core_on_its_objects_and_on_plain_ones(case, exclude):
    functions, kinds = theirs()
    expected = Case(kinds, *case).found(functions, exclude)
    assert Case(kinds, *case).found(ckptd.megatron, exclude) == expected
    assert Case(PLAIN, *case).found(ckptd.megatron, exclude) == expected


def errors_of(functions, kinds):
    """(types of errors, whether a group's params are megatron-core's object)"""
    model, tensor = sharded(kinds, "w", parameter()), torch.zeros(2, 3)
    calls = [
        lambda: functions.make_sharded_optimizer_tensor(model, torch.zeros(3, 2), "p"),
        lambda: functions.make_sharded_optimizer_tensor(model, 4.0, "p"),
        lambda: functions.optim_state_to_sharding_state({"state": {3: {"exp_avg": tensor}}, "param_groups": []}, {}),
        lambda: functions.optim_state_to_sharding_state({"state": {}}, {}),
        lambda: functions.get_param_id_to_sharded_param_map(model, []),
        lambda: functions.get_param_id_to_sharded_param_map({"w": model}, None),
    ]
    found = []
    for call in calls:
        with pytest.raises(Exception) as raised:
            call()
        found.append(raised.type)
    return found


def test_errors_are_of_megatron_core_s_types():
    functions, kinds = theirs()
    assert errors_of(ckptd.megatron, kinds) == errors_of(functions, kinds) == errors_of(ckptd.megatron, PLAIN)


def test_values_that_stay_local_are_of_megatron_core_s_class():
    functions, kinds = theirs()
    state = {"state": {}, "param_groups": [{"params": [0]}]}
    ckptd.megatron.optim_state_to_sharding_state(state, {})
    assert type(state["param_groups"][0]["params"]) is kinds.LocalNonpersistentObject


def test_an_optimizer_s_tensor_lies_as_its_parameter_with_a_type_of_its_own():
    param = sharded(PLAIN, "w", parameter(torch.bfloat16))
    moment = torch.ones(2, 3)
    made = ckptd.megatron.make_sharded_optimizer_tensor(param, moment, "optimizer.state.exp_avg")
    assert (made.key, made.dtype) == ("optimizer.state.exp_avg.w", torch.float32) and made.data is moment
    for name in ("global_shape", "global_offset", "local_shape", "axis_fragmentations", "replica_id", "prepend_axis_num"):
        assert getattr(made, name) == getattr(param, name)
    assert (param.key, param.dtype) == ("w", torch.bfloat16)


def test_a_factory_makes_the_optimizer_s_tensors_as_the_parameter_s():
    param, moment = sharded(PLAIN, "w", parameter(), factory=True), torch.ones(5)
    made = ckptd.megatron.make_sharded_optimizer_tensor(param, moment, "p")
    assert (made.key, made.build_fn, made.merge_fn, made.replica_id) == ("p.w", list, sum, (0, 1, 0))
    assert made.data is moment and param.key == "w"


def test_objects_that_are_no_dataclasses_serve_as_well():
    class Entry:
        local_shape = global_shape = global_offset = (2, 3)
        key, checked = "w", 0

        def validate_metadata_integrity(self):
            self.checked += 1

    param = Entry()
    made = ckptd.megatron.make_sharded_optimizer_tensor(param, torch.zeros(2, 3), "p")
    assert (made.key, made.checked, param.key, param.checked) == ("p.w", 1, "w", 0)


def test_parameters_are_numbered_by_identity_and_their_first_place():
    a, b = parameter(), parameter()
    assert ckptd.megatron.get_optim_param_to_id_map([a, b, a]) == {id(a): 0, id(b): 1}


def test_of_the_entries_of_one_parameter_the_last_counts():
    param = parameter()
    model = {"a": sharded(PLAIN, "first", param), "b": [{"c": sharded(PLAIN, "last", param)}]}
    assert ckptd.megatron.get_param_id_to_sharded_param_map(model, [parameter(), param])[1].key == "last"


def test_a_dtensor_counts_by_its_local_tensor():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        whole = distribute_tensor(torch.zeros(2, 3), init_device_mesh("cpu", (1,)), [Replicate()])
        with torch.no_grad():
            entry = sharded(PLAIN, "w", whole.to_local())
        assert list(ckptd.megatron.get_optim_param_to_id_map([whole])) == [id(entry.data)]
        assert list(ckptd.megatron.get_param_id_to_sharded_param_map({"w": entry}, [whole])) == [0]
        assert ckptd.megatron.make_sharded_optimizer_tensor(entry, whole, "p").data is entry.data
    finally:
        torch.distributed.destroy_process_group()


def test_a_model_of_other_tensors_is_a_warning_that_says_what_to_do(caplog):
    model = {"w": sharded(PLAIN, "w", torch.zeros(2, 3))}
    with caplog.at_level(logging.WARNING, "ckptd.megatron"):
        assert ckptd.megatron.get_param_id_to_sharded_param_map(model, [parameter()]) == {}
    assert ckptd.megatron.KEEP_VARS_HINT in caplog.text and "keep_vars=True" in caplog.text


def test_groups_are_copied_and_their_parameters_stay_local():
    groups = [{"lr": [0.5], "params": [0]}]
    state = {"state": {0: {"step": 3, "exp_avg": torch.ones(2, 3)}}, "param_groups": groups, "extra": 1}
    param = sharded(PLAIN, "w", parameter())
    assert ckptd.megatron.optim_state_to_sharding_state(state, {0: param}, exclude_keys=("step",)) is None
    assert list(state["state"][0]) == ["exp_avg"] and state["extra"] == 1
    assert state["state"][0]["exp_avg"].key == "optimizer.state.exp_avg.w"
    assert state["param_groups"][0]["params"].unwrap() == [0] and groups == [{"lr": [0.5], "params": [0]}]
    assert state["param_groups"][0]["lr"] is not groups[0]["lr"]


def test_a_parameter_without_a_place_is_an_error_unless_all_of_it_is_left_out():
    state = {"state": {7: {"step": 1}}, "param_groups": []}
    ckptd.megatron.optim_state_to_sharding_state(dict(state), {}, exclude_keys=("step",))
    with pytest.raises(ValueError, match="Param id 7 .*keep_vars=True"):
        ckptd.megatron.optim_state_to_sharding_state(state, {}, ())


def test_importing_the_package_does_not_import_megatron_core():
    code = "import sys, ckptd.megatron; assert not any(name.startswith('megatron') for name in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path), "PATH": ""}, timeout=120)
