#!/usr/bin/env bash
# Tests of ckptd.megatron beside megatron-core 0.16.1's own functions (or those of the one named:
# megatron_core.sh megatron-core==0.12.3); further arguments go to pytest. Keeps a virtual
# environment under build/ that has it, without what it asks for, and takes all else from .venv.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
wanted=megatron-core==0.16.1
case "${1:-}" in megatron-core*) wanted=$1; shift ;; esac
venv="$root/build/$wanted"
[ -x "$venv/bin/python" ] || "$root/.venv/bin/python" -m venv --without-pip "$venv"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
[ -d "$site/megatron" ] || "$root/.venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  --no-deps --ignore-requires-python --target "$site" "$wanted"
"$root/.venv/bin/python" -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
  >"$site/parent.pth"
cd "$root"
exec "$venv/bin/python" -m pytest -q -rs --disable-warnings -p no:cacheprovider -n 2 --dist loadfile \
  tests/python/test_megatron_optimizer.py tests/integration/test_megatron.py "$@"
