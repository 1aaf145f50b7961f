"""What a checkpoint holds beside parameters and optimizers: numbers, texts, small tensors."""

from dataclasses import dataclass, field
from typing import Any, Dict

from ... import _client, _source
from ..._errors import Error
from ..._rpc import Deadline
from ..load import _file_tensor
from ..load._lazy_state_dict import LazyStateDict
from . import _value_tree


@dataclass
class Rest:
    """values: by name, nested as the file has them. opaque: path -> class of what was not built."""

    values: Dict[str, Any] = field(default_factory=dict)
    opaque: Dict[str, str] = field(default_factory=dict)


def read(own: _client.Client, source, deadline: Deadline) -> Rest:
    """The part "extra" of a source, or nothing if it has none. Raises ckptd.Error."""
    where = _source.of_part(source, "extra")
    try:
        found = own.inspect(where, timeout=deadline.for_call(), values=True)
    except Error as error:
        if "part" in error.facts:
            return Rest()
        raise
    entries = {name: entry for name, entry in _file_tensor.entries_in(found).items() if _is_tensor(found, name)}
    tensors = LazyStateDict(entries, client=own, timeout=deadline.for_call())
    tree, types = _value_tree.tree(found), _value_tree.Types(found)
    for name, tensor in tensors.walk():
        _value_tree.put_at(tree, types.path(name), tensor.clone())
    return Rest(_value_tree.with_lists(tree), dict(found.opaque))


def _is_tensor(found, name: str) -> bool:
    tensor = found.find(name)
    return tensor is not None and tensor.kind != "object"
