#!/usr/bin/env bash
# Tests which headers of cuDNN the build accepts, and its message about others:  find_cuda_test.sh CMAKE SOURCE
# The toolkit is fake: an nvcc that prints its version and compiles nothing.
set -euo pipefail

cmake=$1 source=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch"/{bin,include}
printf '%s\n' '#!/bin/sh' '[ "$1" = --version ] && echo "Cuda compilation tools, release 13.0, V13.0.48" && exit' \
  'echo "error: this compiles nothing" >&2' 'exit 1' >"$scratch/bin/nvcc"
chmod +x "$scratch/bin/nvcc"
touch "$scratch"/include/{cuda_runtime_api.h,cublas_v2.h,cudnn.h}
cat >"$scratch/find.cmake" <<TEXT
list(APPEND CMAKE_MODULE_PATH "$source/kernels/cmake")
include(DpCuda)
message("\${DP_CUDA_SUMMARY}")
TEXT

failures=0
check() { # version of cuDNN, what is said
  printf '#define CUDNN_%s\n' "MAJOR ${1%%.*}" "MINOR $(cut -d. -f2 <<<"$1")" "PATCHLEVEL ${1##*.}" \
    >"$scratch/include/cudnn_version.h"
  (cd "$scratch" && env -u CUDACXX -u CUDNN_ROOT -u CUDNN_PATH "$cmake" -DDP_CUDA=AUTO "-DDP_CUDA_PREFIX=$scratch" \
    -P find.cmake >out 2>&1) || true
  if ! grep -qF -- "$2" "$scratch/out"; then
    echo "FAILED cuDNN $1: expected '$2', but:"
    sed 's/^/  | /' "$scratch/out"
    failures=$((failures + 1))
  fi
}
check 8.9.7 "cuDNN 8.9.7 in $scratch/include: 9.8 or later is needed"
check 9.0.0 "cuDNN 9.0.0 in $scratch/include: 9.8 or later is needed"
check 9.7.1 "cuDNN 9.7.1 in $scratch/include: 9.8 or later is needed"
# These headers are accepted, so nvcc is tested next.
check 9.8.0 "cannot compile and link a small program"
check 9.10.2 "cannot compile and link a small program"
exit $((failures > 0))
