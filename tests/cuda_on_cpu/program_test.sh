#!/usr/bin/env bash
# The whole program with the CUDA backend on the processor.
#
#     program_test.sh devices|memory|orders PROGRAM MPIEXEC
#
# devices: what it says of machines without a GPU that it can use. memory: of a GPU that is too small.
# orders: two ranks on two GPUs train to the same numbers whatever the order in which the devices run
# their queues, and by both ways of the gradients.
set -u
case=$1 program=$2 mpiexec=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failures=0

fail() {
  echo "FAILED: $1"
  sed 's/^/    /' "$folder/output"
  failures=$((failures + 1))
}

# expect CODE TEXT ARGUMENT...: the exit code and a part of what is printed.
expect() {
  local code=$1 text=$2
  shift 2
  "$program" --model resnet20 --limit-train 32 --limit-test 16 --batch-size 16 --epochs 1 \
    --log "$folder/$RANDOM.h5" "$@" >"$folder/output" 2>&1
  local got=$?
  [[ $got == "$code" ]] || fail "exit code $got, expected $code: $*"
  grep -qF -- "$text" "$folder/output" || fail "no '$text': $*"
}

# train SEED ARGUMENT...: prints losses and accuracies of the epochs.
train() {
  local seed=$1
  shift
  DP_CUDA_ON_CPU_SEED=$seed DP_CUDA_ON_CPU_DEVICES=2 "$mpiexec" -np 2 "$program" \
    --model resnet20 --limit-train 64 --limit-test 16 --batch-size 16 --epochs 1 --device cuda \
    --compress q8 --check-replicas step --autotune off --log "$folder/$RANDOM.h5" "$@" \
    >"$folder/output" 2>&1 || fail "training: $*"
  sed -nE 's/^(epoch .*test loss [^ ]+).*/\1/p' "$folder/output"
}

case $case in
  devices)
    DP_CUDA_ON_CPU_DEVICES=no-driver expect 5 "no NVIDIA driver was found; this build needs an NVIDIA driver" --device cuda
    DP_CUDA_ON_CPU_DEVICES=old-driver expect 5 "CUDA 12.4" --device cuda
    DP_CUDA_ON_CPU_DEVICES=old-driver expect 5 "this build needs an NVIDIA driver" --device cuda
    DP_CUDA_ON_CPU_DEVICES=old-gpu expect 5 "compute capability 7.5" --device cuda
    DP_CUDA_ON_CPU_DEVICES=0 expect 5 "sees no GPU" --device cuda
    DP_CUDA_ON_CPU_DEVICES=0 expect 0 "epoch 1/1" --device auto
    ;;
  memory)
    DP_CUDA_ON_CPU_MEMORY_MB=60 expect 5 "out of memory" --device cuda
    ;;
  orders)
    first=$(train 1 --gpu-exchange host)
    [[ -n $first ]] || fail "no epoch was printed"
    second=$(train 2 --gpu-exchange host)
    [[ $second == "$first" ]] || fail "another order, other numbers: '$first', '$second'"
    third=$(train 3 --gpu-exchange device)
    [[ $third == "$first" ]] || fail "another way, other numbers: '$first', '$third'"
    ;;
  *)
    echo "unknown case $case"
    exit 2
    ;;
esac
exit $((failures > 0))
