#!/usr/bin/env bash
# What tests/gpu.sh makes of a GPU's speed; the GPU and its programs are made up:  gpu_script_test.sh
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/place"/{bin,tests}
cp "$here/../gpu.sh" "$scratch/place/tests/"
cd "$scratch"
cat >place/bin/dpbench <<'TEXT'
#!/bin/sh
case "$* " in *layers*--verbose*) echo "  device: $GPU, 79 GiB, driver for CUDA 13.0" ;; esac
case "$1" in layers) echo "dptrain resnet18 batch 512 bf16 cuda threads 8 ranks 1: $SPEED images/s (rank 0: 1.0 ms)" ;; esac
TEXT
printf '#!/bin/sh\nexit 1\n' >place/bin/dptrain
cp place/bin/dptrain place/bin/mpirun
# shellcheck disable=SC2016  # the script's variable
printf 'import os\nprint("PyTorch resnet18: %%s images/s" %% os.environ["PEER"])\n' >peer.py
chmod +x place/bin/*

failures=0
check() { # GPU, images/s, PyTorch's or nothing, glob of the row
  local peer=()
  [ -z "$3" ] || peer=(--peer peer.py)
  GPU=$1 SPEED=$2 PEER=$3 bash place/tests/gpu.sh --quick --out out "${peer[@]}" >printed 2>&1 </dev/null || true
  local row
  row=$(grep '^resnet18 batch 512 bf16' out/table.txt)
  # shellcheck disable=SC2053  # the glob is meant as a pattern
  if ! [[ $row == $4 ]]; then
    echo "FAILED $1, $2 images/s, PyTorch ${3:-none}: expected '$4', but:"
    sed 's/^/  | /' printed
    failures=$((failures + 1))
  fi
  rm -rf out
}
h100='NVIDIA H100 80GB HBM3'
check "$h100" 57000.0 '' "*$h100 *57000.0 images/s, 95 % of the estimate *half of about 60000 *ok"
check "$h100" 26000.0 '' '*26000.0 images/s, 43 % of the estimate *FAILED'
check "$h100" 57000.0 50000.0 "*95 % of the estimate, 1.14 x PyTorch *half of about 60000; PyTorch's 50000.0 *ok"
check "$h100" 57000.0 60000.0 '*0.95 x PyTorch *FAILED'
check "$h100" 26000.0 20000.0 '*43 % of the estimate, 1.30 x PyTorch *FAILED'
check 'NVIDIA A100-SXM4-80GB' 26000.0 '' '*76 % of the estimate *half of about 34000 *ok'
check 'NVIDIA GeForce RTX 4090' 11000.0 '' '*48 % of the estimate *half of about 23000 *FAILED'
check 'NVIDIA L4' 9000.0 '' '*NVIDIA L4 *9000.0 images/s *-'
check 'NVIDIA L4' 9000.0 8000.0 "*9000.0 images/s, 1.12 x PyTorch *PyTorch's 8000.0 *ok"
check "$h100" '' '' '*no images/s *FAILED'

# Short runs, of which some do not repeat, are far from the CPU's, end early or hang.
cat >place/bin/mpirun <<'TEXT'
#!/bin/sh
shift 5 # -np N --oversubscribe --bind-to none
exec "$@"
TEXT
cat >place/bin/dptrain <<'TEXT'
#!/bin/sh
# Counts its calls with an optimiser Adam; the options choose what goes wrong.
second=0.1
case "$*" in
  *muon*) [ "$FAULT" != early ] || exit 4 ;;
  *adam*) [ "$FAULT" != random ] || { echo >>"$CALLS"; second=0.$(wc -l <"$CALLS"); } ;;
esac
first=2.0
case "$* $FAULT" in *'--device cpu'*lars*far) first=2.1 ;; esac
first_epoch="{\"event\":\"epoch\",\"epoch\":0,\"train_loss\":$first,\"test_loss\":2.5,\"x\":0,\"replica_hash\":\"ab\",\"y\":0}"
case "$*" in *--resume*) ;; *) echo "$first_epoch" ;; esac
echo "{\"event\":\"epoch\",\"epoch\":1,\"train_loss\":$second,\"test_loss\":1.5,\"x\":0,\"replica_hash\":\"cd\",\"y\":0}"
TEXT
mkdir tools
cat >tools/timeout <<'TEXT'
#!/bin/bash
# bash, since sh drops exported functions from the environment.
case "$* $FAULT" in *sync-bn*hang) exit 124 ;; *sync-bn*killed) exit 137 ;; esac
shift 3 # -k 10 LIMIT
exec "$@"
TEXT
chmod +x place/bin/* tools/timeout
short() { # fault, expected exit code, glob of what is printed
  local code=0
  rm -rf out calls
  PATH=$PWD/tools:$PATH FAULT=$1 CALLS=calls GPU=$h100 SPEED=1 bash place/tests/gpu.sh --only 5 --out out >printed 2>&1 \
    </dev/null || code=$?
  # shellcheck disable=SC2053  # the glob is meant as a pattern
  if [ $code -ne "$2" ] || ! [[ $(<printed) == $3 ]]; then
    echo "FAILED short runs with the fault '$1': exit code $code, expected $2 and '$3', but:"
    sed 's/^/  | /' printed
    failures=$((failures + 1))
  fi
}
short none 0 '*q8: equal twice, CPU 0.000 % away  ok*auto, again*: equal  ok*checkpoint and resume*: equal  ok*'
short random 1 '*Adam: another result the second time  FAILED*LARS: equal twice*'
short far 1 '*LARS: CPU 4.762 % away  FAILED*'
short early 1 '*Muon: a run did not end: short-Muon-*FAILED*'
short hang 1 '*short-sync-bn-1.txt: possible hang  FAILED*Please send in*short-sync-bn-1.txt*gdb -p PID*'
short killed 1 '*short-sync-bn-1.txt: killed  FAILED*'
! grep 'possible hang' printed || failures=$((failures + 1))
# Links that somebody has put under the names of logs lead nowhere.
start() { GPU=$h100 SPEED=57000.0 PEER='' bash place/tests/gpu.sh --quick --out out >printed 2>&1 </dev/null || true; }
start
names=$(find out -maxdepth 1 -type f -printf '%f\n')
rm -r out && mkdir out
echo precious >victim
for name in $names; do ln -s ../victim "out/$name"; done
start
if [ "$(wc -w <<<"$names")" -lt 5 ] || [ "$(<victim)" != precious ] || [ -n "$(find out -maxdepth 1 -type l)" ]; then
  echo "FAILED links under the names of logs:" && ls -l out victim
  failures=$((failures + 1))
fi
exit $((failures > 0))
