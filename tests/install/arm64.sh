#!/usr/bin/env bash
# Cross-builds for arm64 and runs tests under qemu. See --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: tests/install/arm64.sh [--jobs N] [--train] [--beside DPTRAIN] FOLDER [REGEX [TARGET...]]

Unpacks Debian's arm64 packages in FOLDER/root (experiments/arm64_root.sh), cross-builds
the tests of codecs, exchange, options and our convolutions in FOLDER/build, and runs
them under qemu-user. FOLDER is kept and can be used again. REGEX chooses
tests, and TARGETs what is built.

Needs Debian 12 and the packages g++-aarch64-linux-gnu, qemu-user-static, cmake,
ninja-build, libhdf5-dev and openmpi-bin, whose mpirun starts the ranks.

  --jobs N   compilers at a time (default: one for each core)
  --train    also builds dptrain, and trains with it on two ranks for an epoch
  --beside DPTRAIN
             as --train, and then trains with this machine's program DPTRAIN on one rank
             and the one for arm64 on the other, and compares the replicas' bits after
             every step. Both must be built of the same revision without changes.
TEXT
}

die() {
  echo "arm64.sh: $*" >&2
  exit 1
}

source=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
jobs=$(nproc) train=no beside='' words=()
while [ $# -gt 0 ]; do
  case "$1" in
    --help) usage; exit 0 ;;
    --jobs) jobs=$2; shift ;;
    --train) train=yes ;;
    --beside) train=yes beside=$(realpath "$2"); shift ;;
    -*) die "$1: unknown option; known: --jobs, --train, --beside, --help" ;;
    *) words+=("$1") ;;
  esac
  shift
done
[ ${#words[@]} -gt 0 ] || die "no folder given (see --help)"
folder=$(realpath -m "${words[0]}")
regex=${words[1]:-'^(codec_test|codec_spec_test|entropy_coder_test|sparse_codec_test|dense_codec_test|stochastic_codec_test|options_test|options_words_test|exchange_plan_test|segment_protocol_test|bucket_pipeline_test|ring_test_np[24]|topology_test_np3|winograd_test)$'}
targets=("${words[@]:2}")
[ ${#targets[@]} -gt 0 ] || targets=(codec_test codec_spec_test entropy_coder_test sparse_codec_test
  dense_codec_test stochastic_codec_test options_test options_words_test exchange_plan_test segment_protocol_test
  bucket_pipeline_test ring_test topology_test winograd_test)
[ $train = no ] || targets+=(dptrain)
for tool in aarch64-linux-gnu-g++ qemu-aarch64-static cmake ninja mpirun; do
  command -v $tool >/dev/null || die "needs $tool (apt-get install g++-aarch64-linux-gnu qemu-user-static cmake ninja-build openmpi-bin)"
done
root=$folder/root
export QEMU_LD_PREFIX=$root # for programs that start themselves again, where qemu is registered

echo "== Debian's arm64 packages"
"$source/experiments/arm64_root.sh" "$folder"

echo "== cross-build"
cat >"$folder/mpiexec" <<TEXT
#!/bin/sh
# mpiexec -np N PROGRAM...: this machine's mpirun, and ranks under qemu. Both sides speak through sockets, since they
# would lay out shared memory differently.
ranks=\$2
shift 2
exec env PMIX_MCA_gds=hash OMPI_MCA_btl=self,tcp mpirun -np "\$ranks" qemu-aarch64-static -L $root "\$@"
TEXT
chmod 755 "$folder/mpiexec"
cmake -S "$source" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_TOOLCHAIN_FILE="$folder/toolchain.cmake" \
  -DMPIEXEC_EXECUTABLE="$folder/mpiexec" -DDP_CUDA=OFF -DDP_TESTS=ON \
  >"$folder/configure.log" || { tail -n 20 "$folder/configure.log"; die "cannot be configured"; }
cmake --build "$folder/build" --parallel "$jobs" --target "${targets[@]}"

echo "== tests under qemu"
ctest --test-dir "$folder/build" -R "$regex" --output-on-failure --no-tests=error
[ $train = yes ] || exit 0

echo "== training under qemu"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
cd "$folder"
small=(--limit-train 64 --limit-test 16 --batch-size 8 --epochs 1 --threads 1 --autotune off --log none)
./mpiexec -np 2 build/bin/dptrain --compress q8 "${small[@]}"
[ -n "$beside" ] || exit 0

echo "== x86-64 and arm64 in one run"
# both WORDS...: a rank of this machine's program and one of arm64's, with the same options.
both() {
  PMIX_MCA_gds=hash OMPI_MCA_btl=self,tcp mpirun -np 1 "$beside" "${small[@]}" "$@" : \
    -np 1 qemu-aarch64-static -L "$root" build/bin/dptrain "${small[@]}" "$@"
}
# trains WORDS...: the replicas' bits are compared after every step; a run whose replicas differ fails.
trains() {
  echo "-- $*"
  both --check-replicas step "$@"
}
trains --compress none
trains --compress q8 --ema 0.5 --clip-norm 1 --lr-schedule cosine
trains --compress ecq:bits=0.35 --optimizer lars --sync-bn on
trains --compress ecq:bits=0.1,velocity=masked --nesterov on
trains --compress auto --optimizer adamw --shares 3:1
trains --compress q4 --sync-every 2
# Muon's products are each processor's own.
code=0
both --optimizer muon >muon.txt 2>&1 || code=$?
[ $code = 5 ] && grep -q "has another processor (.*) than rank 0 (.*), and the two round Muon's products" muon.txt ||
  { cat muon.txt; die "--optimizer muon: exit code $code instead of 5"; }
echo "== x86-64 and arm64: equal bits; muon is refused"
