"""Loads by ckptd's StorageReader that fail: with torch's errors, or with the daemon's on every rank."""

import copy
import os
import pathlib
import shutil

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from dcp_bench import WORLD, compare, failure_of, folder_of, nested, reader, saved
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner


def missing_keys_and_wrong_shapes_are_torch_s_errors(bench):
    path = saved(bench, nested(1))
    for state in ({"not there": torch.ones(1)}, {"scalar": torch.ones(4)}, {"half": 3, "text": torch.ones(1)}):
        theirs = failure_of(lambda: dcp.load(copy.deepcopy(state), storage_reader=dcp.FileSystemReader(path)))
        mine = failure_of(lambda: dcp.load(copy.deepcopy(state), storage_reader=reader(bench, path)))
        assert {rank: (type(e), str(e)) for rank, e in mine.items()} == {
            rank: (type(e), str(e)) for rank, e in theirs.items()}


def folders_that_are_not_whole(bench):
    whole = saved(bench, nested(1))
    def broken(change):
        path = folder_of(bench)
        if bench.rank == 0:
            shutil.copytree(whole, path)
            change(pathlib.Path(path))
        dist.barrier()
        return path

    def cut(folder):
        for file in folder.glob("*.distcp"):
            os.truncate(file, file.stat().st_size // 2)

    def cut_metadata(folder):
        os.truncate(folder / ".metadata", 1000)

    paths = [("SOURCE_INVALID", broken(cut)), ("SOURCE_INVALID", broken(cut_metadata)),
             ("SOURCE_NOT_FOUND", broken(lambda folder: next(folder.glob("*.distcp")).unlink())),
             ("SOURCE_NOT_FOUND", os.path.join(bench.folder, "nothing"))]
    for reason, path in paths:
        raised = failure_of(lambda: dcp.load(nested(0), storage_reader=reader(bench, path)))
        assert set(raised) == set(range(WORLD)), raised
        assert {getattr(error, "reason", error) for error in raised.values()} == {reason}, raised


class Runs:
    """Runs a program when it is unpickled."""

    def __reduce__(self):
        return os.system, ("true",)


def a_pickle_that_runs_something_is_refused(bench):
    path = saved(bench, {"step": 3, "bad": Runs()})
    state = {"step": 0, "bad": None}
    raised = failure_of(lambda: dcp.load(state, storage_reader=reader(bench, path)))
    assert {getattr(error, "reason", error) for error in raised.values()} == {"SOURCE_UNSAFE"}, raised
    assert state == {"step": 0, "bad": None}


class Refusing(DefaultLoadPlanner):
    def resolve_tensor(self, read_item):
        if dist.get_rank() == 1:
            raise KeyError("no room here")
        return super().resolve_tensor(read_item)


def a_planner_that_fails_on_one_rank(bench):
    path = saved(bench, nested(1))
    raised = failure_of(lambda: dcp.load(nested(0), storage_reader=reader(bench, path), planner=Refusing()))
    assert "no room here" in str(raised[1]), raised
    compare(bench, path, lambda: nested(0))  # and the next load is none of its business


class Short(DefaultLoadPlanner):
    def resolve_tensor(self, read_item):
        return super().resolve_tensor(read_item).flatten()[:1]


def a_planner_that_gives_too_little(bench):
    path = saved(bench, {"w": torch.randn(3, 2)})
    raised = failure_of(lambda: dcp.load({"w": torch.zeros(3, 2)}, storage_reader=reader(bench, path), planner=Short()))
    assert {getattr(error, "reason", error) for error in raised.values()} == {"LAYOUT_MISMATCH"}, raised


def a_folder_that_changes(bench):
    path, changed = saved(bench, {"w": torch.randn(3, 2)}), {"w": torch.zeros(3, 2)}

    class Late(DefaultLoadPlanner):
        def create_local_plan(self):
            plan = super().create_local_plan()
            dist.barrier()
            if bench.rank == 0:
                for file in pathlib.Path(path).glob("*.distcp"):
                    file.write_bytes(file.read_bytes())
            dist.barrier()
            return plan

    raised = failure_of(lambda: dcp.load(changed, storage_reader=reader(bench, path), planner=Late()))
    assert {getattr(error, "reason", error) for error in raised.values()} == {"SOURCE_CHANGED"}, raised
    assert not changed["w"].any()


FAILING = [missing_keys_and_wrong_shapes_are_torch_s_errors, folders_that_are_not_whole, a_pickle_that_runs_something_is_refused, a_planner_that_fails_on_one_rank, a_planner_that_gives_too_little, a_folder_that_changes]
