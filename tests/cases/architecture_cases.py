"""Buffers that no checkpoint holds, of every architecture of transformers that has some, also under FSDP2."""

import contextlib
import logging
import pathlib
import sys
import warnings

import ckptd
import torch
from ckptd.torch.compat import _checkpoint_names, _torch_internals
from ckptd.torch.load import _buffers, _load_into
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

# Those of which the wrapped model took another branch, and some that have buffers of other kinds.
SOME = ["falcon_h1", "llama", "blip", "clip", "swin"]
DEPTHS = ("num_hidden_layers", "num_layers", "n_layer", "encoder_layers", "decoder_layers", "n_layers", "depth")


def shallow(config):
    """Two layers each: buffers are alike in all of them."""
    for part in [config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", ()))]:
        for name in DEPTHS:
            if isinstance(getattr(part, name, None), int) and getattr(part, name) > 2:
                _set(part, name, 2)
        kinds = getattr(part, "layer_types", None)
        if isinstance(kinds, list):
            _set(part, "layer_types", kinds[:2])
    return config


def _set(part, name, value):
    with contextlib.suppress(AttributeError):  # some are computed
        setattr(part, name, value)


def architectures(kinds):
    """(type, its model class, a shallow configuration) of `kinds`, or of all whose code has such buffers."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    for kind in kinds or sorted(CONFIG_MAPPING.keys()):
        try:
            config = CONFIG_MAPPING[kind]()
            model = MODEL_MAPPING[type(config)]
            model = model[0] if isinstance(model, tuple) else model
            code = pathlib.Path(sys.modules[model.__module__].__file__).read_text()
        except Exception:  # it needs arguments, or packages that are not here
            continue
        if "persistent=False" in code:
            yield kind, model, shallow(config)


def remade(model):
    """name -> value of every open buffer, or why it has none. They are open again afterwards."""
    targets = _load_into.list_targets(_checkpoint_names.modules_of(model))
    left = [t for t in targets if not t.persistent and t.tensor.is_meta]
    try:
        _buffers.recompute(model, left, None, torch.device("cpu"))
        return {name: model.get_buffer(name) for target in left for name in target.names}
    except ckptd.Error as error:
        return str(error)
    finally:
        for target in left:
            for slot in target.slots:
                _torch_internals.set_in_slot(slot, target.tensor)


def layers_wrapped(model, mesh):
    names = set(getattr(model, "_no_split_modules", None) or ())
    for module in [m for m in model.modules() if type(m).__name__ in names][::-1]:
        fully_shard(module, mesh=mesh)


def root_wrapped(model, mesh):
    """The root besides, as is usual."""
    fully_shard(model, mesh=mesh)


def differs(mine, theirs):
    if isinstance(mine, str) or isinstance(theirs, str):
        return mine != theirs
    return mine.keys() != theirs.keys() or not all(torch.equal(mine[n], theirs[n]) for n in mine)


def compare(kinds):
    """(how many models have such buffers, those that differ when they are wrapped)"""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    mesh, failures, compared = init_device_mesh("cpu", (1,)), [], 0
    for kind, build, config in architectures(kinds):
        try:
            with torch.device("meta"):
                model = build(config)
        except Exception:  # not on meta, or not that shallow
            continue
        theirs = remade(model)
        compared += bool(theirs)
        for wrap in (layers_wrapped, root_wrapped) if theirs else ():
            try:
                wrap(model, mesh)
            except (ValueError, NotImplementedError, AssertionError):  # FSDP2's own
                break
            mine = remade(model)
            if differs(mine, theirs):
                what = mine if isinstance(mine, str) else "other values"
                failures.append(f"{kind}, {wrap.__name__}: {what}; plain: {str(theirs)[:200]}")
    return compared, failures


def wrapped_models_compute_what_plain_ones_do(bench):
    compared, failures = compare(SOME)
    assert not failures, f"{len(failures)}:\n" + "\n".join(failures)
    assert compared == len(SOME), compared


def every_wrapped_model_computes_what_the_plain_one_does(bench):
    compared, failures = compare(None)
    assert not failures, f"{len(failures)} of {compared}:\n" + "\n".join(failures)
    assert compared > 150, compared


CASES = {1: [wrapped_models_compute_what_plain_ones_do, every_wrapped_model_computes_what_the_plain_one_does]}
