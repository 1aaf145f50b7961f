"""Lets a PyTorch without CUDA use the memory of a fake GPU, which lies in this process.

`install()` replaces the one function of ckptd.torch that makes tensors over device memory:
they are then CPU tensors over the same addresses. All else runs as it does on a GPU.
"""

import ctypes


def over_device(memory, dtype, count, offset):
    import torch

    if count == 0:
        return torch.empty(0, dtype=dtype)
    span = (ctypes.c_char * memory.nbytes).from_address(memory.address)
    span.owner = memory
    return torch.frombuffer(span, dtype=dtype, count=count, offset=offset)


def install():
    from ckptd.torch.load import _memory

    _memory.over_device = over_device
