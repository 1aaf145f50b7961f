"""pytest plug-in: accelerate under ckptd's patch, before any test takes a function of it."""

import ckptd.accelerate

ckptd.accelerate.patch()
