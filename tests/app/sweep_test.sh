#!/usr/bin/env bash
# dpsweep: what is missing is run, what is done is not run again, failures are told and tried again, nothing is left.
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
run() {
  case " $* " in
    *' --dptrain '*) "$sweep" "$@" ;;
    *) "$sweep" --dptrain "$program" "$@" ;;
  esac >output 2>&1
}

cat >study.ini <<'INI'
[study]
ranks = 2
options = --model resnet20 --limit-train 64 --limit-test 32 --epochs 1 --batch-size 16 --threads 1 --autotune off --lr 0.2
[good]
compress = none | q8
lr = 0.1
[bad]
trace = /nonexistent/t.json
INI
run study.ini --list || fail "--list"
[ "$(grep -c missing output)" = 3 ] || fail "three points are missing"
[ "$(grep -o -- '--lr' output | wc -l)" = 3 ] || fail "no option is given twice"
run study.ini --only good-q8 -- --seed 7 || fail "options after --"
grep -q -- '--seed 7' results/study/good-q8-0.1.txt || fail "options after -- reach dptrain"
run study.ini --only good-q8
[ $? = 2 ] || fail "a log of other options is left alone"
grep -q 'results/study/good-q8-0.1.h5: was run with --seed 7, and would now be run without --seed; ' output ||
  fail "what differs, and where"
[ "$(wc -l <output)" = 1 ] || fail "one sentence about what differs"
rm -r results/study
run study.ini && fail "a failed point is an error"
grep -q '^1 failed: bad-_nonexistent_t.json;' output || fail "the failed point is named"
for name in good-none-0.1 good-q8-0.1; do
  [ -f "results/study/$name.h5" ] || fail "the log of $name is there"
done
[ ! -e results/study/bad-_nonexistent_t.json.h5 ] || fail "the failed point has no log"
run study.ini --only good || fail "nothing is left to do"
grep -q '^\[1/' output && fail "nothing runs twice"
# An interrupted point leaves a part, which is thrown away.
mv results/study/good-none-0.1.h5 results/study/good-none-0.1.part.h5
run study.ini --only good || fail "goes on"
grep -q '^\[1/1\] good-none' output || fail "only the interrupted point runs"
# A log that is damaged is none. It is kept, and its text.
if /usr/bin/python3 -c 'import h5py' 2>/dev/null; then
  cp results/study/good-none-0.1.h5 whole.h5
  damaged() { # what is said of it
    run study.ini --only good --list
    [ "$(cut -c1-7 output | tr -d '\n')" = 'damageddone   ' ] || fail "--list: $1"
  }
  /usr/bin/python3 -c 'import h5py; h5py.File("results/study/good-none-0.1.h5", "a").attrs["finished"] = 0'
  damaged 'not finished'
  /usr/bin/python3 -c 'import h5py; h5py.File("results/study/good-none-0.1.h5", "a")["epochs"].resize((0,))'
  damaged 'without its epoch'
  echo text >results/study/good-none-0.1.h5
  damaged 'no HDF5 file'
  # Rows that were never written: 2 GB, in a file of 700 kB.
  cp whole.h5 results/study/good-none-0.1.h5
  /usr/bin/python3 - <<'PY'
import h5py
with h5py.File("results/study/good-none-0.1.h5", "a") as file:
    for name in ("epochs", "ranks"):
        kind = file[name].dtype
        del file[name]
        file.create_dataset(name, dtype=kind, shape=(8_000_000,), chunks=(1024,))
    file["config"].attrs["epochs"] = "8000000"
PY
  damaged 'claims rows that it does not have'
  /usr/bin/python3 - "$sweep" >output 2>&1 <<'PY' || fail "a log that claims much: little memory, and a sentence"
import pathlib, resource, sys
sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(sys.argv[1]).resolve().parent))
from sweep import finished, overview
log = pathlib.Path("results/study/good-none-0.1.h5")
assert "its table /epochs claims" in finished.damage_of(log), finished.damage_of(log)
overview.print_overview([log, pathlib.Path("whole.h5")])
assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 300 << 10
PY
  grep -q '^good-none-0.1  *cannot be read (its table /epochs claims' output || fail "the table names a log that claims much"
  grep -q '^whole  *[0-9.]* ' output || fail "the table has the next log"
  head -c 20000 whole.h5 >results/study/good-none-0.1.h5
  touch results/study/good-none-0.1.h5.damaged
  run study.ini --only good || fail "a damaged log's point runs again"
  grep -q '^results/study/good-none-0.1.h5: cannot be read.*; it is kept under another name' output ||
    fail "a damaged log is told"
  grep -q '^\[1/1\] good-none' output || fail "a damaged log's point runs again, and no other"
  [ "$(stat -c %s results/study/good-none-0.1.h5.damaged-2)" = 20000 ] || fail "a damaged log is kept"
  [ -e results/study/good-none-0.1.txt.damaged ] || fail "a damaged log's text is kept"
  cp whole.h5 results/study/good-none-0.1.h5
fi
# Links that somebody has put under names that dpsweep writes to lead nowhere.
echo precious >victim
mkdir results/planted
for name in good-none-0.1.txt good-none-0.1.part.h5 good-none-0.1.full; do ln -s "$folder/victim" "results/planted/$name"; done
run study.ini --out results/planted --only good-none || fail "runs in a folder with links"
[ "$(cat victim)" = precious ] || fail "no link is followed"
[ -f results/planted/good-none-0.1.h5 ] && [ ! -L results/planted/good-none-0.1.txt ] || fail "log and text replace links"
for plant in 'ln -s ../../victim' 'ln ../../victim' mkfifo mkdir; do
  (cd results/planted && rm -rf .dpsweep.lock good-none-0.1.h5 && $plant .dpsweep.lock)
  run study.ini --out results/planted --only good-none
  [ $? = 3 ] || fail "a lock that is no file of dpsweep ($plant): exit code"
  [[ $(wc -l <output) = 1 && $(cat output) == 'dpsweep: results/planted/.dpsweep.lock: must be a file that dpsweep has made'* ]] ||
    fail "a lock that is no file of dpsweep ($plant): one sentence"
  [ "$(cat victim)" = precious ] || fail "a lock that is no file of dpsweep ($plant): what it leads to is left alone"
done
rm -r results/planted
# What dptrain refuses is known before anything runs.
sed 's/^trace.*/compress = q7/' study.ini >trial.ini
run trial.ini
[ $? = 2 ] || fail "an option that dptrain refuses: its exit code"
[[ $(wc -l <output) = 1 && $(cat output) == 'dpsweep: bad-q7: --compress q7: unknown codec; '* ]] ||
  fail "an option that dptrain refuses: its sentence"
[ ! -e results/trial ] || fail "an option that dptrain refuses: nothing has run"
run trial.ini --only good --list || fail "the study's other points are as before"

cat >links.ini <<'INI'
[study]
ranks = 2
options = --model resnet20 --limit-train 64 --limit-test 32 --epochs 3 --threads 1 --autotune off
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

# The whole study with one seed, and then with the next.
sed 's/^small/seeds = 3 | 1\nsmall/' links.ini >seeds.ini
run seeds.ini --list || fail "seeds"
[ "$(sed 's/^missing //; s/: .*--seed/ /' output | tr '\n' ' ')" = \
  'a-1-1gbit-seed3  3 a-3-1gbit-seed3  3 a-1-1gbit-seed1  1 a-3-1gbit-seed1  1 ' ] || fail "the order of seeds"
run seeds.ini --list --small
[ "$(grep -c 'missing a-.*-seed3: ' output)" = "$(wc -l <output)" ] || fail "seeds with --small"

# Whether a log is of the same run is told by its text's first line. Here nothing is run but what is missing.
cat >same.ini <<'INI'
[study]
ranks = 3
rate = 1gbit
options = --epochs 3
small = --epochs 1
[a]
lr = 0.1
INI
mkdir same
cp results/study/good-q8-0.1.h5 same/a-0.1.h5
mpirun_words='mpirun -np 3 --oversubscribe --bind-to none /elsewhere/dptrain --throttle 1gbit'
lab_words='/elsewhere/dplab up --lab old --nodes 3 --rate 1gbit && /elsewhere/dplab run --lab old -- /elsewhere/dptrain'
same() { # the text's first line, what is expected: "done" or why not; more options
  echo "$1" >same/a-0.1.txt
  run same.ini --out same --list "${@:3}"
  if [ "$2" = "done" ]; then
    grep -q '^done ' output || fail "done: $1"
    return
  fi
  grep -q '^differs' output || fail "--list tells what differs: $1"
  run same.ini --out same "${@:3}"
  [ $? = 2 ] || fail "exit code 2: $1"
  [[ $(cat output) == "dpsweep: same/a-0.1.h5: "*"$2"*"--out, or remove "* ]] || fail "$2: $1"
}
same "+ $mpirun_words --lr 0.1 --epochs 3 --log /elsewhere/a.part.h5" "done"
same "+ $lab_words --epochs 3 --lr 0.1 --log /elsewhere/a.part.h5" "done" --lab
same "+ $mpirun_words --epochs 1 --lr 0.1 --log x" "done" --small
same "+ $mpirun_words --epochs 1 --lr 0.1 --log x" 'with --epochs 1, and would now be run with --epochs 3;'
same "+ ${mpirun_words/3/4} --epochs 3 --lr 0.1 --log x" 'with ranks 4, and would now be run with ranks 3;'
same "+ ${mpirun_words/1gbit/2gbit} --epochs 3 --lr 0.1 --log x" 'with --throttle 2gbit, and would now be'
same "+ $mpirun_words --epochs 3 --lr 0.1 --log x" 'with links --throttle, and would now be run with links dplab;' --lab
same "+ ${lab_words/1gbit/2gbit} --epochs 3 --lr 0.1 --log x" 'with rate 2gbit, and would now be' --lab
same "+ ${lab_words/1gbit/1gbit --delay 5ms} --epochs 3 --lr 0.1 --log x" 'with delay 5ms, and would now be run without' --lab
same "+ $mpirun_words --epochs 3 --lr 0.1 --log x" 'without --seed, and would now be run with --seed 7;' -- --seed 7
same "+ 'something else" 'a-0.1.txt does not say how it was run;'
rm same/a-0.1.txt
run same.ini --out same || fail "a log without a text is done"
grep -q '^\[1/' output && fail "a log without a text is not run again"
# Options after -- win over the study's, and are its only ones of their name.
run same.ini --small --list -- --epochs 9 || fail "options after --"
[ "$(grep -o -- '--epochs [0-9]*' output)" = '--epochs 9' ] || fail "options after -- win"
code=2
refused() { # words of the sentence; arguments
  run "${@:2}"
  [ $? = $code ] || fail "exit code $code: $1"
  [[ $(wc -l <output) = 1 && $(cat output) == "dpsweep: "*"$1"* ]] || fail "$1"
}
refused 'without a value are not possible' same.ini -- --quiet
refused 'without a value are not possible' same.ini -- --lr=0.1 --seed=7
refused '--seed: is given twice' same.ini -- --seed 1 --seed 2
refused '[a]: --seed 7: the study sets the seed itself, by seeds' seeds.ini -- --seed 7
sed 's/^lr/delay = 5ms | 20ms\nlr/' same.ini >delays.ini
refused 'a-5ms-0.1: delay = 5ms: only the hosts of a lab have delays; give --lab' delays.ini --list
run delays.ini --list --lab || fail "delays in a lab"
grep -q '^missing a-20ms-0.1: 3 ranks, links of 1gbit and 20ms, ' output || fail "the delay of a point"
for delay in '--delay 5ms' '--delay 6ms'; do # the command that made a log with the name of a delay, and had it
  cp same/a-0.1.h5 same/a-5ms-0.1.h5
  echo "+ ${lab_words/1gbit/1gbit $delay} --epochs 3 --lr 0.1 --log x" >same/a-5ms-0.1.txt
  run delays.ini --out same --list --lab
  grep -q "^$([ "$delay" = '--delay 5ms' ] && echo 'done   ' || echo differs) a-5ms-0.1: " output || fail "a log $delay"
  rm same/a-5ms-0.1.*
done
sed 's/20ms/20/' delays.ini >bad.ini
refused "a-20-0.1: delay = 20: must be a time from 0ms to 2s" bad.ini --lab
sed '/^rate/d' delays.ini >bad.ini
refused 'a-5ms-0.1: delay = 5ms: needs a rate, too' bad.ini --lab
sed 's/^seeds.*/seeds = 1 | 1/' seeds.ini >bad.ini
refused 'seeds = 1 | 1: must be different whole numbers' bad.ini
refused '--log: is set' same.ini -- --log x.h5
refused 'the study sets the rate of links itself' same.ini -- --throttle 1mbit
refused 'has no small form' study.ini --small
sed 's/^lr/ends = mimory\nlr/' same.ini >bad.ini
refused 'ends = mimory: must be memory' bad.ini
refused 'unrecognized arguments: --smal' same.ini --smal
refused '--out: is given twice' same.ini --out a --out b
for option in --out --only --dptrain; do refused "$option: '': must be" same.ini "$option" ''; done
refused "study: '': must be" ''
refused 'must be a study' .
refused '--dptrain /bin/true: must be the program dptrain, and' same.ini --dptrain /bin/true
refused '--dptrain /bin: must be the program dptrain;' same.ini --dptrain /bin
touch file
refused '--out file: must be a folder, and it is a file' same.ini --out file
refused '--out file/a: must be a folder, and file is a file' same.ini --out file/a
code=3
refused '/proc/nothing: No such file or directory' same.ini --out /proc/nothing
"$sweep" same.ini --list >/dev/full 2>output
[ $? = 3 ] || fail "a full output: exit code"
[ "$(cat output)" = 'dpsweep: the output cannot be written: No space left on device' ] || fail "a full output"
"$sweep" same.ini --list >&- 2>output || fail "a closed output"
study() { printf '[study]\nranks = 2\n[a]\n%b\n' "$1" >bad.ini; }
study 'seed = \0'
refused "line 4 holds the character '\x00'" bad.ini
study 'seed = \377'
refused 'line 4 is not UTF-8 text' bad.ini
code=2
study "options = --model 'resnet20"
refused "bad.ini: [a] options: --model 'resnet20: a quotation mark has no partner" bad.ini
refused "--lr 'x: must be a number" study.ini --out fresh -- --lr "'x"
study 'seed ='
refused '[a]: seed = : must have a value' bad.ini
study 'seed = 1\nnonsense'
refused 'line 5: nonsense: must be' bad.ini
study 'seed = 1\nseed = 2'
refused '[a] seed: is given twice' bad.ini
study 'options = --model "res\n  net"'
refused 'must be without line breaks' bad.ini
study "seed = $(seq -s' | ' 200)\nlr = $(seq -s' | ' 200)"
refused 'names 40,000 runs' bad.ini
study "compress-exclude = $(printf 'x%.0s' {1..300})"
refused 'must be 200 characters at most' bad.ini
study 'rate = 5'
refused 'a-5: rate = 5: must be a rate from' bad.ini --lab -- --epochs 1
study 'ranks = 65\nrate = 1mbit'
refused 'must be 64 at most' bad.ini --lab
printf '\357\273\277[study]\n[a]\nseed = 1\n' >bad.ini
run bad.ini --list || fail "a byte-order mark"
# A full disk ends the study at the first point that meets it.
if unshare -rm sh -c 'mount -t tmpfs -o size=256k none same' 2>output; then
  # shellcheck disable=SC2016 # the inner shell expands it
  unshare -rm sh -c 'mount -t tmpfs -o size=256k none same && "$@"; code=$?; ls same >files; exit $code' - \
    "$sweep" study.ini --dptrain "$program" --out same >output 2>&1
  [ $? = 3 ] || fail "a full disk: exit code 3"
  grep -q '^dpsweep: .*: No space left on device; the same command goes on' output || fail "a full disk: the sentence"
  grep -q '^\[2/' output && fail "a full disk: no other point runs"
fi

# The memory: told by dptrain, or by its end. What comes after in the section is not run, today or later.
cat >memory.ini <<'INI'
[study]
ranks = 1
options = --model resnet20 --limit-train 32 --limit-test 32 --epochs 1 --threads 1 --autotune off
[a]
batch-size = 16 | 32 | 64
ends = memory
[b]
batch-size = 32
INI
cat >full <<SH
#!/bin/sh
case "\$*" in
  *--print-config*) exec '$program' "\$@" ;;
  *'--batch-size 32 '*) echo 'dptrain: out of memory: too large'; exit \$(cat code) ;;
  *) exec '$program' "\$@" ;;
esac
SH
chmod +x full
memory() { # dptrain's exit code, what it says
  echo "$1" >code
  rm -rf results/memory
  run memory.ini --dptrain full
  [ $? = 1 ] || fail "memory, $1: another section's point fails as ever"
  grep -q "the memory is full at a-32: $2" output || fail "memory, $1: the sentence"
  grep -q '^1 failed: b-32;' output || fail "memory, $1: is no failure"
  [[ -e results/memory/a-16.h5 && -e results/memory/a-32.full && ! -e results/memory/a-64.txt ]] ||
    fail "memory, $1: files"
}
memory 137 'the run was killed'
memory 5 'out of memory: too large'
run memory.ini --only a- --dptrain full || fail "a section that has ended is done"
grep -q '^\[1/' output && fail "a section that has ended is not run again"
grep -q 'the memory is full at a-32: out of memory: too large' output || fail "the sentence again"
run memory.ini --list
[ "$(cut -c1-7 output | tr -d ' \n')" = donefullskippedmissing ] || fail "--list of a section that has ended"
run memory.ini --only a- --dptrain full -- --seed 2
[ $? = 2 ] || fail "the memory was full with other options"
echo 4 >code
rm results/memory/a-32.full
run memory.ini --only a- --dptrain full
[ $? = 1 ] || fail "another failure does not end the section"
[ -e results/memory/a-64.h5 ] || fail "the section goes on after another failure"

# A signal ends the run, and what it has started.
cat >long.ini <<'INI'
[study]
ranks = 2
options = --model resnet20 --limit-train 64 --limit-test 32 --epochs 100000 --batch-size 16 --threads 1 --autotune off
[a]
seed = 1
INI
left_over() { grep -la -- "$folder/[r]esults/long" /proc/[0-9]*/cmdline 2>/dev/null; }
cat >family.py <<'PY'
"""family.py PID: its descendants, each with its start time. family.py: waits until those of its input have ended."""
import pathlib, sys, time
def stat(process):
    try:
        fields = pathlib.Path(f"/proc/{process}/stat").read_text(errors="replace").rsplit(") ", 1)[1].split()
        return None if fields[0] == "Z" else fields
    except OSError:
        return None
if sys.argv[1:]:
    parents = {path.name: fields[1] for path in pathlib.Path("/proc").glob("[0-9]*") if (fields := stat(path.name))}
    found = [sys.argv[1]]
    for member in found:
        found += [process for process, parent in parents.items() if parent == member]
    print(*(f"{process}:{stat(process)[19]}" for process in found))
else:
    members, end = [word.split(":") for word in sys.stdin.read().split()], time.monotonic() + 30
    while left := [process for process, begin in members if (fields := stat(process)) and fields[19] == begin]:
        if time.monotonic() > end:
            sys.exit(f"still there: {left}")
        time.sleep(0.05)
PY
for number in 15 1 9; do
  "$sweep" long.ini --dptrain "$program" >long.output 2>&1 &
  long=$!
  for _ in {1..600}; do
    grep -q '^epoch *1/' results/long/a-1.txt 2>/dev/null && break
    sleep 0.1
  done
  cp long.output output
  grep -q '^epoch *1/' results/long/a-1.txt || fail "signal $number: the run begins"
  [ "$(left_over | wc -l)" -ge 3 ] || fail "signal $number: mpirun and two ranks run"
  if [ $number = 15 ]; then
    code=3 refused "results/long: another dpsweep runs in this folder (process $long on $(uname -n), since 20" long.ini
    run long.ini --list || fail "--list beside another dpsweep"
    [ -e results/long/a-1.part.h5 ] || fail "another dpsweep's log is left alone"
  fi
  /usr/bin/python3 family.py $long >family
  [ "$(wc -w <family)" -ge 5 ] || fail "signal $number: dpsweep, the keeper, mpirun and two ranks run"
  kill -$number $long
  if [ $number = 9 ]; then # another one waits for what the first has left, and finds its folder as it was
    run long.ini --only a -- --limit-train 32 --limit-test 16 --epochs 1 || fail "goes on after kill -9"
    rm -f results/long/a-1.h5
  fi
  wait $long 2>/dev/null # bash tells of a killed one
  [ $? = $((128 + number)) ] || fail "signal $number: exit code"
  [ $number = 9 ] || [ -z "$(left_over)" ] || fail "signal $number: something is left"
  /usr/bin/python3 family.py <family >output 2>&1 || fail "signal $number: a process is left"
  [ ! -e results/long/a-1.h5 ] || fail "signal $number: the run is not done"
  rm -r results/long
done
# What does not end when it is told to, and has a process group of its own.
cat >stubborn.py <<PY
import os, signal, subprocess, sys
sys.path.insert(0, os.path.dirname(os.path.realpath(sys.argv[1])))
sys.dont_write_bytecode = True
from sweep import jobs
stubborn = 'trap "" TERM; setsid sh -c "trap \'\' TERM; touch ready; sleep 99; : $folder/results/long" & sleep 99; wait'
try:
    runner = jobs.Jobs(patience_s=0.3)
    subprocess.Popen(["sh", "-c", f"while ! [ -e ready ]; do sleep 0.1; done; kill -TERM {os.getpid()}"])
    runner.run(["sh", "-c", stubborn])
except jobs.Stopped as stopped:
    sys.exit(stopped.number)
PY
/usr/bin/python3 stubborn.py "$sweep" >output 2>&1
[ $? = 15 ] || fail "a stubborn run: the signal is told"
[ -z "$(left_over)" ] || fail "a stubborn run is killed, and what it has started"

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
