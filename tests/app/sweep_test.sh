#!/usr/bin/env bash
# dpsweep: what is missing is run, what is done is not run again, failures are told and tried again.
#
#     sweep_test.sh DPSWEEP DPTRAIN
set -u
sweep=$1 program=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
failures=0
fail() {
  echo "FAILED: $1"
  cat output
  failures=$((failures + 1))
}
run() { "$sweep" "$@" --dptrain "$program" >output 2>&1; }

cat >study.ini <<'INI'
[study]
ranks = 2
options = --model resnet20 --limit-train 64 --limit-test 32 --epochs 1 --batch-size 16 --autotune off --lr 0.2
[good]
compress = none | q8
lr = 0.1
[bad]
compress = q7
INI
run study.ini --list || fail "--list"
[ "$(grep -c missing output)" = 3 ] || fail "three points are missing"
[ "$(grep -o -- '--lr' output | wc -l)" = 3 ] || fail "no option is given twice"
"$sweep" study.ini --only good-q8 --dptrain "$program" -- --seed 7 >output 2>&1 || fail "options after --"
grep -q -- '--seed 7' results/study/good-q8-0.1.txt || fail "options after -- reach dptrain"
run study.ini --only good-q8
[ $? = 2 ] || fail "a folder with other options is left alone"
rm -r results/study
run study.ini && fail "a failed point is an error"
grep -q 'bad-q7' output || fail "the failed point is named"
for name in good-none-0.1 good-q8-0.1; do
  [ -f "results/study/$name.h5" ] || fail "the log of $name is there"
done
[ ! -e results/study/bad-q7.h5 ] || fail "the failed point has no log"
run study.ini --only good || fail "nothing is left to do"
grep -q '^\[1/' output && fail "nothing runs twice"
# An interrupted point leaves a part, which is thrown away.
mv results/study/good-none-0.1.h5 results/study/good-none-0.1.part.h5
run study.ini --only good || fail "goes on"
grep -q '^\[1/1\] good-none' output || fail "only the interrupted point runs"

cat >links.ini <<'INI'
[study]
ranks = 2
options = --model resnet20 --limit-train 64 --limit-test 32 --epochs 3 --autotune off
small = --epochs 1 --batch-size 16
[a]
ranks = 1 | 3
rate = 1gbit
INI
run links.ini --small --list || fail "--small --list"
grep -q 'missing a-3-1gbit: 3 ranks, links of 1gbit, .*--epochs 1 ' output || fail "ranks, rate and small"
run links.ini --small || fail "a study of links"
for text in 'mpirun -np 3 .*--throttle 1gbit .*--epochs 1 ' '^epoch 1/1 '; do
  grep -q -- "$text" results/links-small/a-3-1gbit.txt || fail "a-3-1gbit: $text"
done

for bad in 'no such file' 'ranks = 0' 'no study' 'no pairs' 'no such key'; do
  printf '[study]\nranks = 2\n[a]\nseed = 1\n' >bad.ini
  case $bad in
    'no such file') rm bad.ini ;;
    'ranks = 0') printf '[study]\nranks = 0\n[a]\nseed = 1\n' >bad.ini ;;
    'no study') printf '[a]\nseed = 1\n' >bad.ini ;;
    'no such key') printf '[study]\nrank = 2\n[a]\nseed = 1\n' >bad.ini ;;
    'no pairs') printf '[study]\noptions = --lr\n[a]\nseed = 1\n' >bad.ini ;;
  esac
  run bad.ini
  [ $? = 2 ] || fail "$bad: exit code 2"
  [ "$(wc -l <output)" = 1 ] || fail "$bad: one sentence"
done
exit $((failures > 0))
