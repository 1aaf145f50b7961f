#!/bin/sh
# run.sh BUILD WORK: installs the SDK of a build folder below WORK, builds this project
# against it (without gRPC, and with) and runs what came out, which stays in WORK/user.
set -eu
build=${1:?usage: run.sh BUILD WORK}
work=${2:?usage: run.sh BUILD WORK}
here=$(cd "$(dirname "$0")" && pwd)
cmake --build "$build" --target ckptd_client
cmake --install "$build" --component sdk --prefix "$work/prefix" >"$work/install.log"
for components in "" client; do
  rm -rf "$work/user"
  cmake -G Ninja -S "$here" -B "$work/user" -DCMAKE_PREFIX_PATH="$work/prefix" \
    -DCKPTD_USER_COMPONENTS="$components" >"$work/configure.log"
  cmake --build "$work/user" >"$work/build.log"
  "$work/user/attach_user"
  if [ -n "$components" ]; then "$work/user/client_user"; fi
  if [ -z "$components" ] && ldd "$work/user/attach_user" | grep -q grpc; then
    echo "attach_user links gRPC" >&2
    exit 1
  fi
done
echo "find_package(ckptd) works"
