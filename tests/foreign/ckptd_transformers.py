"""pytest plug-in: transformers under ckptd's patch, before any test takes a function of it."""

import ckptd

ckptd.patch()
