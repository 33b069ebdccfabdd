#!/usr/bin/env bash
# Installs the Debian/Ubuntu packages that dptrain needs and that are missing. See --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: experiments/setup.sh [--tests] [--torch] [--check]

Installs what dptrain needs to be built and run on Debian 12 or 13, as far as it is
missing; with everything in place it does nothing. Needs root or sudo only when
something is missing. As far as is known the packages have the same names in Ubuntu
24.04 (most in universe), where this was not tried.

  --tests   also what the tests need
  --torch   also PyTorch, for the tests of its hook (700 MB), which skip without it
  --check   install nothing; say what is missing and end with exit code 1 if any is
TEXT
}

die() {
  echo "setup.sh: $*" >&2
  exit 1
}

packages=(g++ cmake ninja-build libopenmpi-dev openmpi-bin libhdf5-dev libdnnl-dev
  libeigen3-dev libboost-program-options-dev libxxhash-dev libfmt-dev libjpeg-dev libpng-dev)
test_packages=(libgtest-dev libbenchmark-dev python3-h5py python3-numpy python3-pandas python3-matplotlib patchelf)
# For the tests of the lab. experiments/dplab itself says what is missing when it is used.
test_packages+=(iproute2)
# For the tests of what is installed: pages, completions, Debian packages.
test_packages+=(man-db mandoc zsh dpkg-dev python3-yaml)
only_check=no

while [ $# -gt 0 ]; do
  case "$1" in
    --tests) packages+=("${test_packages[@]}") ;;
    --torch) packages+=(python3-torch) ;;
    --check) only_check=yes ;;
    --help) usage; exit 0 ;;
    *) die "$1: unknown option; known: --tests, --torch, --check, --help" ;;
  esac
  shift
done

# A tool may be installed without its package.
has_tool() {
  case "$1" in
    g++ | cmake) command -v "$1" ;;
    ninja-build) command -v ninja ;;
    *) return 1 ;;
  esac >/dev/null 2>&1
}

is_installed() {
  local state
  has_tool "$1" && return 0
  state=$(dpkg-query -W -f='${db:Status-Status}\n' "$1" 2>/dev/null || true)
  grep -qx installed <<<"$state"
}

if ! command -v dpkg-query >/dev/null 2>&1 || ! command -v apt-get >/dev/null 2>&1; then
  die "there is no apt-get here, so nothing can be installed or looked up. Install what these" \
    "packages of Debian bring, then use --no-setup with the script that called this one:" \
    "${packages[*]}"
fi

missing=()
for package in "${packages[@]}"; do
  is_installed "$package" || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

[ "$only_check" = no ] || die "missing: ${missing[*]}"

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null 2>&1 ||
    die "installing needs root or sudo. Ask for: apt-get install ${missing[*]}"
  # Without a terminal nobody can type a password, so fail instead of waiting.
  if [ -t 0 ]; then as_root=(sudo); else as_root=(sudo -n); fi
  "${as_root[@]}" true ||
    die "sudo is refused to this user. Ask for: apt-get install ${missing[*]}"
fi

echo "setup.sh: installing ${missing[*]}"
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120)
# If the package lists here are old but sufficient, no network is needed.
"${apt[@]}" update || echo "setup.sh: apt-get update failed; trying with the lists that are here" >&2
"${apt[@]}" install -y --no-install-recommends "${missing[@]}" ||
  die "apt-get could not install: ${missing[*]} (its own message is above)"
