#!/usr/bin/env bash
# Try the image: run it as a careful person would and hold tests/stack/test_image.py against it.
# Usage: test.sh [IMAGE]     (default: what build.sh makes; PYTHON names the interpreter with the test tools)
set -euo pipefail
cd "$(dirname "$0")/../.."
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
image=${1:-localhost/wattserve:$version-cpu}

for engine in docker podman none; do
  [ $engine = none ] || { command -v $engine && $engine image inspect "$image"; } >/dev/null 2>&1 && break
done
[ $engine != none ] || { echo "neither docker nor podman has $image here: build it first (make image)"; exit 1; }

trial() { "$engine" run --rm --read-only --tmpfs /tmp --publish 127.0.0.1::50051 --entrypoint true "$image" 2>&1; }
if ! said=$(trial); then
  [ $engine = podman ] || { echo "$engine cannot run a container here: $said"; exit 1; }
  # Inside a container or a small VM: cgroups that crun cannot use, limits that podman may not raise.
  CONTAINERS_CONF=$(mktemp)
  trap 'rm -f "$CONTAINERS_CONF"' EXIT
  export CONTAINERS_CONF
  printf '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n[engine]\nruntime = "runc"\n' \
    >"$CONTAINERS_CONF"
  said=$(trial) || { echo "podman cannot run a container here: $said"; exit 1; }
  echo "podman runs it by runc, within low limits"
fi

WATTSERVE_IMAGE=$image WATTSERVE_IMAGE_ENGINE=$engine "${PYTHON:-python3}" -m pytest -v -s tests/stack/test_image.py
