"""Device and dtype of a tensor by the arguments of load_checkpoint_in_model.

accelerate's own code places tensors, and casts those that are not cast yet. These rules repeat
accelerate's, so that the daemon loads tensors in the right place and dtype and nothing is left to
copy. If accelerate changed a rule, that would cost a copy or an error, but no wrong value.
"""

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Union

import torch
from torch import nn

Device = Union[int, str, torch.device]


@dataclass(frozen=True)
class DtypeRules:
    """The rules of one call. With device_map None all tensors are wanted as the files have them.

    model: name -> dtype for all names of the model's state dict. linked: entries on "disk" stay
    in their files.
    """

    model: Dict[str, torch.dtype]
    buffers: frozenset
    device_map: Optional[Mapping[str, Device]]
    dtype: Optional[torch.dtype]
    keep_fp32: List[str]
    offload_state_dict: bool
    offload_buffers: bool
    strict: bool
    linked: bool

    @classmethod
    def of(cls, model: nn.Module, dtype: Union[None, str, torch.dtype], **rest: Any) -> "DtypeRules":
        if isinstance(dtype, str):
            dtype = getattr(torch, dtype.replace("torch.", ""))
        state = model.state_dict()
        dtypes = {name: t.dtype for name, t in state.items() if isinstance(t, torch.Tensor)}
        buffers = frozenset(name for name, _ in model.named_buffers())
        return cls(dtypes, buffers, dtype=dtype, **rest)

    def place(self, name: str) -> Optional[Device]:
        """The tensor's device, an entry of the map, or None if its values will not be used."""
        assert self.device_map is not None
        module = name
        while module and module not in self.device_map:
            module = module.rpartition(".")[0]
        device = self.device_map.get(module)
        known = name in self.model or self.strict or "SCB" in name  # statistics of int8 weights
        if device is None or not known:
            return None
        if device == "disk" and (self.linked or self._stays_out(name)):
            return None
        return device

    def _stays_out(self, name: str) -> bool:
        return name in self.buffers and not self.offload_buffers

    def dtype_of(self, name: str, in_file: torch.dtype) -> torch.dtype:
        """The dtype to which a floating tensor will be cast when it is placed."""
        if self.device_map is None or name not in self.model:
            return in_file
        if self.dtype is None:
            waits = self.offload_state_dict and self.place(name) == "cpu"
            return in_file if waits else self.model[name]
        if self.dtype == torch.float16 and any(_holds(key, name) for key in self.keep_fp32):
            return torch.float32
        return self.dtype


def _holds(key: str, name: str) -> bool:
    return key == name or key + "." in name
