#!/usr/bin/env bash
# The Debian packages on a clean system. See --help. Commands in single quotes are expanded inside the system.
# shellcheck disable=SC2016
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: tests/install/deb_chroot.sh [options] DEB...
       tests/install/deb_chroot.sh [options] --build

Makes a minimal system of Debian by debootstrap in a folder for temporary files,
installs the packages there by apt-get, trains as an ordinary user on four ranks,
reads the log by dpreport and the page by man, builds a program with the library,
removes the packages, and compares the lists of files. Ends with exit code 0 if all
went well, and leaves nothing behind. Needs root, debootstrap and a mirror.

  --build          first make the packages from the last commit, in another system of
                   the same kind
  --container      then carry out experiments/container/Containerfile in that system,
                   run what it runs, and log in to it as the MPI operator does
  --suite SUITE    default: bookworm. Others, such as noble with a mirror of Ubuntu, were
                   not tried as a whole
  --mirror URL     default: that of the first line of apt's sources here
  --keyring FILE   the keys of that mirror, where debootstrap does not know them
  --cache FOLDER   keep the packages that are downloaded, for the next time

Packages for this system are made by: cd build && cpack -G DEB
TEXT
}

die() {
  echo "deb_chroot.sh: $*" >&2
  exit 1
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
suite=bookworm mirror='' keyring='' architecture='' cache='' container=no build=no debs=()
words=("$@")
while [ $# -gt 0 ]; do
  case "$1" in
    --help) usage; exit 0 ;;
    --container) container=yes ;;
    --build) build=yes ;;
    --suite | --mirror | --keyring | --cache)
      [ $# -ge 2 ] || die "$1: needs a value"
      case "$1" in
        --suite) suite=$2 ;;
        --mirror) mirror=$2 ;;
        --keyring) keyring=$(realpath "$2") ;;
        --cache) cache=$(realpath -m "$2") ;;
      esac
      shift
      ;;
    -*) die "$1: unknown option; see --help" ;;
    *) debs+=("$(realpath "$1")") ;;
  esac
  shift
done
[ $build = yes ] || [ ${#debs[@]} -gt 0 ] || die "no packages given (see --help)"

# shellcheck source=tests/install/minimal_system.sh
. "$here/minimal_system.sh"
go_apart "${words[@]}"
root=$APART/root
choose_mirror
case $suite in
  bookworm | trixie) components=main ;;
  *) components=main,universe ;; # Ubuntu
esac

list_files() { # without what apt, dpkg and caches write for themselves
  (cd "$root" && find . -xdev \( -path ./home -o -path ./tmp -o -path ./proc -o -path ./sys -o -path ./dev -o -path ./var/cache -o -path ./var/log \
    -o -path ./var/lib/apt -o -path ./var/lib/dpkg \) -prune -o -print | LC_ALL=C sort)
}

if [ $build = yes ]; then
  echo "== packages made on $suite from $mirror"
  root=$APART/builder
  make_system
  mkdir "$root/tmp/source"
  git -C "$here/../.." archive HEAD | tar -x -C "$root/tmp/source"
  inside sh -c "apt-get -qq -y install --no-install-recommends dpkg-dev file python3 && bash /tmp/source/experiments/setup.sh" \
    >"$APART/apt.log" 2>&1 ||
    { tail -n 20 "$APART/apt.log"; die "what is needed to build cannot be installed"; }
  inside bash -c 'cd /tmp/source && cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DDP_TESTS=OFF &&
    cmake --build build && cd build && cpack -G DEB' >"$APART/build.log" 2>&1 ||
    { tail -n 40 "$APART/build.log"; die "the packages cannot be built"; }
  mkdir "$APART/debs"
  cp "$root"/tmp/source/build/*.deb "$APART/debs/"
  debs=("$APART"/debs/*.deb)
  root=$APART/root
fi

echo "== a minimal $suite from $mirror"
make_system

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
inside apt-get -qq -y --no-install-recommends satisfy "${needs[@]}" man-db gcc libc6-dev pkg-config >"$APART/apt.log" 2>&1 ||
  { tail -n 20 "$APART/apt.log"; die "apt-get could not install: ${needs[*]}"; }
list_files >"$APART/before"

echo "== apt-get install ./*.deb"
inside sh -c 'apt-get -qq -y install /tmp/debs/*.deb' >"$APART/apt.log" 2>&1 ||
  { tail -n 20 "$APART/apt.log"; die "the packages cannot be installed"; }
list_files | comm -13 "$APART/before" - >"$APART/installed"
echo "$(wc -l <"$APART/installed") files and folders"

echo "== as an ordinary user"
as_user 'mpirun -np 4 dptrain --compress q8 --limit-train 512 --limit-test 128 --epochs 1 --log run.h5' | tail -n 12
as_user 'dpreport run.h5' | head -n 12
as_user 'man dptrain | head -n 4; for p in dptrun dpbench dptrain-pack dplab dpreport dpsweep dptrain-weights dptrain-get-cifar; do man $p >/dev/null || exit 1; done'
as_user 'dptrun -np 2 -- dptrain --limit-train 64 --limit-test 32 --epochs 1 --checkpoint checkpoints --log restarts.h5 | tail -n 1'
as_user 'for p in dptrain dptrun dpbench dptrain-pack; do $p --version | head -n 1; done'
as_user 'dpsweep /usr/share/dptrain/experiments/exchange.ini --small --list | head -n 2'
as_user '. /usr/share/bash-completion/completions/dptrain; COMP_WORDS=(dptrain --topo); COMP_CWORD=1; _dptrain; echo "${COMPREPLY[@]}"'
if inside test -e /usr/include/dptrain_comm.h; then
  as_user 'printf "#include <dptrain_comm.h>\n#include <stdio.h>\nint main(void) { return puts(dptrain_comm_version()) < 0; }\n" >a.c
    cc a.c $(pkg-config --cflags --libs dptrain_comm) && ./a.out'
fi

echo "== apt-get purge"
inside apt-get -qq -y purge "${names[@]}" >"$APART/apt.log" 2>&1 ||
  { tail -n 20 "$APART/apt.log"; die "the packages cannot be removed"; }
list_files >"$APART/after"
diff "$APART/before" "$APART/after" || die "this was left behind, or is missing"
echo "deb_chroot.sh: installed, used and removed on $suite; nothing is left"
[ $container = yes ] || exit 0

echo "== the Containerfile's steps"
user=root folder=/ settings=()
in_container() { # COMMAND LINE
  local id=0 home=/root
  [ "$user" = root ] || { id=$(chroot "$root" id -u "$user"); home=/home/$user; }
  chroot "$root" setpriv --reuid "$id" --regid "$id" --clear-groups env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME="$home" USER="$user" \
    DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "${settings[@]}" sh -c "cd $folder && $1"
}
inside userdel --remove tester 2>/dev/null
while read -r word rest; do
  case $word in
    '' | '#'* | FROM) ;;
    COPY) cp "${debs[@]}" "$root/tmp/" ;;
    RUN) in_container "$rest" >"$APART/run.log" 2>&1 ||
      { tail -n 20 "$APART/run.log"; die "RUN $rest"; } ;;
    ENV) read -r -a settings <<<"$rest" ;;
    USER) user=$rest ;;
    WORKDIR) folder=$rest ;;
    CMD) in_container "$(tr -d '[],"' <<<"$rest") --limit-train 512 --limit-test 128 --epochs 1" | tail -n 3 ;;
    *) die "Containerfile: $word is not known here" ;;
  esac
done <"$here/../../experiments/container/Containerfile"
in_container 'ssh-keygen -q -t ecdsa -N "" -f .ssh/id_rsa && cp .ssh/id_rsa.pub .ssh/authorized_keys'
in_container 'exec /usr/sbin/sshd -De -f /etc/ssh/sshd_config_trainer' 2>"$APART/sshd.log" &
for _ in $(seq 50); do
  in_container 'ssh localhost true' 2>/dev/null && break
  sleep 0.2
done
in_container 'ssh localhost dptrain --version' || { cat "$APART/sshd.log"; die "no login by ssh"; }
in_container "mpirun --host localhost:2 --mca plm_rsh_no_tree_spawn 1 dptrain --limit-train 64 --limit-test 32 --epochs 1 --log none" | tail -n 1
echo "deb_chroot.sh: the container's steps work on $suite"
