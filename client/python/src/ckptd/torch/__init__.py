"""Fills PyTorch models, sharded or not, with the daemon's memory instead of copies.

with torch.device("meta"):
    model = Model()
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
result = ckptd.torch.load_into(model, "/models/llama")
"""

from ._files import load_file
from ._load import load_into
from ._result import LoadResult

__all__ = ["LoadResult", "load_file", "load_into"]
