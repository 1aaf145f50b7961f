"""Layouts for plans: of a rank, where all ranks of the job load together; by rules, where some do.

A load by rank waits for every rank of the job, so a part of the ranks cannot make it. Rules give
ranks their tensors without the others, but know no boxes. A box that is a chunk of its tensor along
some dimensions is stated as the part of one rank in a mesh; of others the whole tensor is loaded.
"""

import functools
import itertools
import math
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..._layout import RankLayout, Sharding
from ..._types import Source
from ._boxes import Box, Wanted, whole

_MOST_MESHES = 64  # that rules may name


def of_rank(want: Wanted, found: Source, rank: int, world_size: int) -> RankLayout:
    """The request of a rank: its boxes exactly."""
    layout = RankLayout(rank, world_size)
    known: Dict[Sharding, int] = {}
    for name in sorted(want):
        shape, boxes = found.tensors[name].shape, want[name]
        sharding = Sharding() if boxes == (whole(shape),) else Sharding(boxes=boxes)
        layout.add(name, shape, known.setdefault(sharding, len(known)))
    layout.shardings.extend(known)
    return layout


class _Mesh(NamedTuple):
    shape: Tuple[int, ...]
    ranks: Tuple[int, ...]
    placements: Tuple[str, ...]


def rules(wants: Dict[int, Wanted], found: Source, world_size: int) -> Dict[str, object]:
    """Rules that give each of some ranks what it wants, and others nothing."""
    meshes: Dict[_Mesh, str] = {}
    matches: Dict[Tuple[str, Tuple[int, ...]], List[str]] = {}
    for name in sorted(found.tensors):
        boxes = {rank: want[name] for rank, want in sorted(wants.items()) if name in want}
        mesh = _mesh_for(found.tensors[name].shape, boxes, world_size)
        if mesh is not None and (mesh in meshes or len(meshes) < _MOST_MESHES):
            number = meshes.setdefault(mesh, f"mesh{len(meshes)}")
        else:
            number = ""
        matches.setdefault((number, tuple(boxes)), []).append(name)
    by_number = {number: mesh for mesh, number in meshes.items()}
    # The daemon tries every pattern for every name, so what most names get is not spelled out.
    usual = max(matches, key=lambda key: len(matches[key]))
    made = {key: _rule(*key, by_number) for key in matches}
    layout: Dict[str, object] = {
        "world_size": world_size,
        "rules": [{"match": matches[key], **rule} for key, rule in made.items() if key != usual],
        "default": made[usual],
    }
    if meshes:
        layout["meshes"] = {n: {"shape": m.shape, "ranks": m.ranks} for m, n in meshes.items()}
    return layout


def _rule(number: str, ranks: Tuple[int, ...], meshes: Dict[str, _Mesh]) -> Dict[str, object]:
    if not ranks:
        return {"drop": True}
    sharded = {"mesh": number, "placements": meshes[number].placements} if number else {}
    return {"only_ranks": ranks, **sharded}


def _mesh_for(
    shape: Sequence[int], boxes: Dict[int, Tuple[Box, ...]], world_size: int
) -> Optional[_Mesh]:
    """A mesh in which each of these ranks has its box; None: whole tensors, or there is none."""
    if not boxes or any(len(of_rank) > 1 for of_rank in boxes.values()):
        return None
    single = {rank: of_rank[0] for rank, of_rank in boxes.items()}
    cut = [d for d, n in enumerate(shape) if any(ext[d] != n for _, ext in single.values())]
    spans = [tuple((offsets[d], extents[d]) for offsets, extents in single.values()) for d in cut]
    counts = [_chunk_count(of_dim, shape[d], world_size) for d, of_dim in zip(cut, spans)]
    if not cut or 0 in counts:
        return None
    cells: Dict[Tuple[int, ...], List[int]] = {}
    for rank, (offsets, _) in single.items():
        at = tuple(offsets[d] // -(-shape[d] // n) for d, n in zip(cut, counts))
        cells.setdefault(at, []).append(rank)
    copies = max(map(len, cells.values()))
    if copies * math.prod(counts) > world_size:
        return None
    # Places that nobody wants are filled with other ranks, which `only_ranks` leaves out.
    others = (rank for rank in range(world_size) if rank not in single)
    everywhere = itertools.product(range(copies), itertools.product(*map(range, counts)))
    ranks = [(cells.get(at, [])[copy : copy + 1] or [next(others)])[0] for copy, at in everywhere]
    placements = ("replicate", *(f"shard({d})" for d in cut))
    return _Mesh((copies, *counts), tuple(ranks), placements)


@functools.lru_cache(maxsize=1024)  # layers are alike
def _chunk_count(spans: Tuple[Tuple[int, int], ...], size: int, most: int) -> int:
    """In how many chunks, at most `most`, torch.chunk cuts `size` so that each (begin, length) is one; 0: none."""
    for count in range(2, most + 1):
        step = -(-size // count)
        if all(at % step == 0 and length == min(step, size - at) for at, length in spans):
            return count
    return 0
