"""Hooks of modules for load_state_dict, where load_into takes its place."""

import functools

import pytest

torch = pytest.importorskip("torch")

from fsdp_bench import Net, equal_to, numbers, on_meta  # noqa: E402
from torch import nn  # noqa: E402


def noted(model, calls):
    """Has `model` and its children note in `calls` when they are told that they are loaded."""
    for name, module in model.named_modules():
        module.register_load_state_dict_post_hook(
            lambda module, keys, name=name: calls.append((name, keys, module.state_dict().keys())))
    return model


def test_hooks_after_load_state_dict_are_run_as_torch_runs_them(make):
    state, calls, theirs = numbers(Net()), [], []
    result = make.load(noted(on_meta(), calls), state)
    keys = noted(Net(), theirs).load_state_dict(state)
    assert calls == theirs and len(calls) == 7 and calls[-1][0] == ""
    assert (result.missing, result.unexpected) == (keys.missing_keys, keys.unexpected_keys)


def test_a_hook_after_load_state_dict_finds_the_values_and_may_change_what_is_missing(make):
    model, state, seen = on_meta(), numbers(Net()), []
    bias = state.pop("odd.bias")
    model.odd.bias = nn.Parameter(torch.zeros_like(bias))

    def hook(module, keys):
        seen.append(torch.equal(module.weight, state["odd.weight"]))
        keys.missing_keys.remove("odd.bias")

    model.odd.register_load_state_dict_post_hook(hook)
    assert make.load(model, state, strict=False).missing == [] and seen == [True]


class LoadsItself(nn.Linear):
    def _load_from_state_dict(self, *arguments):
        raise AssertionError("it is not to be run")


def test_what_would_run_before_load_state_dict_is_named_and_not_run(make, caplog):
    model = nn.Sequential(LoadsItself(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))

    def renames(module, state_dict, *_):
        raise AssertionError("it is not to be run")

    model[1].register_load_state_dict_pre_hook(renames)
    model[2].register_load_state_dict_pre_hook(functools.partial(renames))
    state = numbers(nn.Sequential(*(nn.Linear(2, 2) for _ in range(3))))
    make.load(model, state, init_buffers=None)
    assert equal_to(model, state)
    own = "test_what_would_run_before_load_state_dict_is_named_and_not_run.<locals>.renames"
    assert sorted(text.split(" is not run")[0] for text in caplog.messages) == [
        "load_into: hook 'LoadsItself._load_from_state_dict' of the module '0'",
        f"load_into: hook '{own}' of the module '1' and of 1 more"]


def adds(keys_of):
    def hook(module, keys):
        keys_of(keys).append("x")
    return hook


@pytest.mark.parametrize("keys_of", [lambda keys: keys.missing_keys, lambda keys: keys.unexpected_keys])
def test_what_a_hook_adds_to_the_keys_is_torch_s_error(make, keys_of):
    state, model = numbers(Net()), on_meta()
    model.register_load_state_dict_post_hook(adds(keys_of))
    with pytest.raises(RuntimeError, match='key.s. in state_dict: "x"'):
        make.load(model, state)
    make.load(model, state, strict=False)


def test_names_that_only_other_ranks_hold_are_no_error_of_a_hook(make, monkeypatch):
    """The stages of a pipeline each miss what the others have."""
    from ckptd.torch.load import _load_into

    attach = _load_into.attach

    def with_others(*arguments):
        shard, result = attach(*arguments)
        result.unexpected.append("another.stage.s")
        return shard, result

    monkeypatch.setattr(_load_into, "attach", with_others)
    model, seen = on_meta(), []
    model.register_load_state_dict_post_hook(lambda module, keys: seen.extend(keys.unexpected_keys))
    assert make.load(model, numbers(Net())).unexpected == seen == ["another.stage.s"]


def test_a_hook_that_returns_something_is_an_error_as_with_torch(make):
    model = on_meta()
    model.up.register_load_state_dict_post_hook(lambda module, keys: 1)
    with pytest.raises(AssertionError, match="lambda.*returned a value"):
        make.load(model, numbers(Net()))


def test_of_torch_s_own_hooks_nothing_is_said(make, caplog):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    build = lambda: nn.Sequential(nn.BatchNorm1d(2), nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))  # noqa: E731
    state = numbers(build())
    make.load(nn.Sequential(*map(checkpoint_wrapper, build())), state, init_buffers=None)
    assert caplog.messages == []
