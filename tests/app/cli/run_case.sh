#!/usr/bin/env bash
# Runs one case of cases.txt:  run_case.sh DPTRAIN MPIRUN CASE
# Exit codes: 0 as expected, 1 not so, 77 skipped (the case does not apply here).
set -uo pipefail

program=$1 mpirun=$2 name=$3
cases=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/cases.txt
case $program in */*) program=$(cd "$(dirname "$program")" && pwd)/$(basename "$program") ;; esac

# As root or not, with fewer cores than ranks or not.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none

# The words of the cases.
dptrain() { "$program" "$@"; }                       # one rank, without mpirun
ranks() { "$mpirun" -np "$1" "$program" "${@:2}"; }  # that many ranks
dpbench() { "${program%/*}/dpbench" "$@"; }          # it is beside dptrain
pack() { "${program%/*}/dptrain-pack" "$@"; }
dptrun() { "${program%/*}/dptrun" "$@"; }
bench_ranks() { "$mpirun" -np "$1" "${program%/*}/dpbench" "${@:2}"; }
tiny() {                                             # a run of a second or two
  "$program" --model resnet20 --limit-train 16 --limit-test 8 --batch-size 8 --epochs 1 \
    --threads 1 --autotune off "$@"
}
small_maps() {                                       # the same of a network with maps of 1x1
  "$program" --model resnet18-imagenet --limit-test 2 --epochs 1 --threads 1 --autotune off "$@"
}
cifar10() {  # a folder in CIFAR-10's binary layout: 8 images a file, all of class 0
  mkdir -p "$1"
  local file
  for file in data_batch_{1..5} test_batch; do
    head -c $((8 * 3073)) /dev/zero >"$1/$file.bin"
  done
}
not_root() { [ "$(id -u)" -ne 0 ] || exit 77; }
without_sanitizers() { [ -z "${DP_SANITIZE:-}" ] || exit 77; }  # AddressSanitizer maps more than ulimit -v
without_cuda() { [ "${DP_HAVE_CUDA:-OFF}" = OFF ] || exit 77; }

commands='' expected_exit='' stderr_globs=() stdout_globs=() leaves=() is_here=no
while IFS= read -r line; do
  case $line in
    "case $name") is_here=yes ;;
    'case '*) is_here=no ;;
    *)
      [ $is_here = yes ] || continue
      case $line in
        'run '*) commands=${line#run } ;;
        'exit '*) expected_exit=${line#exit } ;;
        'stderr '*) stderr_globs+=("${line#stderr }") ;;
        'stdout '*) stdout_globs+=("${line#stdout }") ;;
        'leaves '*) leaves+=("${line#leaves }") ;;
        '' | '#'*) ;;
        *) echo "$cases: $name: not understood: $line"; exit 1 ;;
      esac
      ;;
  esac
done <"$cases"
if [ -z "$commands" ] || [ -z "$expected_exit" ]; then
  echo "$cases: there is no case $name, or it has no run or exit line"
  exit 1
fi

folder=$(mktemp -d)
trap 'chmod -R u+w "$folder"; rm -rf "$folder"' EXIT
mkdir "$folder/work"
(cd "$folder/work" && eval "$commands") >"$folder/stdout" 2>"$folder/stderr" </dev/null
code=$?
[ $code -ne 77 ] || { echo "skipped: $name does not apply here"; exit 77; }

failures=()
[ $code -eq "$expected_exit" ] || failures+=("exit code $code, expected $expected_exit")
# The globs are meant as patterns, so they stand without quotes.
for glob in ${stderr_globs[@]+"${stderr_globs[@]}"}; do
  # shellcheck disable=SC2053
  [[ $(<"$folder/stderr") == $glob ]] || failures+=("stderr does not match: $glob")
done
for glob in ${stdout_globs[@]+"${stdout_globs[@]}"}; do
  # shellcheck disable=SC2053
  [[ $(<"$folder/stdout") == $glob ]] || failures+=("stdout does not match: $glob")
done
if [ "$expected_exit" -ne 0 ]; then
  # What does not end a run is told besides.
  messages=$(grep -v '; training goes on' "$folder/stderr" | grep -c -E '^(dptrain|dpbench|dptrain-pack|dptrun): ')
  [ "$messages" -eq 1 ] || failures+=("$messages lines begin with a program's name, expected 1")
fi
for file in ${leaves[@]+"${leaves[@]}"}; do
  if [[ $file == 'no '* ]]; then
    found=$(cd "$folder/work" && compgen -G "${file#no }")
    [ -z "$found" ] || failures+=("left behind: $found")
  else
    (cd "$folder/work" && compgen -G "$file" >/dev/null) || failures+=("not there: $file")
  fi
done

[ ${#failures[@]} -gt 0 ] || exit 0
printf '%s: %s\n' "$name" "$commands"
printf '  %s\n' "${failures[@]}"
echo "--- stdout"
cat "$folder/stdout"
echo "--- stderr"
cat "$folder/stderr"
exit 1
