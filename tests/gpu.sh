#!/usr/bin/env bash
# Everything that needs a GPU: tests, measurements, a training of four ranks; one table. See --help.
set -uo pipefail

usage() {
  cat <<'TEXT'
Usage: tests/gpu.sh [--out FOLDER] [--quick] [--peer SCRIPT] [--python PYTHON]
                    [--data-dir FOLDER] [--scan]

Runs, from an unpacked bundle or from a checkout with a build in build/, on a machine
with a GPU, one after the other, whatever fails on the way:

  1. every test program that is labelled gpu
  2. training throughput of ResNet-18 and ResNet-20, batch 512 and 128, fp32, tf32, bf16
  3. the codecs' speed beside the device's memory bandwidth
  4. four ranks on one GPU with q8 and a comparison of the replicas after every step, with
     the gradients exchanged by the host and by the device
  5. with --data-dir: ResNet-18 on CIFAR-10 for 30 epochs
  6. with --scan: throughput over batch sizes until the device's memory is full

and prints one table: what, value, bar, ok. 1 to 4 take under 8 minutes. Exit code: 0 all
bars reached, 1 not so, 77 there is no device.

What ResNet-18 in bf16 should reach is an estimate for each kind of GPU (60,000 images/s on
an H100, batch 512; none for GPUs that are not in the list). The table tells the share of it
that was reached; below half of it something is wrong with the build or the machine, and the
row fails. With --peer the row tells the ratio to PyTorch, too, which must be 1 or more.

  --out FOLDER        logs and table.txt go there (default: gpu-results)
  --quick             of 2 only the two models' bf16 rows
  --peer SCRIPT       a PyTorch script that prints "... N images/s"; it is called with
                      --model resnet18 --batch 512 --bf16 --device cuda --compile
  --python PYTHON     what runs the script (default: python3)
  --data-dir FOLDER   CIFAR-10 in its binary form (experiments/get_cifar.sh)
TEXT
}

die() {
  echo "gpu.sh: $*" >&2
  exit 2
}

folder=gpu-results quick=no peer='' python=python3 data='' scan=no
while [ $# -gt 0 ]; do
  case "$1" in
    --help) usage; exit 0 ;;
    --quick) quick=yes ;;
    --scan) scan=yes ;;
    --out | --peer | --python | --data-dir)
      [ $# -ge 2 ] && [ -n "$2" ] || die "$1: needs a value"
      case "$1" in
        --out) folder=$2 ;;
        --peer) peer=$2 ;;
        --python) python=$2 ;;
        --data-dir) data=$2 ;;
      esac
      shift
      ;;
    *) die "$1: unknown option; known: --out, --quick, --peer, --python, --data-dir, --scan, --help" ;;
  esac
  shift
done
[ -z "$peer" ] || [ -f "$peer" ] || die "--peer $peer: no such file"
[ -z "$data" ] || [ -d "$data" ] || die "--data-dir $data: no such folder"

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ -x "$root/bin/dptrain" ]; then # a bundle
  programs=$root/bin tests=$root/tests list=$root/tests/gpu_tests.txt mpirun=$root/bin/mpirun
  export DP_FIXTURES=$root/tests/fixtures
else
  programs=$root/build/bin tests=$programs list=$root/build/gpu_tests.txt mpirun=mpirun
fi
for file in dptrain dpbench; do
  [ -x "$programs/$file" ] || die "there is no $programs/$file: build it, or run this from an unpacked bundle"
done

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
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
logged() { # log's name, limit in seconds, command
  local log=$folder/$1 limit=$2
  shift 2
  echo "+ $*" >"$log"
  timeout "$limit" "$@" >>"$log" 2>&1 </dev/null
}
# timeout starts programs alone, so that functions go through a shell of their own.
export -f ranks
export mpirun
logged_ranks() { logged "$1" "$2" bash -c 'ranks "$@"' ranks "${@:3}"; }
images_per_s() { sed -n 's/.*: \([0-9.]*\) images\/s.*/\1/p' "$folder/$1" 2>/dev/null | tail -n 1; }

# --- 1. Tests -----------------------------------------------------------------------------------------
echo "1. tests"
passed=0 all=0
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
if [ $all -gt 0 ] && [ $passed -eq $all ]; then verdict=ok; else verdict=FAILED; fi
add "tests labelled gpu" "$passed of $all pass" all $verdict

# Images/s of ResNet-18 in bf16, batch 512, as far as can be estimated. A training step takes 3.3 GFLOP an image
# (200 TFLOP/s of the H100's 990 at 60,000 images/s), and half of its time goes into moving activations; so other
# GPUs are rated by the mean of their tensor cores' speed and their memory bandwidth relative to an H100 SXM.
estimate() { # name of the device
  case "$1" in
    *H200*) echo 73000 ;;        # 990 TFLOP/s, 4.8 TB/s
    *"H100 PCIe"*) echo 41000 ;; # 756, 2.0
    *H100*) echo 60000 ;;        # 990, 3.35
    *A100*) echo 25000 ;;        # 312, 1.6 to 2.0
    *) echo '' ;;
  esac
}

# --- 2. Layers ----------------------------------------------------------------------------------------
echo "2. layers"
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

# The one that others are compared with: beside the estimate for this GPU, and beside PyTorch on it.
measure resnet18 512 bf16
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

# --- 3. Codecs: every line of a codec ends in what it reaches of the device's copy bandwidth -------------
echo "3. codecs"
logged codecs.txt 90 "$programs/dpbench" codec --device cuda
codecs=0
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

# --- 4. Four ranks on one GPU -----------------------------------------------------------------------------
echo "4. four ranks"
# The algorithms are fixed, so that both ways must give the same bits.
losses=()
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

# --- 5. and 6.: long ones ----------------------------------------------------------------------------------
if [ -n "$data" ]; then
  echo "5. 30 epochs of CIFAR-10"
  rm -f "$folder/cifar10.h5"
  logged cifar10.txt 1500 "$programs/dptrain" --device cuda --precision bf16 --model resnet18 --dataset cifar10 \
    --data-dir "$data" --epochs 30 --log "$folder/cifar10.h5"
  line=$(grep '^epoch 30/30 ' "$folder/cifar10.txt")
  accuracy=$(sed -n 's/.*test loss.*accuracy \([0-9.]*\) %.*/\1/p' <<<"$line")
  add_at_least "ResNet-18, CIFAR-10, 30 epochs, bf16" "$accuracy" 92 %
fi
if [ $scan = yes ]; then
  echo "6. batch sizes"
  arguments=(--device cuda --precision bf16 --model resnet18 --lr 0.01)
  [ -z "$data" ] || arguments+=(--dataset cifar10 --data-dir "$data")
  logged batch-scan.txt 1500 "$root/experiments/batch_scan.sh" --out "$folder/batch-scan" "${arguments[@]}"
  code=$?
  sed -n '/^ *batch /,$p' "$folder/batch-scan.txt"
  if [ $code -eq 0 ]; then verdict=ok; else verdict=FAILED; fi
  add "batch-size scan" "$(grep -c '^ *[0-9]' "$folder/batch-scan.txt") sizes" "a clear end" $verdict
fi

echo
print_table | tee "$folder/table.txt"
echo
echo "logs: $folder"
[ $has_failed = no ]
