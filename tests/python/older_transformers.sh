#!/usr/bin/env bash
# from_pretrained against daemons with the last transformers 4 (or the one named:
# older_transformers.sh transformers==4.55.4). Keeps a virtual environment under build/.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
wanted=${1:-transformers==4.57.6}
venv="$root/build/venv-older-transformers"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade "$wanted" \
  "${CKPTD_TORCH:-torch==2.13.0}" numpy 'grpcio>=1.51' 'protobuf>=4.25' safetensors==0.8.0 \
  accelerate pytest hypothesis
"$root/.venv/bin/python" "$root/client/python/generate.py" >/dev/null
"$venv/bin/python" -c 'import transformers; print("transformers", transformers.__version__)'
exec "$venv/bin/python" -m pytest -q -rs -p no:cacheprovider \
  "$root/tests/integration/test_transformers.py" "$root/tests/integration/test_transformers_patch.py"
