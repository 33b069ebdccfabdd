#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test. See --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: tests/run.sh [--no-setup] [quick] [ctest's options]

Installs missing packages, builds everything in build/ and runs the tests. The exit
code is 0 when all passed. Tests that need a GPU skip by name where there is none.

  --no-setup   install nothing
  quick        only the tests for the everyday loop (labels quick and lint), which take
               less than four minutes on two cores

Everything else goes to ctest, for example:

  tests/run.sh -L cpu          the tests of one process (labels: cpu, mpi, quick,
                               gpu, cuda_on_cpu, bundle, slow, lint)
  tests/run.sh -R ring         the tests whose name holds "ring"
  tests/run.sh -LE slow -V     all but the slow ones, with their output
TEXT
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
setup=yes
options=()
while [ $# -gt 0 ]; do
  case "$1" in
    --help) usage; exit 0 ;;
    --no-setup) setup=no ;;
    quick) options+=(-L '^(quick|lint)$') ;;
    *) options+=("$1") ;;
  esac
  shift
done

[ "$setup" = no ] || bash "$root/experiments/setup.sh" --tests
bash "$root/experiments/build.sh" --tests

# Tests state how many processors they take. One more than there are is given to them, for the tests
# that mostly wait, for links or time-outs: those run beside tests that compute.
exec ctest --test-dir "$root/build" --parallel "$(($(nproc) + 1))" --output-on-failure \
  --no-tests=error "${options[@]}"
