"""pytest plug-in: each test begins with the same random numbers, natively and with ckptd.

Some want that weights they have just drawn at random differ from others, and fail once in a thousand times.
"""

import random
import sys


def pytest_runtest_setup(item):
    random.seed(0)
    for name, seed in (("numpy.random", "seed"), ("torch", "manual_seed")):
        if name in sys.modules:
            getattr(sys.modules[name], seed)(0)
