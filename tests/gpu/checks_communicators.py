"""The contract tests of communicators, which CI runs on the fake NCCL, by this machine's."""

import place
from checks_contract import run
from gpu_record import Checks, NotShown

checks = Checks()
# Its other instances are of the fake driver's ways.
SUITE = "Nccl/CommContract/0."
OF_THREE = ("SlicesGoToTheirRanksAndNowhereElse", "ABroadcastGivesEveryRankTheRootsBytes")


def contract(bench, tests):
    if bench.nccl["why not"]:
        raise NotShown(bench.nccl["why not"])
    if not place.program("contract_comm_nccl").exists():
        raise NotShown("it was built without nccl.h")
    return run(
        bench, "contract_comm_nccl", tests, seconds=40, CKPTD_TEST_NCCL=bench.nccl["path"]
    )


@checks("the contract of communicators holds by NCCL, two ranks sharing the GPU")
def two_ranks(bench):
    return contract(bench, f"{SUITE}*-{':'.join(SUITE + name for name in OF_THREE)}")


# By itself: NCCL promises nothing of so many on one GPU, and may hang.
@checks("the contract of communicators holds by NCCL, three ranks sharing the GPU")
def three_ranks(bench):
    return contract(bench, ":".join(SUITE + name for name in OF_THREE))
