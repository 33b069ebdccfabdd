#!/usr/bin/env bash
# Configures and builds dptrain in build/. See --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: experiments/build.sh [--tests] [TARGET...]

Builds the targets (default: all) in the folder build/ at the top of the source,
as many files at once as cores and memory allow. What was built before is kept.

  --tests   the tests and benchmarks, too
TEXT
}

die() {
  echo "build.sh: $*" >&2
  exit 1
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build
with_tests=no
targets=()
while [ $# -gt 0 ]; do
  case "$1" in
    --tests) with_tests=yes ;;
    --help) usage; exit 0 ;;
    -*) die "$1: unknown option; known: --tests, --help" ;;
    *) targets+=("$1") ;;
  esac
  shift
done

cached() {  # the value of a variable in the cache of an earlier configuration
  sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt" 2>/dev/null || true
}

home=$(cached CMAKE_HOME_DIRECTORY)
[ -z "$home" ] || [ "$home" = "$root" ] ||
  die "$build was made for the sources in $home; remove it and start again"

# A configured folder stays as it is, so that settings made by hand are kept. The build tool configures again by
# itself when a CMakeLists.txt has changed.
if [ ! -e "$build/build.ninja" ] && [ ! -e "$build/Makefile" ]; then
  generator=()
  if [ -z "$(cached CMAKE_GENERATOR)" ] && command -v ninja >/dev/null 2>&1; then
    generator=(-G Ninja)
  fi
  tests=OFF
  [ "$with_tests" = no ] || tests=ON
  cmake -S "$root" -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release "-DDP_TESTS=$tests" "-DDP_BENCH=$tests"
elif [ "$with_tests" = yes ] && [ "$(cached DP_TESTS)" != ON ]; then
  cmake -S "$root" -B "$build" -DDP_TESTS=ON -DDP_BENCH=ON
fi

# The compiler takes about 1.5 GB for the largest files.
available_kb=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo 2>/dev/null || true)
jobs=$(nproc)
by_memory=$((${available_kb:-2000000} / 1500000))
[ "$by_memory" -ge "$jobs" ] || jobs=$by_memory
[ "$jobs" -ge 1 ] || jobs=1

arguments=()
[ ${#targets[@]} -eq 0 ] || arguments=(--target "${targets[@]}")
cmake --build "$build" --parallel "$jobs" "${arguments[@]}"
