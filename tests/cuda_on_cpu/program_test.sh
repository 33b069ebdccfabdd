#!/usr/bin/env bash
# The whole program with the CUDA backend on the processor.
#
#     program_test.sh devices|memory|orders|fault|hang|loading PROGRAM MPIEXEC
#
# devices   the messages on machines without a usable GPU
# memory    the message about a GPU that is too small
# orders    two ranks on two GPUs get the same numbers whatever the order in which the devices run
#           their queues, and on both gradient paths
# fault     from some operation on all work is dropped: one rank, or the second of two; in set-up,
#           training and evaluation
# hang      the same, but from some operation on no work ends
# loading   with batch normalisation over all ranks no kernel is loaded during a step
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

# short RANKS TROUBLE ARGUMENT...: a short training; TROUBLE is set on the last rank. Sets
# `got` to its exit code.
short() {
  local ranks=$1 trouble=$2
  shift 2
  local -a run=("$program" --model resnet20 --limit-train "${images:-$((ranks * 4))}" --limit-test 4 --batch-size 4
    --epochs 3 --device cuda --compress q8 --autotune off --log none "$@")
  local -a others=()
  [[ $ranks == 1 ]] || others=(-np $((ranks - 1)) "${run[@]}" :)
  DP_CUDA_ON_CPU_DEVICES=$ranks timeout 120 "$mpiexec" "${others[@]}" \
    -np 1 env DP_CUDA_ON_CPU_TROUBLE="$trouble" "${run[@]}" >"$folder/output" 2>&1
  got=$?
}

# trouble KIND TEXT: both gradient paths, at several operations, with one and two ranks.
trouble() {
  local kind=$1 text=$2 ranks way all place
  for ranks in 1 2; do
    for way in host device; do
      short $ranks count --gpu-exchange $way --comm-timeout 60
      all=$(sed -nE 's/^cuda_on_cpu: ([0-9]+) operations$/\1/p' "$folder/output" | head -n 1)
      [[ $got == 0 && -n $all ]] || fail "exit code $got without trouble, $ranks ranks, $way"
      # In a step whose graph is launched, so that the host does nothing but wait; in set-up, and
      # where the test images are evaluated.
      for place in $((all / 2)) 40 $((all - 12)); do
        short $ranks "$kind:$place" --gpu-exchange $way --comm-timeout $ranks
        [[ $got == 5 ]] || fail "exit code $got, expected 5: $kind:$place of $all, $ranks ranks, $way"
        grep -qF -- "$text" "$folder/output" || fail "no '$text': $kind:$place, $ranks ranks, $way"
        [[ $ranks == 1 ]] && continue
        grep -qF -- "rank 1 on host" "$folder/output" || fail "nobody is named: $kind, $way"
        break  # one place will do
      done
    done
  done
}

case $case in
  devices)
    DP_CUDA_ON_CPU_DEVICES=no-driver expect 5 "no NVIDIA driver was found; this build needs an NVIDIA driver" --device cuda
    DP_CUDA_ON_CPU_DEVICES=old-driver expect 5 "CUDA 12.4" --device cuda
    DP_CUDA_ON_CPU_DEVICES=old-driver expect 5 "this build needs an NVIDIA driver" --device cuda
    DP_CUDA_ON_CPU_DEVICES=old-gpu expect 5 "compute capability 7.5" --device cuda
    DP_CUDA_ON_CPU_DEVICES=0 expect 5 "finds no GPU" --device cuda
    DP_CUDA_ON_CPU_DEVICES=taken expect 5 "the GPU is in use by another process" --device cuda
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
  fault)
    trouble fail "an illegal memory access was encountered"
    ;;
  hang)
    trouble hang "Check nvidia-smi and dmesg"
    ;;
  loading)
    for way in host device; do
      for more in "--ema 0.9" "--accumulate 2"; do
        # A last step of one image, which one rank has.
        # shellcheck disable=SC2086
        images=17 short 2 count --sync-bn on --gpu-exchange $way $more
        [[ $got == 0 ]] || fail "exit code $got, $way $more"
      done
    done
    ;;
  *)
    echo "unknown case $case"
    exit 2
    ;;
esac
exit $((failures > 0))
