# A minimal system of Debian or Ubuntu in a folder. Sourced by scripts that have die() and the variables
#   suite and components; mirror, keyring, architecture and cache (a folder), each of which may be empty; root (the system's
#   folder)
# shellcheck shell=bash disable=SC2154

# Starts the script again, with its words, in mount and pid namespaces, which end all mounts and processes. APART is a folder
# for the system and for logs, which is removed then.
go_apart() {
  [ -z "${APART:-}" ] || return 0
  [ "$(id -u)" -eq 0 ] || die "needs root"
  command -v debootstrap >/dev/null || die "needs debootstrap (apt-get install debootstrap)"
  folder=$(mktemp -d) # not local: the trap comes after this function when unshare has failed
  trap 'rm -rf --one-file-system "$folder"' EXIT
  APART=$folder unshare --mount --pid --fork --kill-child "$0" "$@"
  exit
}
choose_mirror() {
  [ -n "$mirror" ] || mirror=$({ cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources 2>/dev/null || true; } |
    sed -nE 's/^(deb|URIs:) +(\[[^]]*\] +)?(https?:[^ ]+).*/\3/p' | sed -n 1p)
  [ -n "$mirror" ] || die "no mirror known; give --mirror"
}
make_system() { # in $root
  local options=(--variant=minbase "--components=$components")
  [ -z "$architecture" ] || options+=(--arch="$architecture")
  [ -z "$keyring" ] || options+=(--keyring="$keyring")
  [ -z "$cache" ] || { mkdir -p "$cache"; options+=(--cache-dir="$cache"); }
  # Ubuntu's newer releases, which Debian 12's debootstrap does not know, are made as older ones are.
  local scripts=/usr/share/debootstrap/scripts recipe=()
  [ -e "$scripts/$suite" ] || recipe=("$scripts/jammy")
  debootstrap "${options[@]}" "$suite" "$root" "$mirror" "${recipe[@]}" >"$APART/debootstrap.log" ||
    { tail -n 5 "$APART/debootstrap.log"; die "debootstrap failed"; }
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys"
  mount --bind /dev "$root/dev"
  mount -t tmpfs tmpfs "$root/dev/shm" # Open MPI's shared memory
  if [ -n "$cache" ]; then mount --bind "$cache" "$root/var/cache/apt/archives"; fi
  # The network as it is set up here: names, and proxies of apt.
  cp /etc/resolv.conf /etc/hosts "$root/etc/"
  { apt-config dump | grep -iE '^Acquire::(http|https|ftp)::' || true; } >"$root/etc/apt/apt.conf.d/90network"
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d" # starts no services
  chmod 755 "$root/usr/sbin/policy-rc.d"
  echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/quick" # nothing here has to survive a loss of power
  inside apt-get -qq update
}
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }
as_user() { # one command line, in the user's home
  chroot "$root" setpriv --reuid 1000 --regid 1000 --clear-groups env -i PATH=/usr/bin:/bin HOME=/home/tester \
    LC_ALL=C.UTF-8 OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe bash -c "cd; $1"
}
