"""StorageReader: what dcp.load reads by, with the daemons in place of files."""

import contextlib
import dataclasses
import hashlib
import io
import math
import os
import uuid
from typing import Any, Iterator, List, Optional, Tuple

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from ... import _participant
from ..._client import Client
from ..._errors import Error, InvalidArgument
from ..._rpc import Deadline
from ..._shard import Shard
from ..._source import Path, check_path, of_part
from ..._types import Source
from .._daemon import connected, rank_and_size
from ..load import _file_tensor, _memory
from . import _boxes, _layouts, _metadata

_OURS = "ckptd"  # what marks the storage_data of a plan as this module's


class StorageReader(dcp.StorageReader):
    """Reads a checkpoint for torch.distributed.checkpoint through the daemons.

    dcp.load(state_dict, storage_reader=ckptd.torch.StorageReader(path))

    In place of FileSystemReader, with the same result: any planner, any number of ranks and any
    mesh, whatever those were that saved. Where all ranks of the job call dcp.load, their daemons
    read each needed byte once, and each rank gets the boxes of its plan and nothing else. With
    no_dist=True, and in a process group of some of the ranks, these ranks load without the others.

    source: a folder of DCP, or any other checkpoint that the daemons read, such as safetensors
    or a file of torch: then its tensors by name. Keys are those of dcp.save, or of the file; of
    other folders with several parts those of the model. "#model" behind the path, or part="model",
    takes one part, by names without its prefix.
    timeout: seconds for reading the names, and again for everything in read_data, including waits
    for other ranks and for memory in use.
    address, client: the daemon, as for ckptd.connect.

    Tensors are copied once, from the daemon's memory into those that the planner gives, with a cast
    where the types differ. Entries that are no tensors reach the planner as the bytes that are in
    the file, and torch's planners unpickle them. A file in which the daemon found a pickle that
    would run something is refused before (PermissionDenied SOURCE_UNSAFE).

    Raises ckptd.Error. dcp.load wraps what a rank raises in a CheckpointException of every rank,
    whose `failures` has it by rank. Metadata that cannot be read raises where it is first used.
    A reader serves one load at a time, on any thread; threads that load at once need a reader each.
    """

    def __init__(
        self,
        source: Path,
        *,
        timeout: float = 600.0,
        address: Optional[str] = None,
        client: Optional[Client] = None,
        part: Optional[str] = None,
    ) -> None:
        super().__init__()
        check_path("reading a checkpoint for torch.distributed.checkpoint", source)
        self._source, self._part = source, part
        self._timeout, self._address, self._client = timeout, address, client
        self._contents: Optional[Tuple[Source, str]] = None  # and the text to load it by

    @property
    def checkpoint_id(self) -> Path:
        """The source, as it was given."""
        return self._source

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Path) -> bool:
        """Whether it is a path. The daemon looks for the file later."""
        return isinstance(checkpoint_id, (str, bytes, os.PathLike))

    def reset(self, checkpoint_id: Optional[Path] = None) -> None:
        """Begins another load, from `checkpoint_id` if one is given."""
        if checkpoint_id:
            self._source = checkpoint_id
        self._contents = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What the checkpoint holds, each tensor as one chunk. An error is raised at its first use."""
        try:
            return _metadata.metadata_of(self._read_contents()[0], uuid.uuid4().hex)
        except Error as error:
            return _metadata.RefusedMetadata(error)

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Raises the error for metadata that could not be read."""
        _ = metadata.state_dict_metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """The plan, with this rank's number in the job, and a digest of what it reads."""
        want = _boxes.wanted(plan.items, self._read_contents()[0])
        return _with_words(plan, rank_and_size()[0], _digest(sorted(want.items())))

    def prepare_global_plan(self, plans: List[LoadPlan]) -> List[LoadPlan]:
        """The plans, with the rules by which their ranks load together.

        None: all ranks of the job do, and a digest of what they read makes it the same load. A rank
        that reads the same as before would else take its old shard, and leave the others waiting.
        """
        world_size = rank_and_size()[1]
        if not all(map(_said, plans)):
            return plans  # a planner took the numbers away: each rank loads for itself
        ranks = [_said(plan)[1] for plan in plans]
        found = self._read_contents()[0]
        if not any(_boxes.wanted(plan.items, found) for plan in plans):
            return [_with_words(plan, {}, {}) for plan in plans]
        if set(ranks) == set(range(world_size)):
            everything = _digest(sorted(_said(plan)[1:] for plan in plans))
            return [_with_words(plan, None, everything) for plan in plans]
        wants = {rank: _boxes.wanted(plan.items, found) for rank, plan in zip(ranks, plans)}
        together = _layouts.rules(wants, found, world_size)
        return [_with_words(plan, together, wants[rank]) for rank, plan in zip(ranks, plans)]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        """Loads what the plan's items read, and gives it to the planner. Complete when it returns."""
        found, _ = self._read_contents()
        want = _boxes.wanted(plan.items, found)
        with self._shard(plan, want) as shard:
            _fill(plan.items, planner, shard, want, found)
        done: "Future[None]" = Future()
        done.set_result(None)
        return done

    def _read_contents(self) -> Tuple[Source, str]:
        if self._contents is None:
            deadline, source = Deadline(self._timeout), of_part(self._source, self._part)
            with connected(self._address, self._client, deadline, rank_and_size()[0]) as own:
                self._contents = _metadata.inspect(own, source, deadline)
        return self._contents

    @contextlib.contextmanager
    def _shard(self, plan: LoadPlan, want: _boxes.Wanted) -> Iterator[Optional[Shard]]:
        """This rank's shard with the boxes of `want`; None if it reads nothing."""
        (found, text), (rank, world_size) = self._read_contents(), rank_and_size()
        layout = self._layout(plan, want)
        if layout == {}:
            yield None
            return
        deadline = Deadline(self._timeout)
        together = world_size > 1 and not isinstance(layout, dict)
        with contextlib.ExitStack() as stack:
            own = stack.enter_context(connected(self._address, self._client, deadline, rank))
            participant = _participant.NoParticipant()
            if together:
                participant = stack.enter_context(_participant.participate(own, text, deadline, False))
            left = deadline.for_call()
            options: Any = {"mode": "shared", "digest": False, "_participant": participant}
            if together:
                # A pattern that matches no tensor, as no key begins so. It is part of the load's identity.
                options["keep_fp32"] = [f"#{_said(plan)[2]}"]
            loaded = own.load(text, layout=layout, timeout=left, wait_memory=left, **options)
            _file_tensor.check_unchanged(loaded, text, found.identity)
            participant.raise_failure()
            if want:
                shard = own.acquire(loaded, "shared", timeout=deadline.for_call())
                yield stack.enter_context(shard)
            else:
                yield None

    def _layout(self, plan: LoadPlan, want: _boxes.Wanted) -> Any:
        """A RankLayout if all ranks load together, else rules; {} if there is nothing to load."""
        found, (rank, world_size) = self._read_contents()[0], rank_and_size()
        said = _said(plan)
        if world_size > 1 and len(said) == 3 and said[1] is None:
            return _layouts.of_rank(want, found, rank, world_size)
        if not want:
            return {}
        if world_size == 1:
            return _layouts.of_rank(want, found, rank, world_size)
        # finish_plan may have changed the plan since the others heard of it.
        agreed = len(said) == 3 and said[2] == want
        return said[1] if agreed else _layouts.rules({rank: want}, found, world_size)


def _with_words(plan: LoadPlan, *words: Any) -> LoadPlan:
    """The plan with words for _said on another rank."""
    return dataclasses.replace(plan, storage_data=(_OURS, *words))


def _digest(what: Any) -> str:
    return hashlib.blake2b(repr(what).encode(), digest_size=16).hexdigest()


def _said(plan: LoadPlan) -> tuple:
    """(_OURS, words) of _with_words; () if a planner has dropped them."""
    said = plan.storage_data
    return said if isinstance(said, tuple) and said[:1] == (_OURS,) else ()


def _fill(
    items: List[ReadItem], planner: LoadPlanner, shard: Optional[Shard], want: _boxes.Wanted, found: Source
) -> None:
    """Gives the planner each item from the shard's memory."""
    rows = {}
    for name, boxes in want.items():
        index = shard.table.index[name]
        memory = _memory.whole(shard, index)
        rows[name] = memory, _boxes.placed(name, boxes, tuple(memory.shape), found)
    for item in items:
        box = _boxes.box_of(item, found)
        row = rows.get(_metadata.stored_name(found, item.storage_index.fqn))
        value = _boxes.part(*row, box) if row and math.prod(box[1]) else None
        if item.type == LoadItemType.BYTE_IO:
            planner.load_bytes(item, io.BytesIO(b"" if value is None else bytes(value.cpu().numpy())))
            continue
        target = planner.resolve_tensor(item).detach()
        if tuple(target.shape) != box[1]:
            raise _wrong_size(item, target)
        if value is not None:
            target.copy_(value)
        planner.commit_tensor(item, target)


def _wrong_size(item: ReadItem, target: torch.Tensor) -> InvalidArgument:
    name = item.dest_index.fqn
    return InvalidArgument(
        f"reading {name}: the plan asks for {list(item.lengths)} of it, and the planner gives a tensor of "
        f"{list(target.shape)} to put it into; let resolve_tensor return the part that the item names",
        "LAYOUT_MISMATCH",
        {"tensor": name},
    )


StorageReader.__module__ = "ckptd.torch"  # as users name it
