"""load_checkpoint_in_model: accelerate's own function over the daemon's memory."""

import contextlib
import functools
import logging
import os
from dataclasses import dataclass
from typing import Any, Callable, ContextManager, Dict, List, Mapping, Optional, Tuple, Union

import torch
from torch import nn

from .. import _client
from .._errors import Error, FailedPrecondition, Unimplemented
from .._rpc import Deadline
from .._source import absolute, local_path
from ..torch import _daemon
from ..torch.agree import _agreement
from ..torch.compat import _accelerate, _native_fallback
from ..torch.load import _devices, _file_tensor, _lazy_state_dict, _native_files, _tied_weights
from ..torch.spread import _set_model_state_dict, _spread_module
from ..torch.spread._spread import SpreadOptions
from . import _file_entries
from ._dtype_rules import DtypeRules
from ._files import Files, resolve

_LOG = logging.getLogger("ckptd")
_MODULE = "accelerate.utils.modeling"
_FUNCTION = "load_checkpoint_in_model"


def load_checkpoint_in_model(
    model: nn.Module,
    checkpoint: Union[str, os.PathLike],
    device_map: Optional[_devices.DeviceMap] = None,
    offload_folder: Union[None, str, os.PathLike] = None,
    dtype: Union[None, str, torch.dtype] = None,
    offload_state_dict: bool = False,
    offload_buffers: bool = False,
    keep_in_fp32_modules: Optional[List[str]] = None,
    offload_8bit_bnb: bool = False,
    strict: bool = False,
    full_state_dict: bool = True,
    broadcast_from_rank0: bool = False,
    *,
    link_offloaded: bool = False,
    allow_rank0_values: bool = False,
    timeout: float = 600.0,
    digest: bool = True,
    address: Optional[str] = None,
    client: Optional[_client.Client] = None,
    fallback: Optional[str] = None,
    tied: Optional[str] = None,
) -> None:
    """accelerate's function of this name, over the memory of this rank's daemon.

    device_map: module name -> device, or one device for all. A device is a torch.device, its
    text, or the number of a GPU, in any spelling. With a device_map, tensors for the device of
    the daemon's memory come by one load, cast, and become the model's without a copy. Tensors
    for "disk" and other devices come in groups of some megabytes. link_offloaded: entries on
    "disk" name the safetensors file in the offload folder's index. Nothing of them is read or
    written, and the folder then needs the checkpoint. Those of other files are copied. offload_state_dict writes no temporary
    files: the daemon's memory replaces them.

    tied: different values under names of one tensor are an error; "first" takes the value of the
    first of the model's names. Without a device_map the ranks agree as in set_model_state_dict,
    which fills the model, also a model on meta without a process group. allow_rank0_values: see
    there. accelerate itself reads an index that lists nothing.

    Raises accelerate's errors, and those of load_state_dict for a missing file or another format;
    else ckptd.Error, before the model is changed: UNIMPLEMENTED for offload_8bit_bnb. timeout,
    digest, address, client: see load_into. fallback="native": accelerate reads if no daemon can
    be reached.
    """
    modules = None if device_map is None else _devices.for_accelerate(_devices.by_module(device_map))
    arguments: Dict[str, Any] = {
        "device_map": modules,
        "offload_folder": offload_folder,
        "dtype": dtype,
        "offload_state_dict": offload_state_dict,
        "offload_buffers": offload_buffers,
        "keep_in_fp32_modules": keep_in_fp32_modules,
        "offload_8bit_bnb": offload_8bit_bnb,
        "strict": strict,
        "full_state_dict": full_state_dict,
        "broadcast_from_rank0": broadcast_from_rank0,
    }
    own_daemon = _agreement.OwnDaemon(address, client)
    with contextlib.nullcontext() if device_map is not None else _agreement.collective_call(_FUNCTION, own_daemon):
        checkpoint, deadline = os.fspath(checkpoint), Deadline(timeout)
        _native_fallback.check(fallback)
        _tied_weights.check(tied)
        together = device_map is None and _can_spread(model, full_state_dict)
        files, wrong = _resolve(checkpoint)
        if wrong is not None and not together:
            raise wrong
        original = _native_fallback.original(_MODULE, _FUNCTION)
    if files is not None and not files.without_index:
        checkpoint = files.source  # accelerate would choose by another rule in a folder
    if files is not None and not files.files:
        return original(model, checkpoint, **arguments)  # each rank by itself
    daemon = own_daemon._asdict()
    how = (link_offloaded, digest, allow_rank0_values, daemon, deadline, fallback, tied)
    call = _Call(model, checkpoint, files, arguments, *how)
    return _native_fallback.stand_in(
        _FUNCTION,
        lambda: _spread(call, wrong) if together else _run(call),
        lambda: _natively(call, original),
        fallback,
    )


@dataclass(frozen=True)
class _Call:
    """Arguments of one call: accelerate's and ours."""

    model: nn.Module
    checkpoint: str
    files: Optional[Files]  # None if this rank finds none
    arguments: Dict[str, Any]
    link: bool
    digest: bool
    allow_rank0_values: bool
    own_daemon: Dict[str, Any]  # the daemon: address=, client=
    deadline: Deadline
    fallback: Optional[str]
    tied: Optional[str]

    def connected(self) -> ContextManager[_client.Client]:
        rank = _daemon.rank_and_size()[0]
        return _daemon.connected(deadline=self.deadline, rank=rank, **self.own_daemon)

    def options(self) -> Dict[str, Any]:
        """address=, client= and timeout= for the rest of the call."""
        return {**self.own_daemon, "timeout": self.deadline.for_call()}


def _can_spread(model: nn.Module, full_state_dict: bool) -> bool:
    """Whether accelerate would use torch's set_model_state_dict, with full tensors."""
    state = model.state_dict().values()
    real = {t.device for t in state if isinstance(t, torch.Tensor) and not t.is_meta}
    return full_state_dict and len(real) <= 1


def _natively(call: _Call, original: Callable) -> None:
    """Calls accelerate's own function. It silently chooses among tied names, so these are checked."""
    names = {name for names in _tied_weights.shared_names(call.model) for name in names}
    if names and call.files is not None:
        held = _native_files.read_some(call.files.files, names)
        doing = f"loading {call.checkpoint} by accelerate's own function"
        if call.tied is None:
            _tied_weights.resolve_conflicts(doing, call.model, {"": held}, None, lambda value: value)
        elif _tied_weights.in_dict(doing, call.model, held, call.tied) is not held:
            raise FailedPrecondition(
                f"{doing} with tied={call.tied!r}: it has different values under names of one tensor, and "
                "accelerate chooses by an order of its own; start the daemons, or untie the model",
                "DAEMON_UNREACHABLE",
            )
    original(call.model, call.checkpoint, **call.arguments)


def _resolve(checkpoint: str) -> Tuple[Optional[Files], Optional[Exception]]:
    """(files, None), or (None, the error)."""
    try:
        return resolve(local_path(checkpoint)), None
    except (OSError, ValueError, Error) as error:
        return None, error


def _spread(call: _Call, wrong: Optional[Exception]) -> None:
    """Fills the model on all ranks. wrong: this rank's error for the files, raised on every rank."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    with _agreement.agree(_FUNCTION, call.deadline, own_daemon=_agreement.OwnDaemon(**call.own_daemon)) as group:
        if wrong is not None:
            raise wrong
        group.vote(1)

    def names(own: _client.Client) -> _file_entries.Entries:
        return _file_entries.names_in(_file_tensor.inspect(own, call.files.source, call.deadline))

    options = ("full_state_dict", "strict", "broadcast_from_rank0")
    wish = StateDictOptions(**{name: call.arguments[name] for name in options})
    must_match = _native_fallback.named(
        call.fallback, _set_model_state_dict.must_match_of(call.files.source, wish), _tied_weights.describe(call.tied)
    )
    more = {"allow_rank0_values": call.allow_rank0_values, "tied": call.tied}
    how = SpreadOptions(digest=call.digest, must_match=must_match, **more, **call.options())
    result = _set_model_state_dict.spread_over(call.model, names, wish, how)
    if result.unexpected_keys and not call.arguments["strict"]:
        left_out = _spread_module.first_of(sorted(result.unexpected_keys))
        kind = type(call.model).__name__
        _LOG.warning("%s has tensors that %s lacks, left out: %s", call.checkpoint, kind, left_out)


def _run(call: _Call) -> None:
    """accelerate's function itself, with the daemon's memory where it would read files."""
    if call.arguments["offload_8bit_bnb"]:
        raise Unimplemented(
            f"loading {call.checkpoint} with offload_8bit_bnb=True: bitsandbytes quantises what it "
            "offloads, and daemons have no part in that; call accelerate's own function",
            "NOT_FROM_DAEMONS",
        )

    def read(entry: _file_tensor.FileTensor) -> torch.Tensor:
        return _lazy_state_dict.LazyStateDict({entry.name: entry}, **call.options())[entry.name]

    chosen: Dict[str, str] = {}  # see _tied_weights.resolve_conflicts

    @functools.cache
    def by_file() -> Dict[str, _file_entries.Entries]:
        # Called late, when accelerate has checked its arguments.
        with call.connected() as own:
            found = _file_tensor.inspect(own, call.files.source, call.deadline)
            held = _file_entries.entries(own, found, call.files, _rules_of(call), call.digest, call.deadline)
        chosen.update(_tied_weights.resolve_conflicts(f"loading {call.checkpoint}", call.model, held, call.tied, read))
        return held

    def load_state_dict(file: str, device_map: Any = None) -> Mapping[str, Any]:
        files = by_file()
        if call.files.without_index:
            held = {name: value for part in files.values() for name, value in part.items()}
        else:
            held = files[absolute(file)]
        return held if device_map is None else _Stream(held, **call.options())

    checkpoint = call.files.files[0] if call.files.without_index else call.checkpoint
    original = _native_fallback.original(_MODULE, _FUNCTION)
    offload = _Offload(call.arguments["offload_folder"], by_file if call.link else None, chosen)
    _accelerate.with_globals(
        original,
        load_state_dict=load_state_dict,
        offload_weight=offload.write,
        load_offloaded_weights=offload.read_back,
    )(call.model, checkpoint, **call.arguments)


def _rules_of(call: _Call) -> DtypeRules:
    names = ("device_map", "dtype", "offload_state_dict", "offload_buffers", "strict")
    return DtypeRules.of(
        call.model,
        keep_fp32=call.arguments["keep_in_fp32_modules"] or [],
        linked=call.link,
        **{name: call.arguments[name] for name in names},
    )


class _Stream(_lazy_state_dict.LazyStateDict):
    """A LazyStateDict that accelerate iterates once. Values are not kept."""

    def items(self) -> Any:
        return self.walk()


class _Offload:
    """Replaces accelerate's functions that offload tensors.

    folder: the folder for "disk". Tensors for other folders wait in the daemon's memory instead of
    temporary files. by_file: gives the files that entries name, for link_offloaded. chosen: name ->
    the name whose value it takes.
    """

    def __init__(
        self,
        folder: Any,
        by_file: Optional[Callable[[], Dict[str, _file_entries.Entries]]],
        chosen: Mapping[str, str],
    ):
        self._folder, self._by_file, self._chosen = folder, by_file, chosen
        self._waiting: Dict[str, torch.Tensor] = {}

    def write(self, weight: torch.Tensor, name: str, folder: Any, index: Any = None) -> Any:
        if folder != self._folder:
            self._waiting[name], index[name] = weight.cpu(), {}
        elif self._by_file is None:
            from accelerate.utils import offload_weight

            offload_weight(weight, name, folder, index=index)
        else:
            files = self._by_file()
            stored = self._chosen.get(name, name)
            file = next(path for path, held in files.items() if stored in held)
            if not file.endswith(".safetensors"):  # accelerate reads no others by their index
                return _Offload(self._folder, None, {}).write(weight, name, folder, index)
            dtype = str(weight.dtype).replace("torch.", "")
            index[name] = {"safetensors_file": file, "weight_name": stored, "dtype": dtype}
        return index

    def read_back(self, model: nn.Module, index: Mapping[str, Any], _: str) -> None:
        from accelerate.utils import set_module_tensor_to_device

        for name in index:
            set_module_tensor_to_device(model, name, "cpu", value=self._waiting.pop(name))
