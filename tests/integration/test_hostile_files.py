"""Files that mean harm, given to a daemon that serves others."""

import threading

import ckptd
import ckptd.torch
import hostile_files
import pytest
import torch
from group import Group, save
from process_cost import MEBIBYTE, cost_of

@pytest.fixture(scope="module")
def group(tmp_path_factory):
    with Group(tmp_path_factory.mktemp("g"), 1) as running:
        yield running


class Served:
    """A client that loads new files until it is told to end."""

    def __init__(self, address, folder):
        self._address, self._path = address, folder / "good.safetensors"
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.times, self.fault = 0, None

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._end.set()
        self._thread.join()

    def _run(self):
        try:
            while not self._end.is_set():
                tensors = {f"layer.{number}.weight": torch.full((64, 32), float(self.times + number))
                           for number in range(8)}
                loaded = ckptd.torch.load_file(save(self._path, tensors), address=self._address)
                assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
                self.times += 1
        except Exception as error:
            self.fault = error


def test_a_daemon_refuses_each_and_goes_on_serving(group, tmp_path):
    (tmp_path / "hostile").mkdir()
    files = hostile_files.write_all(tmp_path / "hostile")
    pid = group.pid(0)
    with ckptd.connect(group.address(0)) as client, Served(group.address(0), tmp_path / "good") as served:
        for name, (source, reason) in files.items():
            with cost_of(pid) as cost, pytest.raises(ckptd.Error) as refused:
                client.load(str(source))
            assert refused.value.reason == reason, f"{name}: {refused.value}"
            assert cost.growth < 50 * MEBIBYTE, name
    assert served.fault is None and served.times > 0
