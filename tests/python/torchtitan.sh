#!/usr/bin/env bash
# torchtitan's CheckpointManager with ckptd's reader; arguments go to pytest. Keeps a virtual environment
# under build/ that has torchtitan and what its checkpoints need, and takes all else from .venv.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
wanted=(torchtitan==0.3.0 torch_checkpointing==0.1.1 torchdata==0.11.0 spmd_types==0.2.3 tyro==1.0.17
  docstring-parser==0.18.0 shtab==1.13.0 typeguard==4.6.1 einops==0.8.2)
venv="$root/build/${wanted[0]}"
[ -x "$venv/bin/python" ] || "$root/.venv/bin/python" -m venv --without-pip "$venv"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
[ -d "$site/torchtitan" ] || "$root/.venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  --no-deps --target "$site" "${wanted[@]}"
"$root/.venv/bin/python" -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
  >"$site/parent.pth"
cd "$root"
exec "$venv/bin/python" -m pytest -q -rs --disable-warnings -p no:cacheprovider \
  tests/integration/test_resume.py -k torchtitan "$@"
