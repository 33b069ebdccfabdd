#!/usr/bin/env bash
# The bundle runs by unpacking:  bundle_test.sh ARCHIVE here|bare ON|OFF
#   here     in an empty folder with a space in its name, with an empty environment
#   bare     the same in a root folder that holds glibc, a shell and coreutils alone, so that a library
#            which the bundle lacks is missed; this glibc has no functions that came after 2.34. Needs root and
#            the right to mount
#   ON|OFF   whether the CUDA backend was built
# Exit codes: 0 as expected, 1 not so, 77 skipped.
set -euo pipefail

archive=$1 place=$2 have_cuda=$3
skip() {
  echo "skipped: $*"
  exit 77
}
[ -f "$archive" ] || skip "$archive is not there: cmake --build BUILD --target bundle"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

run() { env -i PATH=/usr/bin:/bin HOME=/tmp "$@"; } # COMMAND: in the bundle's folder
if [ "$place" = bare ]; then
  [ "$(id -u)" -eq 0 ] || skip "a bare root folder needs root"
  unshare --mount true 2>/dev/null || skip "a bare root folder needs the right to mount"
  bare=$scratch/root
  # Debian 12 and later have one /usr; the loader's place is /lib64.
  mkdir -p "$bare"/{usr/bin,usr/lib64,usr/lib/x86_64-linux-gnu,tmp,proc,dev,sys,etc}
  ln -s usr/bin "$bare/bin"
  ln -s usr/lib "$bare/lib"
  ln -s usr/lib64 "$bare/lib64"
  echo 'root:x:0:0:root:/tmp:/bin/sh' >"$bare/etc/passwd"
  tools=(/bin/sh /bin/bash)
  for tool in basename cat chmod dirname env ls mkdir readlink rm; do tools+=("$(command -v "$tool")"); done
  for tool in "${tools[@]}"; do cp -L "$tool" "$bare/usr/bin/"; done
  loader=$(readlink -f /lib64/ld-linux-x86-64.so.2)
  cp "$loader" "$bare/usr/lib64/ld-linux-x86-64.so.2"
  libraries=$(dirname "$loader")
  for library in libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libutil.so.1 libresolv.so.2 \
    libnss_files.so.2 libnss_dns.so.2 libmvec.so.1; do
    cp -L "$libraries/$library" "$bare/usr/lib/x86_64-linux-gnu/"
  done
  # As in glibc 2.34: the names of newer functions that the bundle's libraries call are changed.
  sed -i 's/_dl_find_object/_dl_find_objecT/g' "$bare/usr/lib64/ld-linux-x86-64.so.2"
  sed -i 's/arc4random/arc4randoM/g' "$bare/usr/lib/x86_64-linux-gnu/libc.so.6"
  ldd "${tools[@]}" | awk '$2 == "=>" { print $3 }' | sort -u | while IFS= read -r library; do
    [ -e "$bare/usr/lib/x86_64-linux-gnu/${library##*/}" ] || cp -L "$library" "$bare/usr/lib/x86_64-linux-gnu/"
  done
  # None of the tools' own libraries may hide that the bundle lacks one.
  for library in "$bare"/usr/lib/x86_64-linux-gnu/*; do
    case ${library##*/} in
      libmpi* | libopen-* | libpmix* | libhwloc* | libevent* | libstdc++* | libgomp* | libhdf5* | libdnnl*)
        echo "the bare root folder holds $library" && exit 1 ;;
    esac
  done
  unpacked=$bare/tmp/un\ packed
  run() {
    # shellcheck disable=SC2016  # the inner shell's variables
    unshare --mount sh -ec '
      root=$1 && shift
      for folder in proc dev sys; do mount --rbind "/$folder" "$root/$folder"; done
      exec chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/tmp /bin/sh -c \
        "cd \"\$0\" && exec \"\$@\"" "$@"' -- "$bare" "${folder#"$bare"}" "$@"
  }
elif [ "$place" = here ]; then
  unpacked=$scratch/un\ packed
else
  echo "bundle_test.sh: '$place': must be here or bare"
  exit 2
fi
mkdir "$unpacked"
tar -xf "$archive" -C "$unpacked"
folder=$(echo "$unpacked"/*)
[ -d "$folder" ] || { echo "the archive holds more than one folder: $folder"; exit 1; }
cd "$folder"

failures=0
check() { # name, expected exit code, glob that standard output or error must match, command
  local name=$1 expected=$2 glob=$3 code=0
  shift 3
  run "$@" >"$scratch/out" 2>&1 </dev/null || code=$?
  # The glob is meant as a pattern.
  # shellcheck disable=SC2053
  if [ $code -ne "$expected" ] || ! [[ $(<"$scratch/out") == $glob ]]; then
    echo "FAILED $name: $* gave exit code $code, expected $expected and '$glob':"
    sed 's/^/  | /' "$scratch/out"
    failures=$((failures + 1))
  else
    echo "ok     $name"
  fi
}

tiny=(--model resnet20 --limit-train 64 --limit-test 32 --epochs 1 --compress q8 --device cpu --threads 1)
check "version" 0 'dptrain [0-9]*' bin/dptrain --version
[ "$have_cuda" = OFF ] || check "the driver that it needs" 0 '*NVIDIA driver * or later (CUDA *' bin/dptrain --version
check "the same in its README" 0 "*$(run bin/dptrain --version | tail -n 1)*" cat README.txt
check "one rank without mpirun" 0 '*epoch 1/1*' bin/dptrain "${tiny[@]}" --log none
check "two ranks" 0 '*2 ranks*epoch 1/1*' bin/mpirun -np 2 bin/dptrain "${tiny[@]}" --log run.h5
check "the log is there" 0 '*run.h5*' ls run.h5
check "two ranks over TCP" 0 '*q8*' bin/mpirun -np 2 --mca btl tcp,self bin/dpbench exchange --mb 1 --repeats 1 q8
check "restarts" 0 '*2 ranks*epoch 1/1*' bin/dptrun -np 2 -- dptrain "${tiny[@]}" --log none --checkpoint d
check "packs of images" 0 'dptrain-pack FOLDER FILE.h5*' bin/dptrain-pack --help
# Other hosts, played by this one: what ssh would start there gets an empty environment. Such a path may
# hold no space. Each has its own folder for temporary files: two daemons of one job that share theirs write
# one file (hwloc.sm) at the same time, and crash now and then.
if [ "$place" = here ]; then
  mkdir "$scratch/host"
  tar -xf "$archive" -C "$scratch/host"
  there=$(echo "$scratch"/host/*)
  # shellcheck disable=SC2016  # the agent's variables
  printf '%s\n' '#!/bin/sh' "TMPDIR=$scratch/tmp-\$1" 'mkdir "$TMPDIR"' 'shift' \
    'exec env -i PATH=/usr/bin:/bin HOME=/tmp TMPDIR="$TMPDIR" sh -c "$*"' >"$scratch/agent"
  chmod +x "$scratch/agent"
  check "two hosts" 0 '*2 ranks*epoch 1/1*' "$there/bin/mpirun" -np 2 --mca plm_rsh_agent "$scratch/agent" \
    -H one:1,two:1 "$there/bin/dptrain" "${tiny[@]}" --log none
fi
if [ "$have_cuda" = ON ] && [ ! -e /dev/nvidiactl ]; then
  check "no device" 5 '*dptrain: --device cuda: no *' bin/dptrain --device cuda
  # bash is Debian's own, which calls one of the functions that the bare folder's glibc lacks.
  [ ! -x tests/gpu.sh ] || check "gpu.sh without a device" 77 '*no *device*' \
    env LD_PRELOAD=lib/libdp_older_glibc.so bash tests/gpu.sh --out gpu
elif [ "$have_cuda" = OFF ]; then
  check "built without CUDA" 5 '*dptrain: *cuda*' bin/dptrain --device cuda
fi

# Nothing in it looks for libraries where it was built.
if [ "$place" = here ] && command -v objdump >/dev/null 2>&1; then
  while IFS= read -r file; do
    # objdump has nothing to say about scripts.
    # An empty element stands for the current folder.
    paths=$({ objdump -p "$file" 2>/dev/null || true; } | awk '/RPATH|RUNPATH/ { print $2 }')
    if grep -qv "^\$ORIGIN\(/\|\$\)" <(tr : '\n' <<<"$paths") && [ -n "$paths" ]; then
      echo "FAILED $file looks for libraries in $paths"
      failures=$((failures + 1))
    fi
  done < <(find libexec lib -type f)
fi
# On Debian 12, where its libraries come from, it runs with glibc 2.34.
if [ "$place" = here ] && [ "$(. /etc/os-release && echo "$ID $VERSION_ID")" = 'debian 12' ]; then
  while IFS= read -r file; do
    newer=$(readelf -V "$file" 2>/dev/null | grep -E 'Name: GLIBC_2\.(3[5-9]|[4-9][0-9]) ' | grep -v WEAK || true)
    [ -z "$newer" ] || { echo "FAILED $file needs$newer"; failures=$((failures + 1)); }
  done < <(find libexec lib -type f)
fi
bytes=$(stat -c %s "$archive")
if [ "$bytes" -ge $((64 * 1048576)) ]; then
  echo "FAILED $archive has $bytes bytes, 64 MiB are allowed"
  failures=$((failures + 1))
fi
exit $((failures > 0))
