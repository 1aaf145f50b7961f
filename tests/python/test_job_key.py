"""By what a process's job is told from others that use the same daemons."""

import pytest
from ckptd import _participant
from ckptd._rpc import Deadline


@pytest.fixture
def key(monkeypatch):
    def of(**variables):
        for name in ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "MASTER_ADDR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return _participant._request("number", "/m", Deadline(1), False)[1].job_key

    return of


def test_jobs_differ_by_run_and_port_and_ranks_do_not_by_how_they_spell_a_host(key):
    job = key(TORCHELASTIC_RUN_ID="none", MASTER_PORT="29500", MASTER_ADDR="node0")
    assert 0 < len(job) <= 64
    assert job == key(TORCHELASTIC_RUN_ID="none", MASTER_PORT="29500", MASTER_ADDR="10.0.0.1")
    assert job != key(TORCHELASTIC_RUN_ID="none", MASTER_PORT="29501")
    assert job != key(TORCHELASTIC_RUN_ID="another", MASTER_PORT="29500")


def test_a_job_that_says_nothing_of_itself_is_not_known(key):
    assert key(MASTER_ADDR="node0") == ""


def test_a_name_that_is_no_text_tells_a_job_as_well(key):
    assert key(TORCHELASTIC_RUN_ID="\udcff")
