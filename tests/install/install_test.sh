#!/usr/bin/env bash
# What `cmake --install` and `cpack` make of a build:  install_test.sh CMAKE BUILD MPIRUN CASE
# Cases: programs, manual, packages, cluster. Exit codes: 0 as expected, 1 not so, 77 what a case needs is not there.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cmake=$1 build=$2 mpirun=$3 name=$4
programs=(dptrain dptrun dpbench dptrain-pack)
tools=(dplab dpreport dpsweep dptrain-weights dptrain-get-cifar)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
  echo "install_test.sh: $*" >&2
  exit 1
}

installed() { # COMPONENT...
  local component
  for component in "$@"; do
    "$cmake" --install "$build" --component "$component" --prefix "$folder/prefix" >>"$folder/log"
  done
  export PATH="$folder/prefix/bin:$PATH"
}

of_installed_files() {
  installed programs
  local program found
  # Nothing points into the build.
  for program in "${programs[@]}"; do
    found=$(objdump -p "$folder/prefix/bin/$program" | grep -E 'RPATH|RUNPATH' || true)
    [ -z "$found" ] || fail "$program: $found"
  done
  [ -z "$(find "$folder/prefix" -name __pycache__)" ] || fail "compiled Python is installed"

  cd "$folder"
  "$mpirun" -np 2 "$folder/prefix/bin/dptrain" --model resnet20 --limit-train 32 --limit-test 16 --batch-size 8 --epochs 1 \
    --threads 1 --autotune off --compress q8 --log run.h5 >trained
  grep -q 'The log is run.h5' trained || fail "dptrain printed: $(tail -n 3 trained)"
  found=$(/usr/bin/python3 -c 'import h5py; print("dptrain", h5py.File("run.h5").attrs["dptrain_version"])' 2>&1)
  [ "$found" = "$(dptrain --version | sed -n 1p)" ] || fail "the log says $found"
  dpreport run.h5 >reported
  grep -q resnet20 reported || fail "dpreport printed: $(head -n 3 reported)"
  dpsweep "$folder/prefix/share/dptrain/experiments/exchange.ini" --small --list >listed
  grep -q '^missing' listed || fail "dpsweep printed: $(head -n 3 listed)"
  dplab --help >helped
  grep -q 'dplab up' helped || fail "dplab --help"
  # Messages name scripts as they are called when they are installed.
  found=$(dptrain --dataset cifar10 2>&1) && fail "--dataset cifar10 without a folder"
  [[ $found == *' dptrain-get-cifar downloads them'* ]] || fail "dptrain printed: $found"
  found=$(dptrain-get-cifar --help)
  [[ $found == 'Usage: dptrain-get-cifar cifar10|'* ]] || fail "dptrain-get-cifar printed: $found"
  # The tools find the programs that were installed with them.
  found=$(cd "$folder/prefix/share/dptrain/experiments" &&
    python3 -B -c 'from lab.programs import programs_folder; print(programs_folder())')
  [ "$found" -ef "$folder/prefix/bin" ] || fail "the tools look for programs in $found"
}

of_pages_and_completions() {
  installed programs texts
  local program page bash_words zsh_words option missing=()
  for program in "${programs[@]}" "${tools[@]}"; do
    page=$folder/prefix/share/man/man1/$program.1
    [ -s "$page" ] || fail "there is no page of $program"
    if command -v mandoc >/dev/null; then
      mandoc -T lint -W warning "$page" >"$folder/lint" || fail "$(cat "$folder/lint")"
    fi
    if command -v man >/dev/null; then
      LC_ALL=C.UTF-8 MANWIDTH=80 man --warnings -l "$page" >"$folder/$program" 2>"$folder/lint"
      [ ! -s "$folder/lint" ] || fail "$program.1: $(cat "$folder/lint")"
    fi
    bash -n "$folder/prefix/share/bash-completion/completions/$program"
    if command -v zsh >/dev/null; then zsh -n "$folder/prefix/share/zsh/site-functions/_$program"; fi
  done
  # Every option of --help is on the page and in both completions.
  for program in "${programs[@]}" "dpbench layers" "dpbench codec" "dpbench exchange" dpreport dpsweep "dplab up"; do
    page=$(<"$folder/prefix/share/man/man1/${program%% *}.1")
    bash_words=$(<"$folder/prefix/share/bash-completion/completions/${program%% *}")
    zsh_words=$(<"$folder/prefix/share/zsh/site-functions/_${program%% *}")
    # The program's name and a command are two words.
    # shellcheck disable=SC2086
    for option in $({ $program --help; [ "$program" != dptrain ] || dptrain --help all; } | grep -oE '^ +(-h, )?--[a-z0-9-]+' | grep -oE -- '--[a-z0-9-]+'); do
      [[ $page == *"${option//-/\\-}\\fR"* ]] || missing+=("$program.1 $option")
      [[ " $bash_words " == *[\ \']"$option"[\ \']* ]] || missing+=("bash: $program $option")
      [[ $zsh_words == *"'${option}["* || $zsh_words == *"'$option="* || $zsh_words == *"'$option:"* ]] ||
        missing+=("zsh: $program $option")
    done
  done
  [ ${#missing[@]} -eq 0 ] || fail "${missing[*]}"

  complete_words() { # FUNCTION WORD...: what is offered for the last word
    local function=$1
    shift
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    "$function"
    echo "${COMPREPLY[*]}"
  }
  local script
  for script in "$folder"/prefix/share/bash-completion/completions/*; do
    # shellcheck source=/dev/null
    . "$script"
  done
  expect() { # WORDS FUNCTION WORD...
    local found
    found=$(complete_words "${@:2}")
    [ "$found" = "$1" ] || fail "${*:3}: offered '$found', expected '$1'"
  }
  expect '--topology' _dptrain dptrain --topo
  expect 'ring' _dptrain dptrain --topology ri
  expect 'on off' _dptrain dptrain --overlap = ''
  expect 'airbench94' _dptrain dptrain --model air
  expect 'q8 q8n' _dptrain dptrain --compress q8
  expect 'layers' _dpbench dpbench la
  expect '--image-size' _dpbench dpbench layers --im
  expect 'powersgd' _dpbench dpbench codec pow
  expect '--hostfile' _dptrun dptrun --hostf
  expect 'dptrain' _dptrun dptrun -np 2 -- ''
  expect 'direct' _dptrun dptrun -np 2 -- dptrain --topology di
  expect 'netem' _dplab dplab up --filter ne
  expect 'cifar10 cifar100' _dptrain_get_cifar dptrain-get-cifar cif
  expect 'to-torch' _dptrain_weights dptrain-weights to
  if command -v zsh >/dev/null; then
    zsh -f "$here/complete.zsh" "$folder/prefix/share/zsh/site-functions" >"$folder/zsh" || fail "$(cat "$folder/zsh")"
  fi
  cd "$folder"
  touch run.h5
  expect 'run.h5' _dptrain dptrain --init ru
  expect 'run.h5' _dpreport dpreport ru
}

of_packages() {
  if ! command -v dpkg-deb >/dev/null || ! command -v dpkg-shlibdeps >/dev/null; then
    echo "skipped: needs dpkg-dev"
    exit 77
  fi
  local deb file content
  # The quickest compression.
  (cd "$build" && "${cmake%/*}/cpack" -G DEB -B "$folder/debs" -D CPACK_DEBIAN_COMPRESSION_TYPE=gzip) >"$folder/log" 2>&1 ||
    { cat "$folder/log"; fail "cpack failed"; }
  cd "$folder/debs"
  [ "$(for deb in ./*.deb; do dpkg-deb -f "$deb" Package; done | tr '\n' ' ')" = 'dptrain libdptrain-comm-dev libdptrain-comm0 ' ] ||
    fail "$(echo ./*.deb)"
  content=$(dpkg-deb -c dptrain_*.deb | awk '{ print $6 }')
  for file in "${programs[@]/#/bin/}" "${tools[@]/#/bin/}" "${programs[@]/#/share/bash-completion/completions/}" \
    share/zsh/vendor-completions/_dptrain share/man/man1/dptrain.1.gz share/man/man1/dplab.1.gz \
    share/doc/dptrain/copyright share/doc/dptrain/changelog.gz share/dptrain/experiments/get_cifar.sh \
    share/doc/dptrain/examples/cluster/slurm.sbatch; do
    grep -qxF "./usr/$file" <<<"$content" || fail "dptrain has no /usr/$file"
  done
  ! grep -vE '^\./usr/(bin|share)/|^\./(usr/)?$' <<<"$content" || fail "dptrain has files elsewhere"
  [[ $(dpkg-deb -f dptrain_*.deb Depends) == *openmpi-bin*python3*libhdf5*libopenmpi* ]] || fail "$(dpkg-deb -f dptrain_*.deb Depends)"
  content=$(dpkg-deb -c libdptrain-comm0_*.deb | awk '{ print $6 }')
  grep -qE '^\./usr/lib/[^/]+-linux-gnu/libdptrain_comm\.so\.0$' <<<"$content" || fail "$content"
  content=$(dpkg-deb -c libdptrain-comm-dev_*.deb | awk '{ print $6 }')
  for file in '/include/dptrain_comm\.h' '/libdptrain_comm\.so' '/cmake/dptrain/dptrainConfig\.cmake' '/pkgconfig/dptrain_comm\.pc'; do
    grep -qE "$file\$" <<<"$content" || fail "libdptrain-comm-dev has no file ...$file"
  done
  # Another project finds the library where the two packages put it.
  dpkg-deb -x libdptrain-comm0_*.deb "$folder/root"
  dpkg-deb -x libdptrain-comm-dev_*.deb "$folder/root"
  mkdir "$folder/foreign"
  cat >"$folder/foreign/CMakeLists.txt" <<'PROJECT'
cmake_minimum_required(VERSION 3.16)
project(foreign LANGUAGES C)
find_package(dptrain REQUIRED)
add_executable(program program.c)
target_link_libraries(program PRIVATE dptrain::comm)
PROJECT
  cat >"$folder/foreign/program.c" <<'PROGRAM'
#include <dptrain_comm.h>
#include <stdio.h>
int main(void) { return puts(dptrain_comm_version()) < 0; }
PROGRAM
  {
    "$cmake" -S "$folder/foreign" -B "$folder/foreign/build" -DCMAKE_PREFIX_PATH="$folder/root/usr"
    "$cmake" --build "$folder/foreign/build"
  } >"$folder/log" 2>&1 || { cat "$folder/log"; fail "the packages' library cannot be used"; }
  [ "$("$folder/foreign/build/program")" = "$(dpkg-deb -f libdptrain-comm0_*.deb Version | cut -d - -f 1)" ] ||
    fail "the packages' library says $("$folder/foreign/build/program")"
  if command -v lintian >/dev/null; then
    # A first upload closes a request for a package in Debian itself, which these are not for. CPack calls ldconfig in
    # scripts beside the trigger.
    lintian --allow-root --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs,maintscript-calls-ldconfig \
      ./*.deb ||
      fail "lintian has complaints"
  fi
}

# The job of Slurm with stand-ins for dptrun and scontrol, and the job of Kubernetes.
of_cluster_files() {
  local code requeued cluster=$here/../../experiments/cluster
  mkdir "$folder/stand-ins"
  cat >"$folder/stand-ins/dptrun" <<'STAND_IN'
#!/bin/bash
echo "$*" >words
trap 'exit 75' USR1
touch ready
[ "${ENDS_WITH:-}" = '' ] || exit "$ENDS_WITH"
for _ in {1..200}; do sleep 0.05; done
STAND_IN
  printf '#!/bin/sh\necho "$*" >>requeued\n' >"$folder/stand-ins/scontrol"
  chmod 755 "$folder"/stand-ins/*
  cd "$folder"
  export PATH="$folder/stand-ins:$PATH" SLURM_JOB_ID=17
  for code in 0 3 75; do
    rm -f requeued
    requeued=''
    ENDS_WITH=$code bash "$cluster/slurm.sbatch" --epochs 2 >out && found=0 || found=$?
    [ ! -e requeued ] || requeued=$(<requeued)
    case $code in
      75) [ "$found $requeued" = '0 requeue 17' ] || fail "after exit code 75: $found, '$requeued'" ;;
      *) [ "$found $requeued" = "$code " ] || fail "after exit code $code: $found, '$requeued'" ;;
    esac
  done
  [[ $(<words) == '--signal USR1 '*'-- dptrain '*' --checkpoint checkpoints-17 --resume --epochs 2' ]] || fail "dptrun got $(<words)"
  rm -f requeued ready
  bash "$cluster/slurm.sbatch" >out &
  local job=$!
  while [ ! -e ready ]; do sleep 0.02; done
  kill -USR1 $job
  wait $job || fail "after SIGUSR1: $?"
  [ "$(<requeued)" = 'requeue 17' ] || fail "after SIGUSR1: '$(<requeued)'"

  # The launcher's words are options of dptrun and dptrain.
  /usr/bin/python3 - "$cluster/mpijob.yaml" >words <<'READ' || { echo "skipped: needs python3-yaml"; exit 77; }
import sys
try:
    import yaml
except ImportError:
    sys.exit(77)
job = yaml.safe_load(open(sys.argv[1]))
pods = job["spec"]["mpiReplicaSpecs"]
assert job["apiVersion"] == "kubeflow.org/v2beta1" and set(pods) == {"Launcher", "Worker"}
launcher = pods["Launcher"]["template"]["spec"]["containers"][0]
assert launcher["command"] == ["dptrun"] and all(isinstance(word, str) for word in launcher["args"])
print("\n".join(launcher["args"]))
READ
  local arguments
  mapfile -t arguments <words
  [[ " ${arguments[*]} " == *' -np 4 '*' -- dptrain '* ]] || fail "the launcher's words: ${arguments[*]}"
  while [ "${arguments[0]}" != dptrain ]; do arguments=("${arguments[@]:1}"); done
  "$build/bin/dptrain" "${arguments[@]:1}" --print-config >out || fail "dptrain refuses ${arguments[*]}"
}

case $name in
  cluster) of_cluster_files ;;
  programs) of_installed_files ;;
  manual) of_pages_and_completions ;;
  packages) of_packages ;;
  *) fail "$name: no such case" ;;
esac
