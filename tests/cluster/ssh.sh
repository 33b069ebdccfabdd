#!/usr/bin/env bash
# Two machines joined by ssh, as experiments/cluster/README.md says it. See --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: tests/cluster/ssh.sh [--bin FOLDER]

Makes two hosts, node1 and node2, of network namespaces, each with an sshd and a user
who logs in by password, and carries out the commands of the section "Two machines" of
experiments/cluster/README.md word for word, with a short training at the end. Needs
root, openssh-server and iproute2. All of it is in namespaces of its own: nothing here
is changed, and nothing is left behind.

  --bin FOLDER   where dptrain is (build/bin)
TEXT
}

die() {
  echo "ssh.sh: $*" >&2
  exit 1
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=$root/build/bin
while [ $# -gt 0 ]; do
  case "$1" in
    --help) usage; exit 0 ;;
    --bin) [ $# -ge 2 ] || die "--bin: needs a value"; bin=$(realpath "$2"); shift ;;
    *) die "$1: unknown option; known: --bin, --help" ;;
  esac
  shift
done
sshd=$(PATH=$PATH:/usr/sbin command -v sshd) || die "needs sshd (apt-get install openssh-server)"
command -v ip >/dev/null || die "needs ip (apt-get install iproute2)"
[ "$(id -u)" -eq 0 ] || die "needs root"
[ -x "$bin/dptrain" ] || die "there is no $bin/dptrain; build it: experiments/build.sh dptrain"

# node1 is a set of namespaces of its own; all processes end with it.
if [ -z "${SSH_TEST_FOLDER:-}" ]; then
  folder=$(mktemp -d /tmp/ssh.XXXXXX)
  trap 'rm -rf "$folder"' EXIT
  SSH_TEST_FOLDER=$folder unshare --mount --net --uts --pid --fork --kill-child --mount-proc "$0" --bin "$bin"
  exit
fi
folder=$SSH_TEST_FOLDER
chmod 755 "$folder"

# A user with a password, and names of hosts, for these two hosts only.
mkdir "$folder/etc" "$folder/home" "$folder/run"
password=$(head -c 12 /dev/urandom | base64)
for file in passwd shadow group hosts; do cp -p "/etc/$file" "$folder/etc/"; done
echo "trainer:x:4711:4711::$folder/home:/bin/bash" >>"$folder/etc/passwd"
echo "trainer:$(openssl passwd -6 "$password"):19000:0:99999:7:::" >>"$folder/etc/shadow"
echo "trainer:x:4711:" >>"$folder/etc/group"
printf '127.0.0.1 localhost\n10.98.0.1 node1\n10.98.0.2 node2\n' >"$folder/etc/hosts"
for file in passwd shadow group hosts; do mount --bind "$folder/etc/$file" "/etc/$file"; done
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/sshd

# node2, and the cable.
unshare --net --uts --mount sleep infinity &
other=$!
on_node2() { nsenter --target $other --net --uts --mount "$@"; }
for _ in $(seq 50); do # until it has its own network
  [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/self/ns/net)" ] || break
  sleep 0.1
done
hostname node1
on_node2 hostname node2
ip link add eth0 type veth peer name eth0 netns $other
ip addr add 10.98.0.1/24 dev eth0
on_node2 ip addr add 10.98.0.2/24 dev eth0
for link in lo eth0; do
  ip link set $link up
  on_node2 ip link set $link up
done

cat >"$folder/sshd_config" <<TEXT
HostKey $folder/host_key
UsePAM no
PasswordAuthentication yes
PidFile none
TEXT
ssh-keygen -q -t ed25519 -N '' -f "$folder/host_key"
"$sshd" -D -f "$folder/sshd_config" -E "$folder/run/sshd1" &
on_node2 "$sshd" -D -f "$folder/sshd_config" -E "$folder/run/sshd2" &

# The program at the same path on both hosts; here they have one disk.
mkdir -p "$folder/home/dptrain/build/bin"
cp "$bin/dptrain" "$folder/home/dptrain/build/bin/"
# Who asks for a password or for trust in a key gets an answer from this, as from a person.
cat >"$folder/answer" <<TEXT
#!/bin/sh
case "\$1" in *yes/no*) echo yes ;; *) echo '$password' ;; esac
TEXT
chmod 700 "$folder/answer"
chown -R 4711:4711 "$folder/home" "$folder/answer"

commands=$folder/commands
sed -n '/^## Two machines/,/^- \*\*/s/^    //p' "$root/experiments/cluster/README.md" >"$commands"
[ "$(grep -cE '^(ssh-keygen|ssh-copy-id|ssh|printf|mpirun) ' "$commands")" -eq 5 ] ||
  { cat "$commands"; die "the section has other commands than this test knows"; }
short=(--limit-train 256 --limit-test 64 --epochs 1 --threads 1 --log run.h5)
sed -i "s/^mpirun .*/& ${short[*]}/" "$commands"
chmod 644 "$commands"
echo "== as trainer on node1"
cat "$commands"
echo "=="
# Three times return: the key's file, and no passphrase.
printf '\n\n\n' | setsid setpriv --reuid 4711 --regid 4711 --clear-groups env -i HOME="$folder/home" USER=trainer LOGNAME=trainer \
  PATH=/usr/bin:/bin SSH_ASKPASS="$folder/answer" SSH_ASKPASS_REQUIRE=force \
  bash -e -c "cd ~/dptrain; . $commands" >"$folder/run/out" 2>&1 ||
  { tail -n 40 "$folder/run/out" "$folder"/run/sshd*; die "the commands fail"; }
grep -E '^node2$|^dptrain |^ +network |^epoch|The log is' "$folder/run/out"
for words in '^node2$' '2 ranks' 'node1.*node2|2 hosts' '^ +network +eth0, '; do
  grep -qE "$words" "$folder/run/out" || { tail -n 60 "$folder/run/out"; die "the output has no '$words'"; }
done
echo "ssh.sh: as expected"
