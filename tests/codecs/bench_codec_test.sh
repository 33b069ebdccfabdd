#!/usr/bin/env bash
# dpbench codec on the command line:  bench_codec_test.sh DPBENCH
# What is measured is not looked at, but for how much is sent.
set -uo pipefail

dpbench=$1
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0
fail() {
  printf 'FAILED: %s\n' "$1"
  head -20 "$out/stdout" "$out/stderr"
  failed=1
}

# expect_error MESSAGE WORDS...: that sentence alone, exit code 2.
expect_error() {
  local message=$1
  shift
  "$dpbench" codec "$@" >"$out/stdout" 2>"$out/stderr"
  [ $? -eq 2 ] || fail "exit code of: $*"
  [ "$(cat "$out/stderr")" = "dpbench: $message" ] || fail "message for: $*"
  [ ! -s "$out/stdout" ] || fail "standard output of: $*"
}
expect_error '--size: unknown option; see dpbench codec --help' --size 4
expect_error '--devise: unknown option; did you mean --device?' --devise cpu
expect_error '--mb: needs a value, a number from 0 to 16000' q8 --mb
expect_error '--mb: given twice, as 1 and as 2' --mb 1 --mb 2
expect_error '--mb -1: must be a number from 0 to 16000' --device cuda --mb -1
expect_error '--mb 5: only with --device cuda or auto' --mb 5
expect_error '--device gpu: must be auto, cpu or cuda; did you mean cpu?' --device gpu
expect_error 'codec q8:block=4: block=4 must be a multiple of 8 from 8 to 16384' none q8:block=4
"$dpbench" codec q7 >"$out/stdout" 2>"$out/stderr"
[ $? -eq 2 ] || fail 'exit code of: q7'
case $(cat "$out/stderr") in
  'dpbench: codec q7: unknown codec; known: none, fp16, '*) ;;
  *) fail 'message for: q7' ;;
esac

"$dpbench" codec --help >"$out/stdout" 2>"$out/stderr" || fail 'exit code of --help'
grep -q '^dpbench codec \[options\] \[SPEC\.\.\.\]$' "$out/stdout" || fail 'usage in --help'

# Named codecs alone, in that order, with the bits that a value takes: of threshold's about 0.4,
# which one value in a hundred is, whatever alpha.
"$dpbench" codec q4:block=256 powersgd threshold threshold:alpha=7 ecq:bits=0.35 >"$out/stdout" 2>"$out/stderr" ||
  fail 'exit code of a bench'
names=$(tail -n +3 "$out/stdout" | awk '{ print $1 }' | tr '\n' ' ')
[ "$names" = 'q4:block=256 powersgd threshold threshold:alpha=7 ecq:bits=0.35 ' ] || fail "codecs: $names"
awk '
  $1 == "q4:block=256" { good += $2 > 4.1 && $2 < 4.2 && NF == 8 }
  $1 == "powersgd" { good += $0 ~ /is a whole exchange: dpbench exchange measures it$/ }
  $1 ~ /^threshold/ { good += $2 > 0.3 && $2 < 0.5 && NF == 8 }
  $1 ~ /^ecq/ { good += $2 > 0.34 && $2 < 0.36 && NF == 8 }
  END { exit good == 5 ? 0 : 1 }' "$out/stdout" || fail 'what is sent'

exit $failed
