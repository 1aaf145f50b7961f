"""A wrapper that does not show in names: private methods of torch.nn.Module make it transparent."""

from typing import Any, Dict, Iterator, Optional, Tuple

import torch
from torch import nn


class TransparentModule(nn.Module):
    """Forwards attributes, registrations, calls, and names of tensors to the wrapped `module`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        super().__setattr__("module", module)
        del self.__dict__["training"]  # the wrapped module's is used
        self.register_load_state_dict_post_hook(_name_as_wrapped)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise  # not set yet, as during unpickling
        return getattr(self.module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if "module" in self.__dict__.get("_modules", {}) and name != "module":
            setattr(self.module, name, value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.module, name)

    def register_parameter(self, *args: Any, **kwargs: Any) -> None:
        """Registers with the wrapped module."""
        self.module.register_parameter(*args, **kwargs)

    def register_buffer(self, *args: Any, **kwargs: Any) -> None:
        """Registers with the wrapped module."""
        self.module.register_buffer(*args, **kwargs)

    def add_module(self, *args: Any, **kwargs: Any) -> None:
        """Adds to the wrapped module."""
        self.module.add_module(*args, **kwargs)

    def register_module(self, *args: Any, **kwargs: Any) -> None:
        """Adds to the wrapped module."""
        self.module.add_module(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the wrapped module."""
        return self.module(*args, **kwargs)

    def named_modules(
        self, memo: Optional[set] = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[Tuple[str, nn.Module]]:
        """Yields this module, then the wrapped one under the same name, and its parts."""
        memo = set() if memo is None else memo
        if self not in memo:
            if remove_duplicate:
                memo.add(self)
            yield prefix, self
            yield from self.module.named_modules(memo, prefix, remove_duplicate)

    def _fqn_modifiers(self) -> Dict[str, str]:
        # Tells torch's functions, and ours, to leave out the name of the wrapped module.
        return {"": "module"}

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ) -> None:
        """Adapts names where a surrounding module loads: torch adds a prefix for the wrapped module."""
        for name in [name for name in state_dict if name.startswith(prefix)]:
            state_dict[f"{prefix}module.{name[len(prefix) :]}"] = state_dict.pop(name)
        self.__dict__["loading"] = prefix, error_msgs
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def state_dict(self, *args: Any, **kwargs: Any) -> Dict[str, Any]:
        """The wrapped module's state dict. For a sharded module it has this rank's parts."""
        return self.module.state_dict(*args, **kwargs)

    def named_parameters(
        self, *args: Any, **kwargs: Any
    ) -> Iterator[Tuple[str, nn.Parameter]]:
        """The wrapped module's parameters, by its names."""
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[Tuple[str, torch.Tensor]]:
        """The wrapped module's buffers, by its names."""
        return self.module.named_buffers(*args, **kwargs)


def _name_as_wrapped(module: TransparentModule, keys: Any) -> None:
    """Removes the wrapper's prefix from keys and messages after a surrounding module has loaded."""
    prefix, messages = module.__dict__.pop("loading", ("", []))
    for texts in (*keys, messages):
        texts[:] = [text.replace(f"{prefix}module.", prefix) for text in texts]
