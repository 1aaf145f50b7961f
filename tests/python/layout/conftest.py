"""Settings of all property tests here."""

import os

from hypothesis import settings

# Failing examples are printed; no folder of them is left in the tree. The examples are the same in
# each run, so that a failure is that of the code. CKPTD_RANDOM=1: others each time.
settings.register_profile("ckptd", database=None, deadline=None, derandomize="CKPTD_RANDOM" not in os.environ)
settings.load_profile("ckptd")
