#!/usr/bin/env bash
# Leave Triton's load generator, perf_analyzer, as an executable DIR/perf_analyzer.
#
# Its wheel is built for glibc 2.38, so pip hides it on Debian 12 and the binary does not start there. On such a
# machine a newer release's C and C++ libraries are unpacked below DIR (44 MB in all), and only perf_analyzer runs
# on them: the system, its apt lists included, stays as it is. The package indexes are those that pip and apt are
# configured for.
#
#   get_perf_analyzer.sh DIR      PYTHON: one that has pip (default python3)
#                                 PERF_ANALYZER_VERSION, PERF_ANALYZER_SUITE: in place of 2.60.0, trixie/noble
set -euo pipefail

die() { echo "get_perf_analyzer: $*" >&2; exit 1; }

[ $# -eq 1 ] || die "usage: get_perf_analyzer.sh DIR"
[ "$(uname -s)" = Linux ] || die "perf_analyzer is published for Linux only"
python=${PYTHON:-python3}
version=${PERF_ANALYZER_VERSION:-2.60.0}
arch=$(uname -m)
mkdir -p "$1" || die "cannot make the folder $1"
dir=$(cd "$1" && pwd)
log=$dir/get_perf_analyzer.log
: >"$log"
binary_name=perf_analyzer-$version
binary=$dir/$binary_name
runtime=$dir/runtime

if grep -qs "$binary_name" "$dir/perf_analyzer" && "$dir/perf_analyzer" --version >>"$log" 2>&1; then
  echo "$dir/perf_analyzer: already there"
  exit 0
fi

wrap() { # the command line, relative to the wrapper's own folder, so that DIR can be moved
  printf '#!/bin/sh\nhere=$(dirname "$(readlink -f "$0")")\nexec %s "$@"\n' "$1" >"$dir/perf_analyzer.new"
  chmod +x "$dir/perf_analyzer.new"
  if ! "$dir/perf_analyzer.new" --version >>"$log" 2>&1; then
    rm "$dir/perf_analyzer.new"
    return 1
  fi
  mv "$dir/perf_analyzer.new" "$dir/perf_analyzer"
  echo "$dir/perf_analyzer: version $version, on $2"
}

if [ ! -x "$binary" ]; then
  "$python" -m pip --version >>"$log" 2>&1 || die "$python has no pip; name another with PYTHON=..."
  rm -rf "$dir/wheel"
  "$python" -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: --dest "$dir/wheel" \
    --platform "manylinux_2_38_$arch" "perf-analyzer==$version" >>"$log" 2>&1 \
    || die "pip found no perf-analyzer $version for $arch ($log)"
  "$python" -m zipfile -e "$dir"/wheel/*.whl "$dir/wheel" || die "the wheel does not unpack"
  [ -f "$dir/wheel/perf_analyzer/bin/perf_analyzer" ] || die "the wheel has no perf_analyzer/bin/perf_analyzer"
  chmod +x "$dir/wheel/perf_analyzer/bin/perf_analyzer"
  mv "$dir/wheel/perf_analyzer/bin/perf_analyzer" "$binary"
  rm -rf "$dir/wheel"
fi

if wrap "\"\$here/$binary_name\"" "this system's libraries"; then exit 0; fi

# A newer release of the same distribution, from the mirror that apt has for this one.
for tool in apt-get dpkg; do
  command -v "$tool" >/dev/null || die "perf_analyzer needs glibc 2.38, and there is no $tool to fetch one with"
done
id=$(. /etc/os-release && echo "$ID")
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
case ${PERF_ANALYZER_SUITE:-$id} in
  debian) suite=trixie ;;
  ubuntu) suite=noble ;;
  *) suite=${PERF_ANALYZER_SUITE:-} ;;
esac
[ -n "$suite" ] || die "no newer release is known for $id; name a suite with PERF_ANALYZER_SUITE=..."
# --print-uris asks for nothing: this also works where apt's lists were never fetched, or were deleted.
mirrors=$(apt-get update --print-uris 2>>"$log" | sed -n "s|^'\(.*\)/dists/$codename/InRelease' .*|\1|p")
[ -n "$mirrors" ] || die "apt has no source for $id $codename, so no mirror to fetch $suite from"
keyring=/usr/share/keyrings/$id-archive-keyring.gpg
options="arch=$(dpkg --print-architecture)"
if [ -f "$keyring" ]; then options+=" signed-by=$keyring"; fi

apt=$dir/apt
private=(-o Dir::State="$apt" -o Dir::State::lists="$apt/lists" -o Dir::State::status="$apt/status"
  -o Dir::Cache="$apt/cache" -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts="$apt/none"
  -o Dir::Etc::preferencesparts="$apt/none" -o Dir::Etc::preferences=/dev/null -o APT::Default-Release=
  -o APT::Sandbox::User="$(id -un)" -o Acquire::Languages=none -o APT::Update::Error-Mode=any)
libraries=(libc6 libgcc-s1 libstdc++6 libssl3t64 zlib1g libzstd1)

fetch() { # the libraries of $suite from the mirror $1, into $apt/debs; apt checks signatures and hashes
  rm -rf "$apt"
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/none" "$apt/debs"
  : >"$apt/status"
  echo "deb [$options] $1 $suite main" >"$apt/sources.list"
  apt-get -q "${private[@]}" update && (cd "$apt/debs" && apt-get -q "${private[@]}" download "${libraries[@]}")
}

fetched=
for uri in $mirrors; do
  if fetch "$uri" >>"$log" 2>&1; then fetched=$uri && break; fi
done
[ -n "$fetched" ] || die "apt could not fetch $suite's libraries from ${mirrors//$'\n'/ } ($log)"
rm -rf "$runtime"
for deb in "$apt"/debs/*.deb; do
  dpkg -x "$deb" "$runtime" || die "$deb does not unpack"
done
rm -rf "$apt" "$runtime/usr/share" "$runtime/etc"

loader=$(cd "$runtime" && find . -name 'ld-linux*.so.*' ! -type l | head -n 1)
folder=$(cd "$runtime" && find . -name 'libc.so.6' -printf '%h\n' | head -n 1)
[ -n "$loader" ] && [ -n "$folder" ] || die "libc6 of $suite holds no loader"
wrap "\"\$here/runtime/${loader#./}\" --library-path \"\$here/runtime/${folder#./}\" \"\$here/$binary_name\"" \
  "the libraries of $id $suite in $runtime" || die "perf_analyzer does not start on the libraries of $suite ($log)"
