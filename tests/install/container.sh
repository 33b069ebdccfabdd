#!/usr/bin/env bash
# The Containerfile by podman. See --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: tests/install/container.sh [--base FOLDER] DEB

Builds experiments/container/Containerfile by podman with the package dptrain, which was
made on Debian 12, runs its command for one epoch, and trains on two containers of one
network, one of which starts ranks on both by ssh, as the MPI operator does. The base
image debian:12 is made by debootstrap, so that no registry of images is needed. Images
and containers live in a folder for temporary files, and nothing is left behind. Takes
five minutes. Needs root, podman, debootstrap, ssh-keygen, ip, and a mirror of Debian.

  --base FOLDER   a system that debootstrap has made, instead of a new one
TEXT
}

die() {
  echo "container.sh: $*" >&2
  exit 1
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
words=("$@") base='' deb=''
while [ $# -gt 0 ]; do
  case "$1" in
    --help) usage; exit 0 ;;
    --base) [ $# -ge 2 ] || die "--base: needs a value"; base=$(realpath "$2"); shift ;;
    -*) die "$1: unknown option; known: --base, --help" ;;
    *) deb=$(realpath "$1") ;;
  esac
  shift
done
[ -f "$deb" ] || die "no package given (see --help)"
[ "$(id -u)" -eq 0 ] || die "needs root"
for tool in podman debootstrap ssh-keygen ip; do
  command -v $tool >/dev/null || die "needs $tool (apt-get install podman debootstrap openssh-client iproute2)"
done

# Mounts, processes, bridges and filters end with this one.
if [ -z "${CONTAINER_TEST_FOLDER:-}" ]; then
  folder=$(mktemp -d)
  trap 'rm -rf --one-file-system "$folder"' EXIT
  exec 9</proc/self/ns/net
  CONTAINER_TEST_FOLDER=$folder unshare --mount --net --pid --fork --kill-child --mount-proc "$0" "${words[@]}"
  exit
fi
folder=$CONTAINER_TEST_FOLDER
outside() { nsenter --net=/proc/self/fd/9 "$@"; } # with this machine's own network
ip link set lo up
# crun refuses a mixture of both versions of cgroups.
if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi
mount -t tmpfs tmpfs /run

# A network and its file belong to this folder.
mkdir "$folder/context" "$folder/networks" "$folder/tmp"
export TMPDIR=$folder/tmp CONTAINERS_CONF=$folder/containers.conf CONTAINERS_STORAGE_CONF=$folder/storage.conf
printf '[network]\nnetwork_config_dir = "%s"\n' "$folder/networks" >"$CONTAINERS_CONF"
printf '[storage]\ndriver = "vfs"\ngraphroot = "%s"\nrunroot = "%s"\n' "$folder/images" "$folder/running" >"$CONTAINERS_STORAGE_CONF"
pod() { podman --cgroup-manager cgroupfs "$@"; }
# No rights that this machine may not have itself.
limits=(--ulimit nofile=1024:4096 --ulimit nproc=4096:4096)

if [ -z "$base" ]; then
  echo "== the base image, by debootstrap"
  base=$folder/base
  outside debootstrap --variant=minbase bookworm "$base" >"$folder/log" || { tail -n 5 "$folder/log"; die "debootstrap failed"; }
fi
tar -C "$base" -c . | pod import --quiet - docker.io/library/debian:12 >/dev/null

echo "== podman build"
cp "$deb" "$folder/context/"
# One layer and this machine's network: quick without overlays, and apt-get needs no bridge.
outside podman --cgroup-manager cgroupfs build --layers=false --network host --isolation chroot "${limits[@]}" -t dptrain \
  -f "$here/../../experiments/container/Containerfile" "$folder/context" >"$folder/log" 2>&1 ||
  { tail -n 20 "$folder/log"; die "the image cannot be built"; }

echo "== podman run"
short=(--limit-train 256 --limit-test 64 --epochs 1 --log none)
mapfile -t command < <(sed -nE 's/^CMD \[(.*)\]$/\1/p' "$here/../../experiments/container/Containerfile" | tr -d ' "' | tr , '\n')
in_container=(--cgroups disabled "${limits[@]}")
pod run --rm --network none "${in_container[@]}" dptrain "${command[@]}" "${short[@]}" >"$folder/out" ||
  { tail -n 20 "$folder/out"; die "the image's command fails"; }
grep -E '^dptrain |^epoch' "$folder/out"

echo "== two containers on a network"
mkdir -m 700 "$folder/ssh"
ssh-keygen -q -t ecdsa -N '' -f "$folder/ssh/id_rsa"
cp "$folder/ssh/id_rsa.pub" "$folder/ssh/authorized_keys"
chown -R 1000:1000 "$folder/ssh"
pod network create dptrain-test >/dev/null
addresses=()
for name in one two; do
  pod run --detach --name $name --network dptrain-test "${in_container[@]}" -v "$folder/ssh:/home/trainer/.ssh" dptrain \
    /usr/sbin/sshd -De -f /etc/ssh/sshd_config_trainer >/dev/null
  addresses+=("$(pod inspect --format '{{(index .NetworkSettings.Networks "dptrain-test").IPAddress}}' $name)")
done
pod exec one mpirun --host "${addresses[0]}:2,${addresses[1]}:2" --bind-to none dptrain --compress q8 --threads 1 "${short[@]}" \
  >"$folder/out" || { tail -n 20 "$folder/out"; die "the two containers do not train"; }
grep -E '^ +(hosts|network) |^epoch' "$folder/out"
grep -q '2 hosts\|x 2, .* x 2' "$folder/out" || die "the ranks are not on two hosts"
pod rm --force --time 1 one two >/dev/null
pod network rm dptrain-test >/dev/null
echo "container.sh: as expected"
