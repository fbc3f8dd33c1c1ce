#!/usr/bin/env bash
# Leave MLServer, a server of the Open Inference Protocol, in a virtual environment of its own at DIR.
#
#   get_mlserver.sh DIR   PYTHON: one that has pip (default python3); then WATTSERVE_MLSERVER=DIR/bin/mlserver
set -euo pipefail

die() { echo "get_mlserver: $*" >&2; exit 1; }

[ $# -eq 1 ] || die "usage: get_mlserver.sh DIR"
python=${PYTHON:-python3}
mkdir -p "$1" || die "cannot make the folder $1"
dir=$(cd "$1" && pwd)

"$python" -m venv "$dir" >"$dir/mlserver.log" 2>&1 \
  || die "$python makes no virtual environment ($dir/mlserver.log); name another with PYTHON=..."
"$dir/bin/python" -m pip install -q --disable-pip-version-check --only-binary :all: mlserver==1.7.1 \
  >>"$dir/mlserver.log" 2>&1 || die "pip could not install mlserver ($dir/mlserver.log)"
echo "$dir: mlserver==1.7.1"
