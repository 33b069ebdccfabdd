#!/usr/bin/env bash
# Debian's arm64 packages in a folder, to cross-build with. See --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: experiments/arm64_root.sh FOLDER

Downloads Debian's arm64 packages of what dptrain is built with, unpacks them in
FOLDER/root (installing nothing here), and writes FOLDER/toolchain.cmake, with which
CMake cross-builds. What is in FOLDER already is used again.

Needs Debian 12 and the packages g++-aarch64-linux-gnu, qemu-user-static, which runs the
programs to make their manual pages, and libhdf5-dev, whose h5cc CMake asks.
TEXT
}

die() {
  echo "arm64_root.sh: $*" >&2
  exit 2
}

case "${1:-}" in
  --help) usage; exit 0 ;;
  '') die "no folder given (see --help)" ;;
  -*) die "$1: unknown option; known: --help" ;;
esac
[ $# -eq 1 ] || die "$2: one folder only (see --help)"
for tool in aarch64-linux-gnu-g++ qemu-aarch64-static h5cc; do
  command -v $tool >/dev/null || die "needs $tool (apt-get install g++-aarch64-linux-gnu qemu-user-static libhdf5-dev)"
done
mkdir -p "$1"
folder=$(realpath "$1")
case $folder in *[[:space:]]*) die "$folder: a folder without spaces is needed" ;; esac
root=$folder/root triple=aarch64-linux-gnu

if [ ! -e "$root/complete" ]; then
  mkdir -p "$folder"/apt/{lists/partial,archives/partial}
  rm -f "$folder"/apt/archives/*.deb
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
  # Absolute links are redirected into the folder.
  find "$root/usr/lib/$triple" -type l -lname '/*' | while IFS= read -r link; do
    ln -sfn "$root$(readlink "$link")" "$link"
  done
  # Links that Debian's update-alternatives would make.
  for library in "$root/usr/lib/$triple"/openmpi/lib/*.so*; do
    [ -e "$root/usr/lib/$triple/${library##*/}" ] || ln -sfn "openmpi/lib/${library##*/}" "$root/usr/lib/$triple/${library##*/}"
  done
  touch "$root/complete"
fi

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
set(links "-Wl,-rpath-link,$root/usr/lib/$triple -Wl,-rpath-link,$root/usr/lib/$triple/openmpi/lib -Wl,--allow-shlib-undefined")
set(CMAKE_EXE_LINKER_FLAGS_INIT "\${links}")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "\${links}")
set(CMAKE_CROSSCOMPILING_EMULATOR "$(command -v qemu-aarch64-static);-L;$root")
set(MPI_C_LIB_NAMES mpi)
set(MPI_mpi_LIBRARY $root/usr/lib/$triple/libmpi.so)
set(MPI_C_HEADER_DIR $root/usr/lib/$triple/openmpi/include)
set(MPI_SKIP_COMPILER_WRAPPER ON)
set(HDF5_C_LIBRARY_hdf5 $root/usr/lib/$triple/libhdf5_serial.so)
# pkg-config would name this machine's own Open MPI.
set(ENV{PKG_CONFIG_LIBDIR} $root/usr/lib/$triple/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} $root)
CMAKE
