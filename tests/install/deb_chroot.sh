#!/usr/bin/env bash
# The Debian packages on a clean system. See --help. Commands in single quotes are expanded inside the system.
# shellcheck disable=SC2016
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: tests/install/deb_chroot.sh [--suite SUITE] [--mirror URL] [--cache FOLDER] DEB...

Makes a minimal system of Debian by debootstrap in a folder for temporary files,
installs the packages there by apt-get, trains as an ordinary user on four ranks,
reads the log by dpreport and the page by man, builds a program with the library,
removes the packages, and compares the lists of files. Ends with exit code 0 if all
went well, and leaves nothing behind. Needs root, debootstrap and a mirror.

  --suite SUITE    bookworm (the default) or, with Ubuntu's keys, noble
  --mirror URL     default: that of the first line of apt's sources here
  --cache FOLDER   keep the packages that are downloaded, for the next time

Packages are made by: cd build && cpack -G DEB
TEXT
}

die() {
  echo "deb_chroot.sh: $*" >&2
  exit 1
}

suite=bookworm mirror='' cache='' debs=()
words=("$@")
while [ $# -gt 0 ]; do
  case "$1" in
    --help) usage; exit 0 ;;
    --suite | --mirror | --cache)
      [ $# -ge 2 ] || die "$1: needs a value"
      case "$1" in
        --suite) suite=$2 ;;
        --mirror) mirror=$2 ;;
        --cache) cache=$(realpath -m "$2") ;;
      esac
      shift
      ;;
    -*) die "$1: unknown option; known: --suite, --mirror, --cache, --help" ;;
    *) debs+=("$(realpath "$1")") ;;
  esac
  shift
done
[ ${#debs[@]} -gt 0 ] || die "no packages given (see --help)"
[ "$(id -u)" -eq 0 ] || die "needs root"
command -v debootstrap >/dev/null || die "needs debootstrap (apt-get install debootstrap)"

# All mounts and processes end with this one.
if [ -z "${DEB_CHROOT_APART:-}" ]; then
  folder=$(mktemp -d)
  trap 'rm -rf --one-file-system "$folder"' EXIT
  DEB_CHROOT_APART=$folder unshare --mount --pid --fork --kill-child "$0" "${words[@]}"
  exit
fi
root=$DEB_CHROOT_APART/root

if [ -z "$mirror" ]; then
  mirror=$({ cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources 2>/dev/null || true; } |
    sed -nE 's/^(deb|URIs:) +(\[[^]]*\] +)?(https?:[^ ]+).*/\3/p' | sed -n 1p)
fi
[ -n "$mirror" ] || die "no mirror known; give --mirror"
echo "== a minimal $suite from $mirror"
options=(--variant=minbase)
[ -z "$cache" ] || { mkdir -p "$cache"; options+=(--cache-dir="$cache"); }
debootstrap "${options[@]}" "$suite" "$root" "$mirror" >"$DEB_CHROOT_APART/debootstrap.log" ||
  { tail -n 5 "$DEB_CHROOT_APART/debootstrap.log"; die "debootstrap failed"; }

mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm" # Open MPI's shared memory
if [ -n "$cache" ]; then mount --bind "$cache" "$root/var/cache/apt/archives"; fi
# The network as it is set up here: names, and proxies of apt.
cp /etc/resolv.conf /etc/hosts "$root/etc/"
{ apt-config dump | grep -iE '^Acquire::(http|https|ftp)::' || true; } >"$root/etc/apt/apt.conf.d/90network"
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d" # starts no services
chmod 755 "$root/usr/sbin/policy-rc.d"
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }
as_user() { # one command line, in the user's home
  chroot "$root" setpriv --reuid 1000 --regid 1000 --clear-groups env -i PATH=/usr/bin:/bin HOME=/home/tester \
    LC_ALL=C.UTF-8 OMPI_MCA_rmaps_base_oversubscribe=1 bash -c "cd; $1"
}
list_files() { # without what apt, dpkg and caches write for themselves
  (cd "$root" && find . -xdev \( -path ./home -o -path ./tmp -o -path ./proc -o -path ./dev -o -path ./var/cache -o -path ./var/log \
    -o -path ./var/lib/apt -o -path ./var/lib/dpkg \) -prune -o -print | LC_ALL=C sort)
}

echo "== what the packages depend on, and what this test uses besides"
inside useradd --create-home --uid 1000 tester
mkdir "$root/tmp/debs"
cp "${debs[@]}" "$root/tmp/debs/"
names=() needs=()
for deb in "${debs[@]}"; do names+=("$(dpkg-deb -f "$deb" Package)"); done
for deb in "${debs[@]}"; do
  for field in Depends Recommends; do
    while IFS= read -r need; do
      [ -z "$need" ] || [[ " ${names[*]} " == *" ${need%% *} "* ]] || needs+=("$need")
    done < <(dpkg-deb -f "$deb" $field | sed 's/, */\n/g')
  done
done
inside apt-get -qq update
inside apt-get -qq -y --no-install-recommends satisfy "${needs[@]}" man-db gcc libc6-dev pkg-config >"$DEB_CHROOT_APART/apt.log" 2>&1 ||
  { tail -n 20 "$DEB_CHROOT_APART/apt.log"; die "apt-get could not install: ${needs[*]}"; }
list_files >"$DEB_CHROOT_APART/before"

echo "== apt-get install ./*.deb"
inside sh -c 'apt-get -qq -y install /tmp/debs/*.deb' >"$DEB_CHROOT_APART/apt.log" 2>&1 ||
  { tail -n 20 "$DEB_CHROOT_APART/apt.log"; die "the packages cannot be installed"; }
list_files | comm -13 "$DEB_CHROOT_APART/before" - >"$DEB_CHROOT_APART/installed"
echo "$(wc -l <"$DEB_CHROOT_APART/installed") files and folders"

echo "== as an ordinary user"
as_user 'mpirun -np 4 dptrain --compress q8 --limit-train 512 --limit-test 128 --epochs 1 --log run.h5' | tail -n 12
as_user 'dpreport run.h5' | head -n 12
as_user 'man dptrain | head -n 4; for p in dptrun dpbench dptrain-pack dplab dpreport dpsweep dptrain-weights; do man $p >/dev/null || exit 1; done'
as_user 'dptrun -np 2 -- dptrain --limit-train 64 --limit-test 32 --epochs 1 --checkpoint checkpoints --log restarts.h5 | tail -n 1'
as_user 'for p in dptrain dptrun dpbench dptrain-pack; do $p --version | head -n 1; done'
as_user 'dpsweep /usr/share/dptrain/experiments/exchange.ini --small --list | head -n 2'
as_user '. /usr/share/bash-completion/completions/dptrain; COMP_WORDS=(dptrain --topo); COMP_CWORD=1; _dptrain; echo "${COMPREPLY[@]}"'
if inside test -e /usr/include/dptrain_comm.h; then
  as_user 'printf "#include <dptrain_comm.h>\n#include <stdio.h>\nint main(void) { return puts(dptrain_comm_version()) < 0; }\n" >a.c
    cc a.c $(pkg-config --cflags --libs dptrain_comm) && ./a.out'
fi

echo "== apt-get purge"
inside apt-get -qq -y purge "${names[@]}" >"$DEB_CHROOT_APART/apt.log" 2>&1 ||
  { tail -n 20 "$DEB_CHROOT_APART/apt.log"; die "the packages cannot be removed"; }
list_files >"$DEB_CHROOT_APART/after"
diff "$DEB_CHROOT_APART/before" "$DEB_CHROOT_APART/after" || die "this was left behind, or is missing"
echo "deb_chroot.sh: installed, used and removed on $suite; nothing is left"
