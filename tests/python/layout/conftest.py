"""Settings of all property tests here."""

from hypothesis import settings

# Failing examples are printed; no folder of them is left in the tree.
settings.register_profile("ckptd", database=None, deadline=None)
settings.load_profile("ckptd")
