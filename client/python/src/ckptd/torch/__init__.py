"""Fills PyTorch models, sharded or not, with the daemon's memory instead of copies.

with torch.device("meta"):
    model = Model()
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
result = ckptd.torch.load_into(model, "/models/llama")
"""

from .. import _rpc
from ._files import load_file
from ._load import load_into
from ._result import LoadResult

# Nobody imports this module without torch, which takes a second: what the first call
# would take some milliseconds for, in the middle of a start, is done here.
_rpc.warm_up()

__all__ = ["LoadResult", "load_file", "load_into"]
