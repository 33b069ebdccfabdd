#!/usr/bin/env bash
# failure_test.sh CASE MPIEXEC VICTIM [TOPOLOGY]: four real ranks, one of which stops, dies or fails; the job must end
# in time, with the right exit code and a message that names the culprit.
set -euo pipefail
what=$1 mpiexec=$2 victim=$3 topology=${4:-ring}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
  echo "FAILED ($what): $1"
  echo "--- what the job said:"
  cat "$folder/out"
  exit 1
}

"$mpiexec" -np 4 "$victim" "$what" "$folder" "$topology" >"$folder/out" 2>&1 &
job=$!
began=$SECONDS

if [[ $what == stop || $what == kill ]]; then
  for _ in $(seq 300); do
    if [[ -f $folder/2 ]]; then break; fi
    sleep 0.1
  done
  [[ -f $folder/2 ]] || fail "rank 2 never came to its twentieth step"
  kill "-${what^^}" "$(cat "$folder/2")"
fi

code=0
wait "$job" || code=$?
echo "ended after $((SECONDS - began)) s with exit code $code"
((SECONDS - began < 40)) || fail "took too long"

expect_code() { ((code == $1)) || fail "exit code $code, not $1"; }
expect_text() { grep -qE -- "$1" "$folder/out" || fail "nobody said: $1"; }
expect_one_voice() {
  local n
  n=$(grep -c '^victim: ' "$folder/out" || true)
  ((n == 1)) || fail "$n messages where one would do"
}

case $what in
  stop)
    expect_code 4
    where='the exchange of bucket [01]'
    [[ $topology != gather ]] || where="($where|gathering [0-9]+ of all ranks' statistics [(]batch normalisation[)])"
    expect_text "^victim: rank 2 on host [^ ]+ has been silent for [0-9]+ s in $where in step [0-9]+: "
    expect_one_voice
    ;;
  kill)
    ((code != 0)) || fail "exit code 0"
    expect_text 'rank 2 '
    ;;
  throw)
    expect_code 5
    expect_text '^victim: rank 1 is out of memory \(reported by rank 1 on host'
    expect_one_voice
    ;;
  agree)
    expect_code 3
    expect_text '^victim: no pictures on rank 1$'
    expect_one_voice
    ;;
  late)
    expect_code 0
    ;;
  throttle)
    expect_code 3
    expect_text '^victim: the run diverges$'
    expect_one_voice
    ;;
  damage)
    expect_code 4
    expect_text '^victim: a message of bucket 0 in step 31 was damaged on the way between rank 1 and rank 2 [(]both on host [^ ]+[)]: '
    expect_one_voice
    ;;
  flip)
    expect_code 4
    where='a message of bucket 0 in step 30'
    [[ $topology != gather ]] || where="gathering 30 of all ranks' statistics [(]batch normalisation[)]"
    to='[023]'
    [[ $topology != ring ]] || to=2
    expect_text "^victim: $where was damaged on the way between rank 1 and rank $to [(]both on host [^ ]+[)]: its checksum"
    expect_one_voice
    ;;
  foreign)
    expect_code 4
    expect_text '^victim: rank 2 received message'
    expect_one_voice
    ;;
  payload)
    expect_code 4
    expect_text "^victim: rank 2 cannot decode rank 1's message of bucket 0 in step 31: a q8:[^ ]* payload "
    expect_one_voice
    ;;
  *) fail "unknown case" ;;
esac
cat "$folder/out"
