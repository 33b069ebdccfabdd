#!/usr/bin/env bash
# Measures throughput over batch sizes, until the memory is full or the batch is the whole data set. See --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: experiments/batch_scan.sh [--out FOLDER] [--first N] [--ranks N] [dptrain's options]

Trains two epochs at batch size 32, 128, 512, ... (four times as much each time), the
second of which counts, and prints what it took. The scan ends where the memory of the
device is full, and says what would have fitted, or where the batch is the whole data set.

  --out FOLDER   what the runs print and their logs (default: batch-scan). A scan that was
                 stopped goes on where it was; a run that exists already is not repeated
  --first N      the first batch size, per rank (default: 32)
  --ranks N      ranks; N batches are computed at once (default: 1)

Everything else goes to dptrain, for example:

  experiments/batch_scan.sh --device cuda --precision bf16 --dataset cifar10 --data-dir data
  experiments/batch_scan.sh --device cpu --model resnet20 --limit-train 2048 --limit-test 256
TEXT
}

die() {
  echo "batch_scan.sh: $*" >&2
  exit 2
}

whole_number() { # option, value, most
  if ! [[ $2 =~ ^[1-9][0-9]{0,6}$ ]] || [ "$2" -gt "$3" ]; then
    die "$1 $2: must be a whole number from 1 to $3"
  fi
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
largest=65536 # dptrain's own limit of --batch-size
folder=batch-scan first=32 ranks=1
options=()
while [ $# -gt 0 ]; do
  case "$1" in
    --help) usage; exit 0 ;;
    --out | --first | --ranks)
      [ $# -ge 2 ] && [ -n "$2" ] || die "$1: needs a value"
      case "$1" in
        --out) folder=$2 ;;
        --first) first=$2 ;;
        --ranks) ranks=$2 ;;
      esac
      shift
      ;;
    --out=* | --first=* | --ranks=*)
      set -- "${1%%=*}" "${1#*=}" "${@:2}"
      continue
      ;;
    --batch-size* | --global-batch* | --epochs* | --log | --log=*) die "${1%%=*}: is set by the scan itself" ;;
    *) options+=("$1") ;;
  esac
  shift
done
whole_number --first "$first" "$largest"
whole_number --ranks "$ranks" 256

program='' # of the bundle or of the build folder
for file in "$root/bin/dptrain" "$root/build/bin/dptrain"; do
  [ -x "$file" ] && program=$file && break
done
[ -n "$program" ] || die "there is no $root/build/bin/dptrain; build it: experiments/build.sh dptrain"
run=("$program")
if [ "$ranks" -gt 1 ]; then
  mpirun=$root/bin/mpirun
  if [ ! -x "$mpirun" ]; then mpirun=mpirun; fi
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  run=("$mpirun" -np "$ranks" --oversubscribe --bind-to none "$program")
fi

mkdir -p "$folder" || die "the folder $folder cannot be made"
# Files are written under names that nobody can foresee, so that no link in the folder leads elsewhere.
unfinished=''
trap 'rm -f "$unfinished"' EXIT
begin_file() {
  unfinished=$(mktemp "$folder/.unfinished-XXXXXXXX" 2>/dev/null) || die "nothing can be written to the folder $folder"
  chmod "$(printf '%o' $((0666 & ~$(umask))))" "$unfinished"
}
end_file() { # its name
  mv -T "$unfinished" "$1" || die "$1 cannot be written"
  unfinished=''
}

same="first $first ranks $ranks options ${options[*]}"
if [ -e "$folder/options.txt" ] && [ "$(cat "$folder/options.txt")" != "$same" ]; then
  die "$folder holds a scan with other options; name another folder by --out, or remove it"
fi

number() { tr -d ', ' <<<"$1"; }

# Prints one row of the table from what a run printed.
row() { # batch size, file
  local line time unit loss rate memory
  line=$(grep '^epoch 2/2 ' "$2")
  loss=$(sed -n 's/^.*train loss \([^ ]*\) .*$/\1/p' <<<"$line")
  # "...  accuracy 9.4 %  71.7 ms  893 images/s  ..."
  read -r time unit rate < <(sed -n 's/^.* % *\([0-9.]*\) \([mun]*s\) *\([0-9,.]*\) images\/s.*$/\1 \2 \3/p' <<<"$line")
  case "$unit" in
    us) time=$(awk "BEGIN { print $time / 1e6 }") ;;
    ms) time=$(awk "BEGIN { print $time / 1e3 }") ;;
  esac
  memory=$(sed -n 's/^ *activations  *\(.*\)$/\1/p' "$2" | head -n 1)
  printf '%8d  %10s  %10s  %10s  %12s\n' "$1" "$time" "$(number "$rate")" "$loss" "$memory"
}

finish() { # exit code, words
  local code=$1
  shift
  echo
  echo "scan ended: $*"
  echo "logs: $folder/batch-*.h5"
  exit "$code"
}

printf '%8s  %10s  %10s  %10s  %12s\n' batch epoch_s images/s train_loss activations
images='' batch=$first
while true; do
  text=$folder/batch-$batch.txt
  if [ ! -e "$text" ]; then
    rm -f "$folder/batch-$batch.h5"
    begin_file
    code=0
    "${run[@]}" "${options[@]}" --batch-size "$batch" --epochs 2 --log "$folder/batch-$batch.h5" \
      >"$unfinished" 2>&1 </dev/null || code=$?
    if [ $code -ne 0 ]; then
      message=$(grep -a '^dptrain: ' "$unfinished" | head -n 1 | sed 's/^dptrain: //' || true)
      end_file "$folder/batch-$batch.failed"
      if [ $code -eq 5 ] && [[ $message == *"out of memory"* ]]; then
        finish 0 "batch $(printf "%'d" "$batch"): $message"
      elif [ $code -eq 137 ]; then
        finish 0 "batch $batch: the run was killed, as it happens when the host's memory is full"
      fi
      tail -n 5 "$folder/batch-$batch.failed" >&2
      finish "$code" "batch $batch failed with exit code $code: ${message:-see $folder/batch-$batch.failed}"
    fi
    end_file "$text"
    begin_file
    echo "$same" >"$unfinished"
    end_file "$folder/options.txt"
  fi
  row "$batch" "$text"
  if [ -z "$images" ]; then
    images=$(number "$(sed -n 's/^dptrain .*(\([0-9,]*\) training images).*$/\1/p' "$text" | head -n 1)")
    [ -n "$images" ] || die "$text does not say how many training images there are"
  fi
  [ $((batch * ranks)) -lt "$images" ] || finish 0 "the batch is the whole data set ($images images)"
  [ "$batch" -lt $largest ] || finish 0 "$largest is dptrain's largest batch"
  batch=$((batch * 4))
  whole=$(((images + ranks - 1) / ranks))
  [ $batch -le $whole ] || batch=$whole
  [ $batch -le $largest ] || batch=$largest
done
