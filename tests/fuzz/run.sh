#!/usr/bin/env bash
# Fuzzes what reads bytes that others have made. See --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: tests/fuzz/run.sh [SECONDS] [TARGET...]

Builds libFuzzer's programs in build-fuzz/ (clang, AddressSanitizer, UBSan; needs the
packages clang, libclang-rt-14-dev and libomp-14-dev) and runs as many of them at a time
as there are cores, each for SECONDS (default: 3600) or until its first finding. Without
TARGET all of them, which CMakeLists.txt lists: tests/fuzz/run.sh 600 shard payload

Inputs that reach new code are kept in build-fuzz/corpus/TARGET, where the next run goes
on. The last lines are a table: executions, inputs kept, findings. The input of a finding
is build-fuzz/findings/TARGET-*; build-fuzz/bin/fuzz_TARGET FILE shows it again.
Exit code: 0 nothing was found, 1 something was, 2 a wrong command line.
TEXT
}

die() {
  echo "run.sh: $*" >&2
  exit 2
}

# Runs one target; its output goes to a log. The limit of time is by the clock, and other programs may
# keep the machine busy.
run_target() {
  local target=$1 corpus=build-fuzz/corpus/$1
  mkdir -p "$corpus"
  DP_FUZZ_SEEDS=$corpus "build-fuzz/bin/fuzz_$target" -max_total_time="$seconds" -timeout=600 \
    -report_slow_units=60 -rss_limit_mb=2048 -malloc_limit_mb=128 -print_final_stats=1 \
    -artifact_prefix="build-fuzz/findings/$target-" "$corpus" > "build-fuzz/findings/$target.log" 2>&1 || true
}

seconds=3600
case "${1:-}" in
  --help) usage; exit 0 ;;
  [0-9]*) seconds=$1; shift ;;
esac
[[ $seconds =~ ^[1-9][0-9]*$ ]] || die "SECONDS must be a whole number above 0, not $seconds"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
read -ra known < <(sed -n 's/.*foreach(target \(.*\))/\1/p' tests/fuzz/CMakeLists.txt)
targets=("$@")
[ $# -gt 0 ] || targets=("${known[@]}")
for target in "${targets[@]}"; do
  [[ " ${known[*]} " == *" $target "* ]] || die "no target $target; there are: ${known[*]}"
done

[ -f build-fuzz/build.ninja ] || cmake --preset fuzz
cmake --build build-fuzz --target "${targets[@]/#/fuzz_}"
mkdir -p build-fuzz/findings
touch build-fuzz/findings/begin
export -f run_target
export seconds
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'run_target {}'

found=0
printf '%-12s %12s %8s %9s\n' target executions inputs findings
for target in "${targets[@]}"; do
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "build-fuzz/findings/$target.log")
  findings=$(find build-fuzz/findings -name "$target-*" -newer build-fuzz/findings/begin | wc -l)
  [ -n "$executions" ] && [ "$findings" = 0 ] || found=1
  printf '%-12s %12s %8s %9s\n' "$target" "${executions:-"see log"}" \
    "$(find "build-fuzz/corpus/$target" -type f | wc -l)" "$findings"
done
exit $found
