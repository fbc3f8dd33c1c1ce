#!/usr/bin/env bash
# A base image from Debian's packages, for where no container registry can be reached: what debian:bookworm-slim
# holds, or nearly. It asks for mmdebstrap and for buildah or podman; the packages come from the machine's mirror.
# Usage: base.sh [NAME]     (default: localhost/wattserve-base:bookworm)
set -euo pipefail
name=${1:-localhost/wattserve-base:bookworm}
suite=bookworm

command -v mmdebstrap >/dev/null || { echo "base.sh needs mmdebstrap (on Debian: apt-get install mmdebstrap)"; exit 1; }
for engine in buildah podman none; do command -v "$engine" >/dev/null && break; done
[ "$engine" != none ] || { echo "base.sh needs buildah or podman (on Debian: apt-get install buildah)"; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mmdebstrap --quiet --variant=minbase --dpkgopt='path-exclude=/usr/share/doc/*' \
  --dpkgopt='path-include=/usr/share/doc/*/copyright' --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' "$suite" "$work/root.tar"

if [ "$engine" = podman ]; then
  podman import --quiet --change 'CMD ["/bin/bash"]' "$work/root.tar" "$name" >/dev/null
else
  container=$(buildah from scratch)
  trap 'buildah rm "$container" >/dev/null; rm -rf "$work"' EXIT
  buildah add --quiet "$container" "$work/root.tar" / >/dev/null
  buildah config --cmd '["/bin/bash"]' "$container"
  buildah commit --quiet "$container" "$name" >/dev/null
fi
echo "$name"
