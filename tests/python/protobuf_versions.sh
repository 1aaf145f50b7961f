#!/bin/sh
# Runs the client's tests with the oldest and the newest protobuf runtime it
# supports, each in an environment of its own: protobuf_versions.sh [FOLDER]
# PYTHON_OLDEST and PYTHON_NEWEST name the interpreters (python3 by default).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-$(mktemp -d)}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

try() {
  name=$1 python=$2
  shift 2
  if [ ! -x "$folder/$name/bin/python" ]; then
    "$python" -m venv "$folder/$name"
    "$folder/$name/bin/pip" install --quiet --disable-pip-version-check pytest numpy safetensors "$@"
  fi
  echo "== $name: $("$folder/$name/bin/python" -V), protobuf $("$folder/$name/bin/python" -c \
    'import google.protobuf; print(google.protobuf.__version__)')"
  "$folder/$name/bin/python" -m pytest -q -p no:cacheprovider \
    "$here/test_import.py" "$here/test_address.py" "$here/test_client.py" "$here/test_shard.py"
}

try oldest "${PYTHON_OLDEST:-python3}" "protobuf==4.25.*" "grpcio<1.63"
try newest "${PYTHON_NEWEST:-python3}" protobuf grpcio
