#!/usr/bin/env bash
# Everything that needs a GPU: tests, measurements, a training of four ranks; one table. See --help.
set -uo pipefail

usage() {
  cat <<'TEXT'
Usage: tests/gpu.sh [--out FOLDER] [--quick] [--peer SCRIPT] [--python PYTHON]
                    [--data-dir FOLDER] [--scan] [--only N,N,...]

Runs, from an unpacked bundle or from a checkout with a build in build/, on a machine
with a GPU, one after the other, whatever fails on the way:

  1. every test program that is labelled gpu, and the tests in Python (they need h5py)
  2. training throughput of ResNet-18 and ResNet-20, batch 512 and 128, fp32, tf32, bf16
  3. the codecs' speed beside the device's memory bandwidth
  4. four ranks on one GPU with q8 and a comparison of the replicas after every step, with
     the gradients exchanged by the host and by the device
  5. short runs of the program, one for each of its parts: each is compared with its own
     repetition, which must have the same bits, and with --device cpu
  6. with --data-dir: ResNet-18 on CIFAR-10 for 30 epochs
  7. with --scan: throughput over batch sizes until the device's memory is full

and prints one table: what, value, bar, ok. 1 to 5 are planned to take under 20 minutes.
Exit code: 0 all bars reached, 1 not so, 77 there is no device.

ResNet-18 in bf16, batch 512, has an estimated speed for each kind of GPU (60,000 images/s
on an H100; none for GPUs that are not in the list). The table prints which share of it was
reached. Below half of it something is wrong with the build or the machine, and the row
fails. With --peer the row also prints the ratio to PyTorch, which must be 1 or more.

A command that runs into its time limit is reported as a possible hang, with a list of what
to send in.

  --out FOLDER        logs and table.txt go there (default: gpu-results)
  --quick             of 2 only the two models' bf16 rows
  --peer SCRIPT       a PyTorch script that prints "... N images/s"; it is called with
                      --model resnet18 --batch 512 --bf16 --device cuda --compile
  --only N,N,...      run only these steps, such as 5 or 1,5
  --python PYTHON     runs that script and the tests in Python (default: python3)
  --data-dir FOLDER   CIFAR-10 in its binary form (experiments/get_cifar.sh)
TEXT
}

die() {
  echo "gpu.sh: $*" >&2
  exit 2
}

folder=gpu-results quick=no peer='' python=python3 data='' scan=no only=''
while [ $# -gt 0 ]; do
  case "$1" in
    --help) usage; exit 0 ;;
    --quick) quick=yes ;;
    --scan) scan=yes ;;
    --out | --peer | --python | --data-dir | --only)
      [ $# -ge 2 ] && [ -n "$2" ] || die "$1: needs a value"
      case "$1" in
        --out) folder=$2 ;;
        --peer) peer=$2 ;;
        --python) python=$2 ;;
        --data-dir) data=$2 ;;
        --only) only=$2 ;;
      esac
      shift
      ;;
    *) die "$1: unknown option; known: --out, --quick, --peer, --python, --data-dir, --scan, --only, --help" ;;
  esac
  shift
done
[[ -z $only || $only =~ ^[1-7](,[1-7])*$ ]] || die "--only $only: must be numbers of steps from 1 to 7, such as 1,5"
[ -z "$peer" ] || [ -f "$peer" ] || die "--peer $peer: no such file"
[ -z "$data" ] || [ -d "$data" ] || die "--data-dir $data: no such folder"

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ -x "$root/bin/dptrain" ]; then # a bundle
  programs=$root/bin tests=$root/tests scripts=$root/tests mpirun=$root/bin/mpirun
  list=$root/tests/gpu_tests.txt cases=$root/tests/gpu_cases.txt
  export DP_FIXTURES=$root/tests/fixtures
else
  programs=$root/build/bin tests=$programs scripts=$root/tests/app mpirun=mpirun
  list=$root/build/gpu_tests.txt cases=$root/build/gpu_cases.txt
fi
for file in dptrain dpbench; do
  [ -x "$programs/$file" ] || die "there is no $programs/$file: build it, or run this from an unpacked bundle"
done

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none # for the tests in Python
ranks() { "$mpirun" -np "$1" --oversubscribe --bind-to none "${@:2}"; }

# The program itself is asked, so that its own words say what is missing: driver, cuDNN, device.
words=$("$programs/dpbench" layers --device cuda --model resnet20 --batch 8 --steps 1 --autotune off 2>&1)
code=$?
if [ $code -ne 0 ]; then
  echo "$words" | tail -n 5
  if [ $code -eq 5 ] && [ ! -e /dev/nvidiactl ] && [ ! -e /dev/dxg ]; then
    echo "gpu.sh: there is no device here: nothing was run"
    exit 77
  fi
  die "dpbench does not start on this machine's GPU (exit code $code, its words are above)"
fi
mkdir -p "$folder" || die "the folder $folder cannot be made"
folder=$(cd "$folder" && pwd)

# --- The table -----------------------------------------------------------------------------------------
rows=() has_failed=no
add() { # what, value, bar, ok|FAILED|-
  rows+=("$1|$2|$3|$4")
  [ "$4" != FAILED ] || has_failed=yes
  printf '  %s: %s  %s\n' "$1" "$2" "$4"
}
add_at_least() { # what, number or nothing, bar, unit
  if [ -z "$2" ]; then
    add "$1" "no result" ">= $3 $4" FAILED
  elif awk "BEGIN { exit !($2 >= $3) }"; then
    add "$1" "$2 $4" ">= $3 $4" ok
  else
    add "$1" "$2 $4" ">= $3 $4" FAILED
  fi
}
print_table() {
  printf '%s\n' "what|value|bar|ok" "${rows[@]}" | awk -F'|' '
    { for (i = 1; i <= NF; ++i) { cell[NR, i] = $i; if (length($i) > width[i]) width[i] = length($i) } }
    END {
      for (row = 1; row <= NR; ++row)
        printf "%-*s  %*s  %-*s  %s\n", width[1], cell[row, 1], width[2], cell[row, 2], width[3], cell[row, 3], cell[row, 4]
    }'
}
hangs=()
logged() { # log's name, limit in seconds, command
  local log=$folder/$1 limit=$2 code=0
  shift 2
  rm -f "$log"
  (set -C && echo "+ $*" >"$log") || die "$log cannot be written" # follows no link
  local begin=$SECONDS
  timeout -k 10 "$limit" "$@" >>"$log" 2>&1 </dev/null || code=$?
  # 137 is also the end by the kernel when memory runs out.
  if [ $code -eq 137 ] && [ $((SECONDS - begin)) -lt "$limit" ]; then
    echo "+ killed after $((SECONDS - begin)) s, perhaps for want of memory (dmesg)" >>"$log"
    add "  ${log##*/}" "killed" "within $limit s" FAILED
  elif [ $code -eq 124 ] || [ $code -eq 137 ]; then
    echo "+ ended after the limit of $limit s" >>"$log"
    hangs+=("$log")
    add "  ${log##*/}" "possible hang" "within $limit s" FAILED
  fi
  return $code
}
runs() { [[ -z $only || ,$only, == *,$1,* ]]; } # step
# timeout starts programs alone, so that functions go through a shell of their own.
export -f ranks
export mpirun
logged_ranks() { logged "$1" "$2" bash -c 'ranks "$@"' ranks "${@:3}"; }
images_per_s() { sed -n 's/.*: \([0-9.]*\) images\/s.*/\1/p' "$folder/$1" 2>/dev/null | tail -n 1; }

# --- 1. Tests -----------------------------------------------------------------------------------------
test_programs() {
  local passed=0 all=0 name np code verdict=FAILED
  if [ -s "$list" ]; then
    while read -r name np; do
      [ -n "$name" ] || continue
      all=$((all + 1))
      code=0
      export DP_TEST_DEVICE=cuda
      if [ "$np" -gt 1 ]; then
        logged_ranks "test-$name-np$np.txt" 120 "$np" "$tests/$name" || code=$?
      else
        logged "test-$name.txt" 120 "$tests/$name" || code=$?
      fi
      unset DP_TEST_DEVICE
      if [ $code -eq 0 ]; then passed=$((passed + 1)); else add "  $name, ranks: $np" "exit code $code" 0 FAILED; fi
    done <"$list"
  fi
  [ $all -gt 0 ] && [ $passed -eq $all ] && verdict=ok
  add "tests labelled gpu" "$passed of $all pass" all $verdict
}
test_cases() { # lines "SCRIPT CASE" of the tests in Python
  local passed=0 all=0 script name code verdict=FAILED
  [ -s "$cases" ] || return 0
  if ! "$python" -I -c 'import h5py, numpy' 2>/dev/null; then
    add "tests in Python" "not run: $python has no h5py" "all" -
    return 0
  fi
  while read -r script name; do
    all=$((all + 1))
    code=0
    logged "test-$name.txt" 300 "$python" -I "$scripts/$script" "$programs/dptrain" "$mpirun" "$name" || code=$?
    if [ $code -eq 0 ]; then passed=$((passed + 1)); else add "  $name" "exit code $code" 0 FAILED; fi
  done <"$cases"
  [ $passed -eq $all ] && verdict=ok
  add "tests in Python" "$passed of $all pass" all $verdict
}
if runs 1; then
  echo "1. tests"
  test_programs
  test_cases
fi

# Images/s of ResNet-18 in bf16, batch 512, as far as can be estimated. A training step takes 3.3 GFLOP an image
# (200 TFLOP/s of the H100's 990 at 60,000 images/s), and half of its time goes into moving activations. Other
# Hopper GPUs are rated by the mean of their tensor cores' speed and their memory bandwidth relative to an H100 SXM, A100
# and RTX 4090 by a roofline over the kernels of a step. None of them was measured.
estimate() { # name of the device
  case "$1" in
    *H200*) echo 73000 ;;        # 990 TFLOP/s, 4.8 TB/s
    *"H100 PCIe"*) echo 41000 ;; # 756, 2.0
    *H100*) echo 60000 ;;        # 990, 3.35
    *A100*) echo 34000 ;;        # 312, 1.6 to 2.0
    *"RTX 4090"*) echo 23000 ;;  # 165, 1.0
    *) echo '' ;;
  esac
}

# --- 2. Layers ----------------------------------------------------------------------------------------
measure() { # model, batch, precision: into `value`
  local log=layers-$1-$2-$3.txt
  logged "$log" 90 "$programs/dpbench" layers --device cuda --model "$1" --batch "$2" --precision "$3" --steps 40 --verbose
  value=$(images_per_s "$log")
}
layers() { # model, batch, precision
  measure "$@"
  if [ -n "$value" ]; then add "$1 batch $2 $3" "$value images/s" "" -; else add "$1 batch $2 $3" "no result" "" FAILED; fi
}
is_at_least() { awk "BEGIN { exit !($1 >= $2) }"; }

measure_layers() {
  # The one that others are compared with: beside the estimate for this GPU, and beside PyTorch on it.
  measure resnet18 512 bf16
  local gpu expected text bar verdict theirs precision
  gpu=$(sed -n 's/^  device: //p' "$folder/layers-resnet18-512-bf16.txt")
  expected=$(estimate "$gpu")
  text="${value:-no} images/s" bar='' verdict=-
  [ -n "$value" ] || verdict=FAILED
  if [ -n "$expected" ]; then
    bar="half of about $expected"
    if [ -n "$value" ]; then
      text="$text, $(awk "BEGIN { printf \"%.0f\", 100 * $value / $expected }") % of the estimate"
      if is_at_least "$value" "$expected / 2"; then verdict=ok; else verdict=FAILED; fi
    fi
  fi
  if [ -n "$peer" ]; then
    logged peer-resnet18-512-bf16.txt 240 "$python" "$peer" --model resnet18 --batch 512 --bf16 --device cuda \
      --compile --steps 40
    theirs=$(images_per_s peer-resnet18-512-bf16.txt)
    bar="${bar:+$bar; }PyTorch's ${theirs:-no result}"
    if [ -n "$value" ] && [ -n "$theirs" ]; then
      text="$text, $(awk "BEGIN { printf \"%.2f\", $value / $theirs }") x PyTorch"
      [ $verdict = FAILED ] || verdict=ok
      is_at_least "$value" "$theirs" || verdict=FAILED
    else
      verdict=FAILED
    fi
  fi
  add "resnet18 batch 512 bf16${gpu:+, ${gpu%%,*}}" "$text" "$bar" $verdict
  layers resnet20b 128 bf16
  if [ $quick = no ]; then
    for precision in fp32 tf32; do layers resnet18 512 $precision; done
    for precision in fp32 tf32 bf16; do layers resnet18 128 $precision; done
    for precision in fp32 tf32 bf16; do layers resnet20b 512 $precision; done
    for precision in fp32 tf32; do layers resnet20b 128 $precision; done
  fi
}
if runs 2; then
  echo "2. layers"
  measure_layers
fi

# --- 3. Codecs: every line of a codec ends in what it reaches of the device's copy bandwidth -------------
measure_codecs() {
  local codecs=0 name percent
  logged codecs.txt 90 "$programs/dpbench" codec --device cuda
  while read -r name percent; do
    codecs=$((codecs + 1))
    add_at_least "codec $name, slowest direction" "$percent" 60 "% of copy bandwidth"
  done < <(awk '/^ *(none|bf16|fp16|q[0-9]+n?) / {
    least = ""
    for (i = 2; i <= NF; ++i) {
      value = $i
      if (value == "%") value = $(i - 1) "%"
      if (value ~ /^[0-9.]+%$/) { sub("%", "", value); if (least == "" || value + 0 < least + 0) least = value }
    }
    if (least != "") print $1, least
  }' "$folder/codecs.txt")
  [ $codecs -gt 0 ] || add "codecs" "no result" ">= 60 % of copy bandwidth" FAILED
}
if runs 3; then
  echo "3. codecs"
  measure_codecs
fi

# --- 4. Four ranks on one GPU -----------------------------------------------------------------------------
train_four_ranks() {
  # The algorithms are fixed, so that both ways must give the same bits.
  local losses=() path code line rate verdict
  for path in host device; do
    rm -f "$folder/train-$path.h5"
    code=0
    logged_ranks "train-$path.txt" 120 4 "$programs/dptrain" --device cuda --model resnet20 --limit-train 12800 \
      --limit-test 1000 --batch-size 64 --epochs 2 --compress q8 --check-replicas step --gpu-exchange $path \
      --autotune off --log "$folder/train-$path.h5" || code=$?
    line=$(grep '^epoch 2/2 ' "$folder/train-$path.txt")
    rate=$(sed -n 's/.* \([0-9,.]*\) images\/s.*/\1/p' <<<"$line")
    losses+=("$(sed -n 's/.*train loss \([^ ]*\) .*test loss \([^ ]*\) .*/\1 \2/p' <<<"$line")")
    if [ $code -eq 0 ] && [ -n "$rate" ]; then
      add "4 ranks, q8, exchange on the $path" "$rate images/s" "identical replicas" ok
    else
      add "4 ranks, q8, exchange on the $path" "exit code $code" "identical replicas" FAILED
    fi
  done
  if [ -n "${losses[0]}" ] && [ "${losses[0]}" = "${losses[1]}" ]; then verdict=ok; else verdict=FAILED; fi
  add "losses of both ways" "${losses[0]:-none} / ${losses[1]:-none}" equal $verdict
}
if runs 4; then
  echo "4. four ranks"
  train_four_ranks
fi

# --- 5. Short runs ------------------------------------------------------------------------------------------
# Runs that are to be equal have the same fields here: losses and the hash of the weights in each epoch.
fields() { # log's name
  sed -n 's/^{"event":"epoch".*"train_loss":\([^,]*\),.*"test_loss":\([^,]*\),.*"replica_hash":"\([^"]*\)".*/\1 \2 \3/p' \
    "$folder/$1" | tr '\n' ' '
}
usual=(--progress json --log none --autotune off --lr-schedule constant --lr 0.01 --limit-train 96 --limit-test 16
  --batch-size 8 --epochs 2 --threads 1 --model resnet20 --check-replicas step)
short() { # log's name, ranks, options, which replace the usual ones
  local options=("${@:3}") i
  for ((i = 0; i < ${#usual[@]}; i += 2)); do
    case " ${*:3} " in *" ${usual[i]} "*) ;; *) options+=("${usual[@]:i:2}") ;; esac
  done
  logged_ranks "$1" 180 "$2" "$programs/dptrain" "${options[@]}"
}
# The first epoch's loss is compared with the CPU's, which adds up in another order. The difference grows with the
# steps, and faster with a coarse codec or in bf16, so that the allowed one catches mistakes, not roundings.
compare() { # what, ranks, allowed difference from the CPU in %, options
  local what=$1 ranks=$2 allowed=$3 name=short-${1//[^a-zA-Z0-9]/-} first again cpu difference
  shift 3
  short "$name-1.txt" "$ranks" --device cuda "$@"
  first=$(fields "$name-1.txt")
  short "$name-2.txt" "$ranks" --device cuda "$@"
  again=$(fields "$name-2.txt")
  short "$name-cpu.txt" "$ranks" --device cpu "$@"
  cpu=$(fields "$name-cpu.txt")
  if [ "$(wc -w <<<"$first")" -ne 6 ] || [ "$(wc -w <<<"$cpu")" -ne 6 ]; then
    add "$what" "a run did not end: $name-*.txt" "equal twice, CPU within $allowed %" FAILED
    return
  fi
  difference=$(awk "BEGIN { d = 100 * (${first%% *} / ${cpu%% *} - 1); printf \"%.3f\", d < 0 ? -d : d }")
  if [ "$first" != "$again" ]; then
    add "$what" "another result the second time" "equal twice, CPU within $allowed %" FAILED
  elif awk "BEGIN { exit !($difference <= $allowed) }"; then
    add "$what" "equal twice, CPU $difference % away" "equal twice, CPU within $allowed %" ok
  else
    add "$what" "CPU $difference % away" "equal twice, CPU within $allowed %" FAILED
  fi
}
same() { # what, fields of two runs
  local verdict=FAILED
  [ "$(wc -w <<<"$2")" -eq 6 ] && [ "$2" = "$3" ] && verdict=ok
  add "$1" "$([ $verdict = ok ] && echo equal || echo "'$2' and '$3'")" equal $verdict
}
# Two PNGs of 32x32 pixels: coloured tiles and a chequered pattern.
tiles=iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAAQ0lEQVR42u3NQQ0AMAwDscIZiAALsAAcgR6ASpH898
tiles+=yblYBBwDRocCLQSsAgoEGDG4FXAgYBDRrcCLISMAho0OBA8AGN0nAuORBZlQAAAABJRU5ErkJggg==
chequers=iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAAOUlEQVR42mOQq7CBoxNIiFriDKMWELSAFoYii49aQN
chequers+=iC0WQ6mg9GLRhNpqP5YNSC0Xwwmg9GLQAjAEtsnD0EwHi/AAAAAElFTkSuQmCC
make_tree() { # folder: two classes, eight times one picture each
  local part i
  rm -rf "$1"
  for part in train val; do
    mkdir -p "$1/$part"/{tiles,chequers}
    for i in 1 2 3 4 5 6 7 8; do
      base64 -d <<<"$tiles" >"$1/$part/tiles/$i.png"
      base64 -d <<<"$chequers" >"$1/$part/chequers/$i.png"
    done
  done
}
short_runs() {
  compare "plain" 1 0.1 --compress none
  compare "q8" 2 0.5 --compress q8
  compare "sync-bn" 2 0.5 --compress q8 --sync-bn on
  compare "rounds" 2 0.5 --compress q8 --sync-every 2:outer-lr=0.7,outer-momentum=0.5
  compare "accumulate and EMA" 2 0.5 --compress q8 --accumulate 2 --ema 0.9
  compare "ecq" 2 2 --compress ecq:bits=0.35 --topology direct
  compare "masked velocities" 2 2 --compress ecq:bits=0.35,velocity=masked --topology direct
  compare "airbench94" 2 5 --recipe airbench94 --model airbench94 --lr-schedule triangular --compress q8 --lr 0.1
  compare "VGG16 with dropout" 2 1 --model vgg16-bn --compress q8 --limit-train 32 --batch-size 4
  compare "Adam" 2 2 --optimizer adam --lr 0.001 --compress q8
  compare "LARS" 2 1 --optimizer lars --lr 1 --compress q8
  compare "Muon" 2 2 --optimizer muon --compress q8
  compare "bf16 with an exchange" 2 5 --precision bf16 --compress q8
  make_tree "$folder/tree"
  compare "folder of images" 2 1 --data-dir "$folder/tree" --compress q8 --limit-train 0 --limit-test 0

  # The rate of auto follows measured times: the second run takes those of the first one's log.
  short short-auto-1.txt 2 --device cuda --compress auto --topology direct --autotune on --log "$folder/short-auto.h5"
  short short-auto-2.txt 2 --device cuda --compress auto --topology direct --autotune "$folder/short-auto.h5"
  same "auto, again with the first run's rates" "$(fields short-auto-1.txt)" "$(fields short-auto-2.txt)"

  # Goes on from the checkpoint after the first epoch.
  local checkpoints=(--compress q4 --checkpoint "$folder/checkpoints" --checkpoint-every 1epoch)
  rm -rf "$folder/checkpoints"
  short short-checkpoint.txt 2 --device cuda "${checkpoints[@]}"
  rm -f "$folder"/checkpoints/step000000012.*
  short short-resumed.txt 2 --device cuda "${checkpoints[@]}" --resume
  same "checkpoint and resume, second epoch" "$(fields short-checkpoint.txt | cut -d ' ' -f 4-6) 1 2 3" \
    "$(fields short-resumed.txt | sed 's/ $//') 1 2 3"

  # The gradients on the host or on the device, and two GPUs or one.
  local path
  for path in host device; do short "short-$path.txt" 2 --device cuda --compress q8 --gpu-exchange $path; done
  same "gradients on the host and on the device" "$(fields short-host.txt)" "$(fields short-device.txt)"
  if [ "$(find /dev -maxdepth 1 -name 'nvidia[0-9]*' 2>/dev/null | wc -l)" -ge 2 ]; then
    short short-two-gpus.txt 2 --device cuda --compress q8
    CUDA_VISIBLE_DEVICES=0 short short-one-gpu.txt 2 --device cuda --compress q8
    same "two GPUs and one" "$(fields short-two-gpus.txt)" "$(fields short-one-gpu.txt)"
  else
    add "two GPUs and one" "not run: one GPU" equal -
  fi
}
if runs 5; then
  echo "5. short runs"
  short_runs
fi

# --- 6. and 7.: long ones ----------------------------------------------------------------------------------
if [ -n "$data" ] && runs 6; then
  echo "6. 30 epochs of CIFAR-10"
  rm -f "$folder/cifar10.h5"
  logged cifar10.txt 1500 "$programs/dptrain" --device cuda --precision bf16 --model resnet18 --dataset cifar10 \
    --data-dir "$data" --epochs 30 --log "$folder/cifar10.h5"
  line=$(grep '^epoch 30/30 ' "$folder/cifar10.txt")
  accuracy=$(sed -n 's/.*test loss.*accuracy \([0-9.]*\) %.*/\1/p' <<<"$line")
  add_at_least "ResNet-18, CIFAR-10, 30 epochs, bf16" "$accuracy" 92 %
fi
if [ $scan = yes ] && runs 7; then
  echo "7. batch sizes"
  arguments=(--device cuda --precision bf16 --model resnet18 --lr 0.01)
  [ -z "$data" ] || arguments+=(--dataset cifar10 --data-dir "$data")
  logged batch-scan.txt 1500 "$root/experiments/batch_scan.sh" --out "$folder/batch-scan" "${arguments[@]}"
  code=$?
  sed -n '/^ *batch /,$p' "$folder/batch-scan.txt"
  if [ $code -eq 0 ]; then verdict=ok; else verdict=FAILED; fi
  add "batch-size scan" "$(grep -c '^ *[0-9]' "$folder/batch-scan.txt") sizes" "a clear end" $verdict
fi

echo
rm -f "$folder/table.txt"
(set -C && print_table >"$folder/table.txt") && cat "$folder/table.txt"
echo
echo "logs: $folder"
if [ ${#hangs[@]} -gt 0 ]; then
  cat <<TEXT

Commands ran into their limit, possibly a hang. Please send in, for the first of them (${hangs[0]}):
its log and table.txt; the output of nvidia-smi and of $programs/dptrain --version; and, while the command in the
log's first line runs once more and stands still, the output of
  gdb -p PID -batch -ex 'thread apply all bt'     for each dptrain process, and of
  nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv
TEXT
fi
[ $has_failed = no ]
