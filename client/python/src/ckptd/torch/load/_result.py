"""The result of a load, and torch's error for missing and unexpected names."""

from dataclasses import dataclass, field
from typing import Dict, List, Optional

from torch import nn


@dataclass
class LoadResult:
    """Outcome of load_into.

    missing: names of the model that the checkpoint lacks (left as they were).
    unexpected: names of the checkpoint that the model lacks.
    copied: name -> why its memory is a copy and not the daemon's; empty is the rule.
    replaced: name -> why its Parameter object had to be replaced (an optimizer
    built before does not know the new one); empty is the rule.
    made: non-persistent buffers that were on meta and have been computed anew.
    nbytes: bytes of this rank's tensors. seconds: per stage, and "total".
    mode: how the memory is attached. resident: the daemon had it already.
    device: UUID of the GPU in whose memory it lies, None for host memory.
    copied_bytes: what was copied on that GPU for mode "private", else 0.
    handle: how the memory was handed over: "memfd", "vmm_fd", "cuda_ipc".
    """

    checkpoint: str
    mode: str
    nbytes: int = 0
    tensor_count: int = 0
    resident: bool = False
    missing: List[str] = field(default_factory=list)
    unexpected: List[str] = field(default_factory=list)
    copied: Dict[str, str] = field(default_factory=dict)
    replaced: Dict[str, str] = field(default_factory=dict)
    made: List[str] = field(default_factory=list)
    seconds: Dict[str, float] = field(default_factory=dict)
    device: Optional[str] = None
    copied_bytes: int = 0
    handle: str = ""

    @property
    def missing_keys(self) -> List[str]:
        """As Module.load_state_dict's result names it."""
        return self.missing

    @property
    def unexpected_keys(self) -> List[str]:
        """As Module.load_state_dict's result names it."""
        return self.unexpected

    def __str__(self) -> str:
        parts = [
            f"{self.tensor_count} tensors, {_size(self.nbytes)} on this rank",
            f"{self.seconds.get('total', 0.0):.3g} s",
            f"{self.mode}, {'resident' if self.resident else 'loaded'} as {self.checkpoint}",
            f"{_shown(self.missing)} missing, {_shown(self.unexpected)} unexpected, "
            f"{_shown(list(self.copied))} copied",
        ]
        if self.device:
            copied = f", {_size(self.copied_bytes)} copied there" if self.copied_bytes else ""
            parts.insert(1, f"in the memory of {self.device}{copied}")
        return "; ".join(parts)


def _size(count: int) -> str:
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"


def _shown(names: List[str]) -> str:
    if not names:
        return "0"
    return f"{len(names)} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"


def raise_as_torch(
    model: nn.Module, missing: List[str], unexpected: List[str], sizes: List[str]
) -> None:
    """Raises the RuntimeError of Module.load_state_dict for these names, if there are any."""
    lines = []
    for what, names in (("Missing", missing), ("Unexpected", unexpected)):
        if names:
            quoted = ", ".join(f'"{name}"' for name in names)
            lines.append(f"{what} key(s) in state_dict: {quoted}. ")
    lines += sizes
    if lines:
        kind = type(model).__name__
        raise RuntimeError(f"Error(s) in loading state_dict for {kind}:\n\t" + "\n\t".join(lines))
