#!/usr/bin/env bash
# Leave LitServe, PyTriton and MLServer in virtual environments of their own below DIR; one that cannot be
# installed is named, and the others go on.
#
#   get.sh DIR   PYTHON: one that has pip (default python3)
#
# torch from PyPI is several gigabytes; PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu brings the CPU's.
set -euo pipefail

die() { echo "get: $*" >&2; exit 1; }

[ $# -eq 1 ] || die "usage: get.sh DIR"
python=${PYTHON:-python3}
requirements=$(cd "$(dirname "$0")/requirements" && pwd)
mkdir -p "$1" || die "cannot make the folder $1"
dir=$(cd "$1" && pwd)

for peer in litserve pytriton mlserver; do
  log="$dir/$peer.log"
  wanted=$(cat "$requirements/$peer.txt" "$requirements/constraints.txt")
  if [ "$(cat "$dir/$peer/.ready" 2>/dev/null)" != "$wanted" ]; then
    if "$python" -m venv "$dir/$peer" >"$log" 2>&1 && "$dir/$peer/bin/python" -m pip install -q \
      --disable-pip-version-check --only-binary :all: -c "$requirements/constraints.txt" \
      -r "$requirements/$peer.txt" >>"$log" 2>&1
    then echo "$wanted" >"$dir/$peer/.ready"
    else echo "get: $peer could not be installed ($log)" >&2; continue
    fi
  fi
  echo "$dir/$peer: $(head -n 1 "$requirements/$peer.txt")"
done
