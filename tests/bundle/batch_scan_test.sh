#!/usr/bin/env bash
# The batch-size scan: its table, its end, going on, bad input:  batch_scan_test.sh DPTRAIN
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# The scan takes the program of the folder in which it lies.
mkdir -p "$scratch/place/bin" "$scratch/place/experiments"
ln -s "$program" "$scratch/place/bin/dptrain"
cp "$here/../../experiments/batch_scan.sh" "$scratch/place/experiments/"
cd "$scratch"

failures=0
check() { # name, expected exit code, glob of the output, options
  local name=$1 expected=$2 glob=$3 code=0
  shift 3
  place/experiments/batch_scan.sh "$@" >out 2>&1 </dev/null || code=$?
  # shellcheck disable=SC2053
  if [ $code -ne "$expected" ] || ! [[ $(<out) == $glob ]]; then
    echo "FAILED $name: exit code $code, expected $expected and '$glob':"
    sed 's/^/  | /' out
    failures=$((failures + 1))
  fi
}

tiny=(--out scan --device cpu --model resnet20 --limit-train 96 --limit-test 8 --lr 0.01 --threads 1 --autotune off)
check scan 0 $'*\n      16 *\n      64 *\n      96 *\n\nscan ended: the batch is the whole data set (96 images)*' --first 16 "${tiny[@]}"
stat -c '%n %y' scan/*.h5 >before
check "a second call repeats nothing" 0 '*scan ended: the batch is the whole*' --first 16 "${tiny[@]}"
stat -c '%n %y' scan/*.h5 | cmp before - || failures=$((failures + 1))
rm scan/batch-64.txt
check "it goes on" 0 $'*\n      64 *scan ended: the batch is the whole*' --first 16 "${tiny[@]}"
check "first batch above the data set" 0 $'*\n     512 *\n\nscan ended: the batch is the whole*' --first 512 "${tiny[@]}" --out other
# Links that somebody has put under names that the scan writes to lead nowhere.
echo precious >victim
mkdir planted
for name in batch-96.txt.part batch-96.h5.part options.txt.part batch-96.failed; do ln -s ../victim "planted/$name"; done
ln -s ../nowhere planted/options.txt
check "links" 0 $'*\n      96 *scan ended: the batch is the whole*' --first 96 "${tiny[@]}" --out planted
if [ "$(<victim)" != precious ] || [ -e nowhere ] || [ -L planted/options.txt ] || [ -n "$(find planted -name '.*' -type f)" ]; then
  echo "FAILED links: one was followed, or something unfinished is left:" && ls -lA planted
  failures=$((failures + 1))
fi
check "other options" 2 '*scan holds a scan with other options*' --first 32 "${tiny[@]}"
check "set by the scan" 2 '*--batch-size: is set by the scan itself*' --batch-size 8
check "not a number" 2 '*--first nan: must be a whole number from 1 to 65536*' --first nan
check "no value" 2 '*--out: needs a value*' --out
check "an option that dptrain does not know" 2 '*scan ended: batch 32 failed with exit code 2: --modle: unknown option*' --out bad --modle x
# A device whose memory is full, played by a script: dptrain's own words end the scan.
rm place/bin/dptrain
cat >place/bin/dptrain <<'TEXT'
#!/bin/sh
echo "dptrain: out of memory: the activations of 32 images take 153.0 GiB and 139.0 GiB are free" >&2
exit 5
TEXT
chmod +x place/bin/dptrain
check "memory full" 0 '*scan ended: batch 32: out of memory: the activations of 32 images take 153.0 GiB*' --out full
sed -i 's/exit 5/exit 70/' place/bin/dptrain
check "another failure" 70 '*scan ended: batch 32 failed with exit code 70*' --out failed
mkdir linked && ln -s ../victim linked/batch-32.failed
check "a failure beside a link" 70 '*scan ended: batch 32 failed with exit code 70*' --out linked
[ "$(<victim)" = precious ] && [ ! -L linked/batch-32.failed ] || failures=$((failures + 1))
exit $((failures > 0))
