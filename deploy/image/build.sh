#!/usr/bin/env bash
# Build the image, with whichever of docker, podman and buildah works here.
# Usage: build.sh [--target cpu|cuda] [--tag NAME] [--base IMAGE] [--no-registry] [-- ARGUMENT_OF_THE_BUILDER...]
#   --base IMAGE    what to build on in place of the Dockerfile's Debian
#   --no-registry   for where no container registry can be reached: makes the base from Debian's packages, and has
#                   this machine's pip fetch the wheels, by its own configuration, into build/image/wheels; as
#                   root on Debian it installs the tools that are missing
set -euo pipefail
cd "$(dirname "$0")/../.."

target=cpu tag="" base="" registry=yes
while [ $# -gt 0 ]; do
  case $1 in
    --target) target=$2; shift 2 ;;
    --tag) tag=$2; shift 2 ;;
    --base) base=$2; shift 2 ;;
    --no-registry) registry=no; shift ;;
    --) shift; break ;;
    *) echo "build.sh: what is $1? $(sed -n 3p "$0" | cut -c3-)"; exit 2 ;;
  esac
done
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
tag=${tag:-localhost/wattserve:$version-$target}

if [ $registry = no ] && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  packages=()
  command -v buildah >/dev/null || packages+=(buildah)
  command -v podman >/dev/null || packages+=(podman runc netavark iptables) # for test.sh
  command -v mmdebstrap >/dev/null || packages+=(mmdebstrap)
  [ ${#packages[@]} = 0 ] || (set -x; apt-get update -q; apt-get install -q -y --no-install-recommends "${packages[@]}")
fi

# A docker without its daemon is no docker.
for engine in docker podman buildah none; do
  case $engine in
    docker) docker info >/dev/null 2>&1 && [ $registry = yes ] && break ;; # it mounts no folder of wheels
    none) ;;
    *) command -v "$engine" >/dev/null && break ;;
  esac
done
arguments=(--build-arg "VERSION=$version" --build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || true)")
case $engine in
  docker) build=(docker build) ;;
  # Docker's image format, since OCI's has no HEALTHCHECK. --layers: buildah alone would start from nothing each time.
  podman) build=(podman build --format docker) ;;
  buildah) build=(buildah build --format docker --layers) ;;
  none)
    echo "No docker, podman or buildah works here. One of them:"
    echo "  apt-get install buildah podman      # Debian, Ubuntu; buildah builds, podman also runs"
    echo "  https://docs.docker.com/engine/install/"
    exit 1
    ;;
esac

if [ $registry = no ]; then
  export BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot} # such a place is often itself a container, where none can be nested
  base=${base:-localhost/wattserve-base:bookworm}
  "$engine" inspect --type image "$base" >/dev/null 2>&1 || deploy/image/base.sh "$base"
  wheels=$PWD/build/image/wheels/$target
  mkdir -p "$wheels"
  python3 - >"$wheels/requirements.txt" <<'PYTHON'
import tomllib

with open("pyproject.toml", "rb") as file:
    content = tomllib.load(file)
project = content["project"]
extras = project["optional-dependencies"]
others = (extra for name in ("postgres", "openai") for extra in extras[name][1:])
print(*project["dependencies"], *extras["server"], *others, *content["build-system"]["requires"], sep="\n")
PYTHON
  # ===: PyPI's own torch, which is for CUDA, and not a 2.x.y+cpu that this machine's pip may also know.
  [ "$target" = cpu ] || sed -n 's/^torch==/torch===/p' constraints.txt >>"$wheels/requirements.txt"
  # For the base's Python, not for this one.
  python3 -m pip download -qq --dest "$wheels" --constraint constraints.txt --python-version 3.11 \
    --only-binary :all: --requirement "$wheels/requirements.txt"
  printf '[global]\nno-index = true\nfind-links = /mnt\n' >"$wheels/pip.conf"
  arguments+=(
    --volume "$wheels:/mnt:ro" --secret "id=pip.conf,src=$wheels/pip.conf"
    --build-arg TORCH_INDEX= --build-arg TORCH_CUDA_INDEX= --pull=never
  )
fi
[ -z "$base" ] || arguments+=(--build-arg "BASE=$base")

set -x
"${build[@]}" --file Dockerfile --target "$target" --tag "$tag" "${arguments[@]}" "$@" .
