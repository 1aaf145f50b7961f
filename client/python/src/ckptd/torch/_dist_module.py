"""A module, or a plain dict, filled from rank 0's state dict by the daemons."""

from typing import Any, Dict, Iterator, List, Mapping, MutableMapping, Optional, Tuple

import torch
import torch.distributed as dist
from torch import nn

from .. import _client
from .._errors import Unimplemented
from . import _agree, _given, _load, _memory, _module, _native, _private, _result, _tied
from ._spread import DtypeFor, Given, Have, Options, Wanted, spread
from ._targets import Arrangements, Target

_SHARDING = "sharding a state dict from rank 0"


def _own_dtype(target: Target, source: torch.dtype) -> torch.dtype:
    """The receiving side says what it wants; the daemons cast."""
    return target.tensor.dtype


class DistModule(nn.Module):
    """A module whose state dict needs to be there on rank 0 only.

    Wraps `module`: attributes, what is registered, names in state_dict() and in
    named_parameters(), also of modules around it, and calls are the wrapped module's.
    allow_rank0_values: see fsdp2_load_full_state_dict. timeout, digest, address, client:
    see load_into. fallback="native": torch's set_model_state_dict when no daemon can be
    reached. tied: as of set_model_state_dict.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        allow_rank0_values: bool = False,
        timeout: float = 600.0,
        digest: bool = True,
        address: Optional[str] = None,
        client: Optional[_client.Client] = None,
        fallback: Optional[str] = None,
        tied: Optional[str] = None,
    ) -> None:
        super().__init__()
        _native.check(fallback)
        _tied.check(tied)
        of = _native.named(fallback, _tied.said(tied))
        own = Options(timeout, address, client, digest, of, allow_rank0_values, tied)
        self.__dict__["spread_options"] = (own, fallback)
        super().__setattr__("module", module)
        del self.__dict__["training"]  # the wrapped module's counts
        self.register_load_state_dict_post_hook(_name_as_wrapped)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise  # not made yet, as while it is unpickled
        return getattr(self.module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if "module" in self.__dict__.get("_modules", {}) and name != "module":
            setattr(self.module, name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.module, name)

    def register_parameter(self, *args: Any, **kwargs: Any) -> None:
        """With the wrapped module."""
        self.module.register_parameter(*args, **kwargs)

    def register_buffer(self, *args: Any, **kwargs: Any) -> None:
        """With the wrapped module."""
        self.module.register_buffer(*args, **kwargs)

    def add_module(self, *args: Any, **kwargs: Any) -> None:
        """To the wrapped module."""
        self.module.add_module(*args, **kwargs)

    def register_module(self, *args: Any, **kwargs: Any) -> None:
        """With the wrapped module."""
        self.module.add_module(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped module's."""
        return self.module(*args, **kwargs)

    def named_modules(
        self, memo: Optional[set] = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[Tuple[str, nn.Module]]:
        """This one, then the wrapped module under the same name, and its parts under theirs."""
        memo = set() if memo is None else memo
        if self not in memo:
            if remove_duplicate:
                memo.add(self)
            yield prefix, self
            yield from self.module.named_modules(memo, prefix, remove_duplicate)

    def _fqn_modifiers(self) -> Dict[str, str]:
        # By it torch's functions, and ours, leave the name of the wrapped module out.
        return {"": "module"}

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ) -> None:
        """Where a module around it loads: of torch's, which gives the wrapped module a prefix of its own."""
        for name in [name for name in state_dict if name.startswith(prefix)]:
            state_dict[f"{prefix}module.{name[len(prefix) :]}"] = state_dict.pop(name)
        self.__dict__["loading"] = prefix, error_msgs
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def state_dict(self, *args: Any, **kwargs: Any) -> Dict[str, Any]:
        """The wrapped module's, by its names: of a sharded one, this rank's parts."""
        return self.module.state_dict(*args, **kwargs)

    def named_parameters(
        self, *args: Any, **kwargs: Any
    ) -> Iterator[Tuple[str, nn.Parameter]]:
        """The wrapped module's, by its names."""
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[Tuple[str, torch.Tensor]]:
        """The wrapped module's, by its names."""
        return self.module.named_buffers(*args, **kwargs)

    def load_state_dict(self, state_dict: Given, strict: bool = True, assign: bool = False) -> Any:
        """Spreads parameters and persistent buffers of rank 0's `state_dict` over all ranks.

        Other ranks may pass `{}`. state_dict may be a LazyStateDict or the path of a
        checkpoint as well. Types are the module's. `assign` changes nothing: parameters
        stay the same objects in any case, and their memory becomes the daemon's.

        Returns missing and unexpected keys, on every rank alike; with strict they are a
        RuntimeError, on every rank, as in Module.load_state_dict. Raises ckptd.Error.
        """
        own, fallback = self.spread_options
        doing = "DistModule.load_state_dict"
        with _agree.part_of(doing, _agree.Near(own.address, own.client)):
            return _native.stand_in(
                doing,
                lambda: _module.finish(self, _fill(self.module, state_dict, strict, own), strict),
                lambda: _native_fill(self.module, state_dict, strict, own),
                fallback,
            )


def _name_as_wrapped(module: DistModule, keys: Any) -> None:
    """After torch has loaded it as a part of another one: takes the prefix out of what that says."""
    prefix, messages = module.__dict__.pop("loading", ("", []))
    for texts in (*keys, messages):
        texts[:] = [text.replace(f"{prefix}module.", prefix) for text in texts]


def _fill(module: nn.Module, given: Given, strict: bool, options: Options) -> Any:
    def check(have: Mapping[str, Have], wanted: Wanted) -> Tuple[List[str], List[str]]:
        metadata = getattr(given, "_metadata", None)
        missing, unexpected = _module.compare_names(have, wanted, metadata)
        sizes = _module.mismatched(have, wanted.targets)
        _result.raise_as_torch(module, *((missing, unexpected) if strict else ([], [])), sizes)
        return missing, unexpected

    doing = "DistModule.load_state_dict"
    made = _module.spread_over(doing, module, given, check, lambda _: _own_dtype, options)
    return _module.incompatible(made.missing, made.unexpected)


def _native_fill(module: nn.Module, given: Given, strict: bool, own: Options) -> Any:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    together = _load.rank_and_size()[1] > 1  # a process that is alone may have no process group
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=together, strict=strict)
    where = ("torch.distributed.checkpoint.state_dict", "set_model_state_dict")
    whole = _module.dict_for_original("DistModule.load_state_dict", module, given, own)
    return _native.original(*where)(module, dict(whole), options=options)


def broadcast_and_shard_state_dict(
    state_dict: Given,
    meta_sharded_state_dict: Mapping[str, torch.Tensor],
    sharded_state_dict: MutableMapping[str, torch.Tensor],
    *,
    timeout: float = 600.0,
    digest: bool = True,
    address: Optional[str] = None,
    client: Optional[_client.Client] = None,
    fallback: Optional[str] = None,
) -> None:
    """Rank 0's side of sharding `state_dict` over all ranks; the others call
    shard_broadcasted_state_dict at the same time.

    meta_sharded_state_dict: name -> DTensor, or plain tensor, that tells shape, type, mesh
    and placements, such as state_dict() of a sharded model on meta; of the same names on
    every rank. sharded_state_dict gets this rank's part of each, over the daemon's
    memory, in that order, for load_state_dict(assign=True).

    Raises ValueError on other ranks than 0, KeyError on all ranks for a name that
    state_dict lacks, RuntimeError for another shape, ckptd.Error.
    """
    with _agree.part_of(_SHARDING, _agree.Near(address, client)):
        if _load.rank_and_size()[0] != 0:
            raise ValueError(
                "broadcasting a state dict: this is not rank 0, which alone has it; call "
                "shard_broadcasted_state_dict here"
            )
    own = Options(timeout, address, client, digest, _native.named(fallback))
    _shard(state_dict, meta_sharded_state_dict, sharded_state_dict, own, fallback)


def shard_broadcasted_state_dict(
    meta_sharded_state_dict: Mapping[str, torch.Tensor],
    sharded_state_dict: MutableMapping[str, torch.Tensor],
    *,
    timeout: float = 600.0,
    digest: bool = True,
    address: Optional[str] = None,
    client: Optional[_client.Client] = None,
    fallback: Optional[str] = None,
) -> None:
    """The other ranks' side of broadcast_and_shard_state_dict. Raises ValueError on rank 0."""
    with _agree.part_of(_SHARDING, _agree.Near(address, client)):
        if _load.rank_and_size()[0] == 0:
            raise ValueError(
                "receiving a state dict: this is rank 0, which has it; call "
                "broadcast_and_shard_state_dict here"
            )
    own = Options(timeout, address, client, digest, _native.named(fallback))
    _shard({}, meta_sharded_state_dict, sharded_state_dict, own, fallback)


class _Sink:
    """Takes values where a module would take buffers."""

    def __init__(self) -> None:
        self.found: Dict[str, torch.Tensor] = {}
        self.__dict__.update({"_parameters": {}, "_buffers": self.found})


def _shard(given: Given, meta, into, options: Options, fallback: Optional[str]) -> None:
    with _agree.part_of(_SHARDING, _agree.Near(options.address, options.client)):
        values = _native.stand_in(
            "broadcast_and_shard_state_dict",
            lambda: _shard_by_daemons(given, meta, options),
            lambda: _shard_by_broadcast(given, meta, options),
            fallback,
        )
    into.update((name, values[name]) for name in meta)


def _shard_by_daemons(given: Given, meta, options: Options) -> Dict[str, torch.Tensor]:
    sink = _Sink()

    def plan() -> Tuple[Wanted, DtypeFor]:
        known = Arrangements()
        return Wanted([_target(name, like, sink, known) for name, like in meta.items()]), _own_dtype

    def check(have: Mapping[str, Have], wanted: Wanted) -> Tuple[List[str], List[str]]:
        missing, unexpected = _module.compare_names(have, wanted)
        if missing:
            raise KeyError(
                f"sharding rank 0's state dict: it lacks {_module.shown(missing)}, which the "
                "sharded one has; pass the state dict of the same model"
            )
        sizes = _module.mismatched(have, wanted.targets)
        if sizes:
            raise RuntimeError(f"sharding rank 0's state dict: {sizes[0]}")
        return [], unexpected

    spread(_SHARDING, plan, given, check, options).fill()
    return sink.found


def _target(name: str, like: torch.Tensor, sink: _Sink, known: Arrangements) -> Target:
    if not _memory.number_of(like.dtype):
        raise Unimplemented(
            f"sharding {name}: checkpoints hold no {like.dtype}",
            "DTYPE_UNSUPPORTED",
            {"tensor": name},
        )
    spec = _private.spec_of(like) if _private.is_dtensor(like) else None
    arrangement = known.over_mesh(spec) if spec is not None else known.plain(like)
    return Target([name], like, [(sink, name)], True, True, arrangement, None, spec, like.dtype)


def _shard_by_broadcast(given: Given, meta, options: Options) -> Dict[str, torch.Tensor]:
    """With torch alone: whole tensors go to every rank, which keeps its part."""
    from torch.distributed.tensor import distribute_tensor

    state = _given.as_dict("broadcast_and_shard_state_dict", given, options.timeout)
    found = {}
    for name, like in meta.items():
        mesh = like.device_mesh if _private.is_dtensor(like) else None
        device = torch.device("cpu") if mesh is None else _private.device_of_mesh(mesh)
        if _load.rank_and_size()[0] == 0:
            whole = state[name].detach().to(device, like.dtype).contiguous()
        else:
            whole = torch.empty(like.shape, dtype=like.dtype, device=device)
        dist.broadcast(whole, src=0)
        found[name] = whole if mesh is None else distribute_tensor(whole, mesh, like.placements)
    return found
