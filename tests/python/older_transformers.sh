#!/usr/bin/env bash
# from_pretrained against daemons with the last transformers 4 (or the one named:
# older_transformers.sh transformers==4.55.4); further arguments go to pytest. Keeps a virtual
# environment under build/ that has it and takes all else from .venv.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
wanted=transformers==4.57.6
case "${1:-}" in transformers*) wanted=$1; shift ;; esac
venv="$root/build/older-transformers"
[ -x "$venv/bin/python" ] || "$root/.venv/bin/python" -m venv --without-pip "$venv"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
has=$("$venv/bin/python" -c 'import importlib.metadata as m; print("transformers==" + m.version("transformers"))' 2>/dev/null || true)
if [ "$has" != "$wanted" ]; then
  "$root/.venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade --target "$site" "$wanted"
  # Looked at after the environment's own folder.
  "$root/.venv/bin/python" -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
    >"$site/parent.pth"
fi
"$venv/bin/python" -c 'import transformers; print("transformers", transformers.__version__)'
cd "$root"
exec "$venv/bin/python" -m pytest -q -rs --disable-warnings -p no:cacheprovider -n 2 --dist loadfile \
  tests/integration/test_transformers.py tests/integration/test_transformers_patch.py \
  tests/integration/test_bad_ranks.py tests/integration/test_prepared_models.py "$@"
