#!/usr/bin/env bash
# Cross-builds for arm64 and runs tests under qemu. See --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: tests/install/arm64.sh [--jobs N] [--train] [--beside DPTRAIN] FOLDER [REGEX [TARGET...]]

Downloads Debian's arm64 packages of what dptrain is built with, unpacks them below
FOLDER/root (installing nothing here), cross-builds the tests of codecs, exchange and
options in FOLDER/build, and runs them under qemu-user. FOLDER is kept and can be used
again. REGEX chooses tests, and TARGETs what is built.

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
regex=${words[1]:-'^(codec_test|codec_spec_test|entropy_coder_test|sparse_codec_test|dense_codec_test|stochastic_codec_test|options_test|options_words_test|exchange_plan_test|segment_protocol_test|bucket_pipeline_test|ring_test_np[24]|topology_test_np3)$'}
targets=("${words[@]:2}")
[ ${#targets[@]} -gt 0 ] || targets=(codec_test codec_spec_test entropy_coder_test sparse_codec_test
  dense_codec_test stochastic_codec_test options_test options_words_test exchange_plan_test segment_protocol_test
  bucket_pipeline_test ring_test topology_test)
[ $train = no ] || targets+=(dptrain)
for tool in aarch64-linux-gnu-g++ qemu-aarch64-static cmake ninja mpirun; do
  command -v $tool >/dev/null || die "needs $tool (apt-get install g++-aarch64-linux-gnu qemu-user-static cmake ninja-build openmpi-bin)"
done
root=$folder/root triple=aarch64-linux-gnu

if [ ! -e "$root/complete" ]; then
  echo "== Debian's arm64 packages"
  mkdir -p "$folder"/apt/{lists/partial,archives/partial}
  : >"$folder/apt/status" # nothing is installed: everything down to libc is downloaded
  cat >"$folder/apt/conf" <<CONF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "root";
Dir::State::status "$folder/apt/status";
Dir::State::lists "$folder/apt/lists";
Dir::Cache "$folder/apt";
CONF
  APT_CONFIG=$folder/apt/conf apt-get -qq update
  APT_CONFIG=$folder/apt/conf apt-get -qq -y --no-install-recommends --download-only install libc6-dev libstdc++-12-dev \
    libopenmpi-dev libhdf5-dev libdnnl-dev libeigen3-dev libboost-program-options-dev libxxhash-dev libfmt-dev libjpeg-dev \
    libpng-dev libgtest-dev
  rm -rf "$root"
  mkdir -p "$root"/usr/{bin,sbin,lib}
  ln -s usr/bin usr/sbin usr/lib "$root/"
  for deb in "$folder"/apt/archives/*.deb; do dpkg-deb -x "$deb" "$root"; done
  # Links that say where they lead from the top.
  find "$root/usr/lib/$triple" -type l -lname '/*' | while IFS= read -r link; do
    ln -sfn "$root$(readlink "$link")" "$link"
  done
  # What the packages' alternatives would be.
  for library in "$root/usr/lib/$triple"/openmpi/lib/*.so*; do
    [ -e "$root/usr/lib/$triple/${library##*/}" ] || ln -sfn "openmpi/lib/${library##*/}" "$root/usr/lib/$triple/${library##*/}"
  done
  touch "$root/complete"
fi

echo "== cross-build"
emulator="$(command -v qemu-aarch64-static);-L;$root"
cat >"$folder/mpiexec" <<TEXT
#!/bin/sh
# mpiexec -np N PROGRAM...: this machine's mpirun, and ranks under qemu. Both sides speak through sockets, since they
# would lay out shared memory differently.
ranks=\$2
shift 2
exec env PMIX_MCA_gds=hash OMPI_MCA_btl=self,tcp mpirun -np "\$ranks" ${emulator//;/ } "\$@"
TEXT
chmod 755 "$folder/mpiexec"
cat >"$folder/toolchain.cmake" <<CMAKE
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE $triple)
set(CMAKE_C_COMPILER $triple-gcc)
set(CMAKE_CXX_COMPILER $triple-g++)
set(CMAKE_SYSROOT $root)
set(CMAKE_FIND_ROOT_PATH $root)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR "$emulator")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,-rpath-link,$root/usr/lib/$triple -Wl,-rpath-link,$root/usr/lib/$triple/openmpi/lib -Wl,--allow-shlib-undefined")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "\${CMAKE_EXE_LINKER_FLAGS_INIT}")
set(MPI_C_LIB_NAMES mpi)
set(MPI_mpi_LIBRARY $root/usr/lib/$triple/libmpi.so)
set(MPI_C_HEADER_DIR $root/usr/lib/$triple/openmpi/include)
set(MPI_SKIP_COMPILER_WRAPPER ON)
set(MPIEXEC_EXECUTABLE $folder/mpiexec)
CMAKE
# pkg-config would name this machine's own Open MPI.
PKG_CONFIG_LIBDIR=$root/usr/lib/$triple/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root \
  cmake -S "$source" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_TOOLCHAIN_FILE="$folder/toolchain.cmake" \
  -DHDF5_C_LIBRARY_hdf5="$root/usr/lib/$triple/libhdf5_serial.so" -DDP_CUDA=OFF -DDP_TESTS=ON >"$folder/configure.log" || { tail -n 20 "$folder/configure.log"; die "cannot be configured"; }
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
[ $code = 5 ] && grep -q "has another processor (.*) than rank 0 (.*), which rounds Muon's products" muon.txt ||
  { cat muon.txt; die "--optimizer muon: exit code $code instead of 5"; }
echo "== x86-64 and arm64: equal bits; muon is refused"
