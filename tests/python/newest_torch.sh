#!/usr/bin/env bash
# The package with the newest PyTorch (or the one named: newest_torch.sh torch==2.9.1).
# Downloads several GB into a virtual environment under build/ that is kept for
# the next time.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
wanted=${1:-torch}
venv="$root/build/venv-newest-torch"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade "$wanted" numpy \
  'grpcio>=1.51' 'protobuf>=4.25' 'setuptools>=64' safetensors accelerate pytest hypothesis
[ -f "$root/client/python/src/ckptd/_proto/descriptors.pb" ] ||
  "$root/.venv/bin/python" "$root/client/python/generate.py"
"$venv/bin/python" -c 'import torch; print("torch", torch.__version__)'
PYTHONPATH="$root/client/python/src" exec "$venv/bin/python" -m pytest -q -p no:cacheprovider \
  "$root"/tests/python/test_load_into_plain.py "$root"/tests/python/test_load_into_sharded.py \
  "$root"/tests/python/test_buffers.py "$root"/tests/python/test_load_file.py
