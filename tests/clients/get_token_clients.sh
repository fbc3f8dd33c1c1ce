#!/usr/bin/env bash
# Leave AIPerf and guidellm, load generators for OpenAI's API, in virtual environments of their own below DIR.
#
#   get_token_clients.sh DIR   PYTHON: one that has pip (default python3); then WATTSERVE_AIPERF=DIR/aiperf/bin/aiperf
#                              and WATTSERVE_GUIDELLM=DIR/guidellm/bin/guidellm
#
# guidellm brings torch, which from PyPI is several gigabytes; PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
# brings the CPU's.
set -euo pipefail

die() { echo "get_token_clients: $*" >&2; exit 1; }

[ $# -eq 1 ] || die "usage: get_token_clients.sh DIR"
python=${PYTHON:-python3}
mkdir -p "$1" || die "cannot make the folder $1"
dir=$(cd "$1" && pwd)
echo "torch==2.13.0" >"$dir/token_clients.txt"

for client in aiperf==0.13.0 guidellm==0.8.1; do
  name=${client%%==*}
  log=$dir/$name.log
  if [ "$(cat "$dir/$name/.ready" 2>/dev/null)" != "$client" ]; then
    "$python" -m venv "$dir/$name" >"$log" 2>&1 \
      || die "$python makes no virtual environment ($log); name another with PYTHON=..."
    "$dir/$name/bin/python" -m pip install -q --disable-pip-version-check --prefer-binary \
      -c "$dir/token_clients.txt" "$client" >>"$log" 2>&1 || die "pip could not install $client ($log)"
    echo "$client" >"$dir/$name/.ready"
  fi
  echo "$dir/$name: $client"
done
