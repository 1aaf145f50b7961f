"""What a rank gets of a tensor by rule, and its bytes."""

import torch


def as_bytes(tensor):
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def rows(tensor, rank, ranks):
    """torch.chunk's part, empty past the end, as fully_shard keeps it."""
    if tensor.dim() == 0:
        return tensor
    parts = list(torch.chunk(tensor, ranks))
    return parts[rank] if rank < len(parts) else tensor[:0]
