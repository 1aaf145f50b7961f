"""Private names of torch, except FSDP1's: those are in _fsdp1_internals.

Tried with torch 2.13 and 2.15. By their sources, versions from 2.6 on have the same names.
If FSDP2 lacks one, the caller gets TORCH_UNSUPPORTED. If torch cannot exchange a tensor's
memory, the caller takes torch's public path.
"""

import contextlib
from typing import Callable, Container, Dict, Iterable, Iterator, List, Optional, Tuple

import torch
from torch import nn

try:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor
except ImportError:  # a torch built without distributed
    FSDPModule = DTensor = None

from torch.nn.modules.module import _IncompatibleKeys as IncompatibleKeys  # noqa: F401

from ..._errors import FailedPrecondition

_PARAM_NAMES = (
    "sharded_param",
    "_sharded_param_data",
    "padded_sharded_param_size",
    "sharded_size",
    "fsdp_placement",
    "mesh_info",
    "_sharding_spec",
    "_module_info",
)
_GROUP_NAMES = (
    "_training_state",
    "_all_gather_result",
    "wait_for_unshard",
    "_sharded_state",
    "_to_sharded",
    "fsdp_params",
)
_HAS_GRAD_DTYPE = hasattr(torch.Tensor, "grad_dtype")
_HOOK_MODULE = "torch.distributed.fsdp._fully_shard._fsdp_param"


def tensors_of(module: nn.Module) -> Tuple[dict, dict]:
    """(own parameters, own buffers) by name. Names that are not set have None."""
    return module._parameters, module._buffers


def buffers_of(module: nn.Module) -> dict:
    return module._buffers


def _registry(slot: Tuple[nn.Module, str]) -> dict:
    module, name = slot
    return module._parameters if name in module._parameters else module._buffers


def tensor_in_slot(slot: Tuple[nn.Module, str]) -> Optional[torch.Tensor]:
    """The parameter or buffer that a module has under a name, or None."""
    held = _registry(slot)  # TorchScript's registry is no dict
    return held[slot[1]] if slot[1] in held else None


def set_in_slot(slot: Tuple[nn.Module, str], tensor: torch.Tensor) -> None:
    """Replaces the module's parameter or buffer of that name. Registers no new name."""
    _registry(slot)[slot[1]] = tensor


@contextlib.contextmanager
def replaced_by_meta(modules: Iterable[nn.Module], but: Container[int]):
    """Inside the block the modules hold tensors on meta. Only tensors with ids in `but` stay.

    An initialisation in the block therefore writes only those. Names that it adds are dropped.
    Plain attributes that are real tensors are replaced as well: FSDP1 leaves views there.
    """
    kept, plain, blanks = [], [], {}
    try:
        for module in modules:
            for held in (module._parameters, module._buffers):
                before = dict(held)
                kept.append((held, before))
                for name, tensor in before.items():
                    if tensor is not None and id(tensor) not in but:
                        held[name] = _meta_like(tensor, blanks)
            facts = vars(module)
            for name, value in list(facts.items()):
                if isinstance(value, torch.Tensor) and not value.is_meta:
                    plain.append((facts, name, value))
                    facts[name] = _meta_like(value, blanks)
        yield
    finally:
        for held, before in kept:
            now = dict(held)
            if isinstance(held, dict):  # TorchScript's registry is no dict and takes no new names
                held.clear()
            for name, tensor in before.items():
                held[name] = now.get(name) if id(tensor) in but else tensor
        for facts, name, value in plain:
            facts[name] = value


@contextlib.contextmanager
def without_fsdp2_classes(modules: Iterable[nn.Module]):
    """Inside the block modules have the classes that they had before fully_shard.

    Code that looks at a class's name or file then works as it does without FSDP2.
    """
    kinds = [(m, type(m)) for m in modules if FSDPModule is not None and isinstance(m, FSDPModule)]
    try:
        for module, kind in kinds:
            while issubclass(kind, FSDPModule):
                kind = next(base for base in kind.__bases__[::-1] if issubclass(base, nn.Module))
            module.__class__ = kind
        yield
    finally:
        for module, kind in kinds:
            module.__class__ = kind


def _meta_like(tensor: torch.Tensor, blanks: Dict[int, torch.Tensor]) -> torch.Tensor:
    """A tensor on meta like `tensor`, marked as initialised for transformers. Each tensor has one."""
    blank = blanks.get(id(tensor))
    if blank is None:
        blank = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        if isinstance(tensor, nn.Parameter):
            blank = nn.Parameter(blank, requires_grad=False)
        blank._is_hf_initialized = True
        blanks[id(tensor)] = blank
    return blank


def is_buffer_on_meta(module: nn.Module, buffer: str) -> bool:
    return module._buffers[buffer].is_meta


def is_persistent(module: nn.Module, buffer: str) -> bool:
    return buffer not in module._non_persistent_buffers_set


def counts_batches(module: nn.Module, buffer: str) -> bool:
    """Whether torch sets this buffer to 0 if a state dict lacks it, as old state dicts do."""
    return (
        buffer == "num_batches_tracked"
        and isinstance(module, nn.modules.batchnorm._NormBase)
        and module.track_running_stats
        and module._buffers[buffer].dim() == 0
    )


def hooks_before_load(modules: List[Tuple[str, nn.Module]]) -> List[Tuple[str, Callable]]:
    """(path, hook or method that may change a state dict before the module reads it), torch's own included."""
    hooked = [(path, module) for path, module in modules if module._load_state_dict_pre_hooks]
    found = [(p, h) for p, module in hooked for h in module._load_state_dict_pre_hooks.values()]
    found = [(path, getattr(hook, "hook", hook)) for path, hook in found]
    for kind, path in {type(module): path for path, module in modules}.items():  # there are fewer classes than modules
        if kind._load_from_state_dict is not nn.Module._load_from_state_dict:
            found.append((path, kind._load_from_state_dict))
    return found


def hooks_after_load(module: nn.Module) -> Iterable[Callable]:
    return module._load_state_dict_post_hooks.values()


def children_first(module: nn.Module) -> Iterator[nn.Module]:
    """Modules, once for each of their names, in the order in which torch's loading finishes them."""
    for child in module._modules.values():
        if child is not None:
            yield from children_first(child)
    yield module


def version_of(tensor: torch.Tensor) -> int:
    """How often torch has written the tensor, or a view of it, in place."""
    return tensor._version


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """The local tensor of a DTensor, itself and not a view of it. A plain tensor is returned as it is."""
    return tensor._local_tensor if is_dtensor(tensor) else tensor


def without_torch_function():
    """A context in which attributes of tensor subclasses are read without __torch_function__.

    That makes reading an attribute of a DTensor four times as fast.
    """
    return torch._C.DisableTorchFunctionSubclass()


@contextlib.contextmanager
def low_overhead_dispatch():
    """A context without autograd, and without dispatch to its layer if this PyTorch allows that."""
    guard = getattr(torch._C, "_AutoDispatchBelowAutograd", contextlib.nullcontext)
    with torch.no_grad(), guard(), without_torch_function():
        yield


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a strided tensor's memory holds its values. Wrapper subclasses keep them in other tensors."""
    is_wrapper = type(tensor).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl
    if not tensor.numel() or (tensor.device.type != "cpu" and not is_wrapper):
        return True
    try:
        return tensor.data_ptr() != 0
    except RuntimeError:  # some subclasses have no pointer at all
        return False


def walk(model: nn.Module) -> List[Tuple[str, nn.Module]]:
    """(path, module) in the order of named_modules(remove_duplicate=False), in half its time."""
    found, rest = [], [("", model)]
    while rest:
        path, module = rest.pop()
        found.append((path, module))
        children = module._modules
        if children:
            prefix = f"{path}." if path else ""
            rest += [(prefix + n, child) for n, child in reversed(children.items()) if child is not None]
    return found


def can_swap_implementation() -> bool:
    return hasattr(torch._C, "_swap_tensor_impl")


def device_of_mesh(mesh) -> torch.device:
    """Device of this rank's shards over `mesh`. For "cuda" that is the current GPU, as in PyTorch."""
    if mesh.device_type == "cuda" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(mesh.device_type)


def is_dtensor(tensor) -> bool:
    return DTensor is not None and isinstance(tensor, DTensor)


def is_fsdp2(module: nn.Module) -> bool:
    return FSDPModule is not None and isinstance(module, FSDPModule)


def mesh_of(fsdp):
    """The mesh over which FSDP2 shards and replicates a parameter."""
    return fsdp.mesh_info.mesh


def ignored_by_ddp(model: nn.Module) -> set:
    """Names of tensors that DistributedDataParallel was told to ignore in `model`."""
    return set(getattr(model, "_ddp_params_and_buffers_to_ignore", ()))


class Groups:
    """The FSDP2 parameter groups inside a model."""

    def __init__(self, modules: Iterable[nn.Module]):
        self.states: List = []
        self.groups: List = []
        # id(sharded parameter) -> (FSDPParam, its group)
        self.params: Dict[int, Tuple[object, object]] = {}
        if FSDPModule is None:
            return
        seen = set()
        for module in modules:
            if isinstance(module, FSDPModule):
                state = module._get_fsdp_state()
                if id(state) not in seen:
                    seen.add(id(state))
                    self.states.append(state)
                    self.groups += _groups_of(state)
        for group in self.groups:
            require(group, _GROUP_NAMES)
            for param in group.fsdp_params[:1]:
                require(param, _PARAM_NAMES)
            for param in group.fsdp_params:
                self.params[id(param.sharded_param)] = (param, group)

    def reshard(self) -> None:
        """Puts every group into the sharded state, in which it is between two steps.

        A group that stays gathered would continue with its old weights. Raises
        FailedPrecondition between a forward and its backward.
        """
        for holder in (*self.states, *self.groups):
            state = holder._training_state
            if state.name != "IDLE":
                raise FailedPrecondition(
                    f"filling an FSDP2 model: it is in state {state.name}, inside a forward or "
                    "before its "
                    "backward; load between two steps",
                    "MODEL_BUSY",
                )
        for group in self.groups:
            if group._all_gather_result is not None:
                group.wait_for_unshard()
            group._to_sharded()


def _groups_of(state) -> list:
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is not None:
        return list(groups)
    group = state._fsdp_param_group
    return [] if group is None else [group]


def require(thing, names: Iterable[str], what: str = "FSDP2") -> None:
    lacking = [name for name in names if not hasattr(thing, name)]
    if lacking:
        raise FailedPrecondition(
            f"filling an {what} model: PyTorch {torch.__version__} has no {', '.join(lacking)} in "
            f"{type(thing).__name__}; use a PyTorch that this ckptd was tried with (2.13 and 2.15)",
            "TORCH_UNSUPPORTED",
        )


def managed_elsewhere(module: nn.Module, name: str) -> bool:
    """Whether FSDP2 manages the module's parameter `name`. The hook that it registers there tells."""
    for hook in module._load_state_dict_post_hooks.values():
        if getattr(hook, "__module__", "") != _HOOK_MODULE:
            continue
        held = [cell.cell_contents for cell in hook.__closure__ or ()]
        if not held or any(p._module_info.param_name == name for p in held):
            return True
    return False


def padded_dim(fsdp_param) -> Optional[int]:
    """The dimension along which FSDP2 pads short shards; None if it does not shard."""
    shards = 1 if fsdp_param is None else getattr(fsdp_param.mesh_info, "shard_mesh_size", 1)
    return None if shards == 1 else fsdp_param.fsdp_placement.dim


def keeps_short_shards() -> bool:
    """Whether this FSDP2 keeps padded memory that was put in place. Older versions copy short shards."""
    import inspect

    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    return "same_local_tensor" in inspect.getsource(FSDPParam.reset_sharded_param)


def subclass_of(param, fsdp_param) -> Optional[str]:
    """Class name of the local tensor if it is a subclass, as for quantised weights; else None."""
    kind = type(param._local_tensor)
    if kind is torch.Tensor and fsdp_param is not None:
        kind = type(fsdp_param._sharded_param_data)
    return None if kind is torch.Tensor else kind.__name__


def was_used(fsdp_param) -> bool:
    """Whether a forward has already allocated buffers of its present dtype."""
    return bool(getattr(fsdp_param, "all_gather_outputs", None))


def is_strided_shard(placement) -> bool:
    """Whether FSDP2 shards a dimension that tensor parallelism has sharded before."""
    return type(placement).__name__ == "_StridedShard"


def spec_of(param):
    """The DTensorSpec of a DTensor: its mesh and placements."""
    return param._spec


def spec_with_dtype(spec, dtype: torch.dtype):
    import dataclasses

    meta = spec.tensor_meta
    if meta.dtype == dtype:
        return spec
    return dataclasses.replace(spec, tensor_meta=meta._replace(dtype=dtype))


def dtensor_over(view: torch.Tensor, spec, requires_grad: bool):
    """A DTensor whose local tensor is `view`."""
    # Its __init__ does nothing but takes longer than __new__.
    return DTensor.__new__(DTensor, view, spec, requires_grad=requires_grad)


def set_local_tensor(param, view: torch.Tensor, spec) -> None:
    """Makes `view` the local tensor of the DTensor parameter `param`, keeping the object.

    A wrapper's device and dtype are fixed at construction. If one of them changes, the
    implementation of the object is exchanged for that of a new DTensor. Autograd's state is
    in the implementation and is carried over. A `param` that is not on meta must be on the
    device of `view`.
    """
    if param.is_meta or param.dtype != view.dtype:
        if spec.tensor_meta.dtype != view.dtype:
            spec = spec_with_dtype(spec, view.dtype)
        swap_implementation(param, dtensor_over(view, spec, param.requires_grad))
        param._spec = spec
    param._local_tensor = view


def is_referenced(param: torch.Tensor) -> bool:
    """Whether somebody holds the implementation and would miss an exchange.

    A live autograd graph does, and so does DistributedDataParallel, which waits for gradients
    at the parameter's node. Optimizers and hooks hold the object, which stays.
    """
    count = getattr(param, "_use_count", None)
    return count is not None and count() > 1


def shares_storage(tensors: Iterable[torch.Tensor]) -> Dict[int, torch.Tensor]:
    """id of each tensor that shares its storage -> the first tensor with that storage.

    Sparse, expanded and inference tensors are left out: they cannot be copied into.
    """
    first: Dict[int, torch.Tensor] = {}
    found: Dict[int, torch.Tensor] = {}
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.is_inference():
            continue
        if has_repeated_elements(tensor):
            continue
        other = first.setdefault(tensor.untyped_storage()._cdata, tensor)
        if other is not tensor:
            found[id(tensor)] = found[id(other)] = other
    return found


def has_repeated_elements(tensor: torch.Tensor) -> bool:
    """Whether several elements of a strided tensor share memory, as after expand."""
    return any(step == 0 and size > 1 for size, step in zip(tensor.shape, tensor.stride()))


def set_buffer_memory(buffer: torch.Tensor, view: torch.Tensor) -> torch.Tensor:
    """Makes `view` the memory of a buffer. Returns the buffer, a new object only if it is no plain tensor."""
    plain = type(buffer) is torch.Tensor and buffer.layout is torch.strided
    if not plain or buffer.requires_grad or buffer.is_inference() or not can_swap_implementation():
        return view
    if buffer.device != view.device or buffer.dtype != view.dtype:
        swap_implementation(buffer, view)
    else:
        buffer.data = view
    return buffer


def set_parameter_memory(param: nn.Parameter, view: torch.Tensor) -> None:
    """Makes `view` the memory of a plain parameter, keeping the object."""
    # A parameter made in inference mode could never be trained, and has no version counter.
    if param.device != view.device or param.dtype != view.dtype or param.is_inference():
        swap_implementation(param, torch.Tensor._make_subclass(nn.Parameter, view, param.requires_grad))
    else:
        param.data = view


def announce_storage(fsdp_param, flat: torch.Tensor) -> None:
    """Registers padded memory with FSDP2 beforehand, so that it is not copied."""
    fsdp_param._sharded_param_data = flat


def set_padded_storage(fsdp_param, param, flat: torch.Tensor) -> None:
    """Tells FSDP2 that `flat`, padding included, is the memory of its sharded `param`."""
    fsdp_param._sharded_param_data = flat
    fsdp_param._sharding_spec = param._spec


def swap_implementation(param, made) -> None:
    """Gives `param` the implementation of `made`, keeping hooks, name and object."""
    grad_dtype = param.grad_dtype if _HAS_GRAD_DTYPE else None
    follows = grad_dtype == param.dtype  # PyTorch's default
    hooks, after = param._backward_hooks, getattr(param, "_post_accumulate_grad_hooks", None)
    torch._C._swap_tensor_impl(param, made)
    if hooks is not None:
        param._backward_hooks = hooks
    if after is not None:
        param._post_accumulate_grad_hooks = after
    if _HAS_GRAD_DTYPE and not follows and param.is_leaf:
        param.grad_dtype = grad_dtype


def by_name(model: nn.Module, state):
    """A state dict by names. One by modules is converted as long as torch has that function."""
    from torch.distributed.checkpoint import state_dict

    unflatten = getattr(state_dict, "_unflatten_model_state_dict", None)
    by_modules = isinstance(state, dict) and isinstance(next(iter(state), None), nn.Module)
    return unflatten(model, state) if by_modules and unflatten else state


def metadata_of(state) -> Optional[dict]:
    """Module versions that torch notes in a state dict, or None."""
    return getattr(state, "_metadata", None)


class BufferSink:
    """Stands for a module whose buffers are filled."""

    def __init__(self) -> None:
        self.found: Dict[str, torch.Tensor] = {}
        self.__dict__.update({"_parameters": {}, "_buffers": self.found})


def default_store():
    """The key-value store of the default process group. The object lives as long as the group."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def in_place_works(param, spec) -> bool:
    """Tries the exchange on a scratch parameter like `param`."""
    try:
        local = param._local_tensor
        scratch = dtensor_over(torch.empty_like(local, device="meta"), spec, False)
        # Never written, so no page is allocated.
        fresh = torch.empty(local.shape, dtype=local.dtype, device="cpu")
        before = id(scratch)
        set_local_tensor(scratch, fresh, spec)
        return (
            id(scratch) == before
            and scratch.device == fresh.device
            and scratch._local_tensor.data_ptr() == fresh.data_ptr()
            and scratch._spec is spec
        )
    except Exception:  # after any failure the public path is taken
        return False
