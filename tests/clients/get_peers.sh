#!/usr/bin/env bash
# Leave the Open Inference Protocol stubs of mlserver and kserve as DIR/mlserver and DIR/kserve.
#
# Only the two wheels, without the web frameworks and cloud clients that the rest of them imports: clients/peers.py
# imports the generated stubs alone, which need no more than grpcio and protobuf.
#
#   get_peers.sh DIR      PYTHON: one that has pip (default python3); then WATTSERVE_PEERS=DIR pytest tests/clients
set -euo pipefail

die() { echo "get_peers: $*" >&2; exit 1; }

[ $# -eq 1 ] || die "usage: get_peers.sh DIR"
python=${PYTHON:-python3}
"$python" -m pip --version >/dev/null 2>&1 || die "$python has no pip; name another with PYTHON=..."
mkdir -p "$1" || die "cannot make the folder $1"
dir=$(cd "$1" && pwd)

for peer in mlserver==1.7.1 kserve==0.21.0; do
  name=${peer%%==*}
  # A stub runs on any Python that grpcio runs on, whatever the package around it declares.
  "$python" -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: --ignore-requires-python \
    --no-compile --upgrade --target "$dir/$name" "$peer" >"$dir/$name.log" 2>&1 \
    || die "pip could not install $peer ($dir/$name.log)"
  echo "$dir/$name: $peer"
done
