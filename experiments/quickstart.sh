#!/usr/bin/env bash
# From a fresh checkout to a trained network: packages, build, training. See --help.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: experiments/quickstart.sh [--ranks N] [--no-setup] [dptrain's options]

Installs missing packages, builds dptrain in build/, and trains on 4 ranks of this
machine with gradients compressed to 8 bits, on the built-in synthetic images. At
the end it prints what each epoch cost and where the run's log is (a file
dptrain-DATE-TIME.h5 in the current folder). A second call starts to train at once.

  --ranks N    train on N ranks instead of 4
  --no-setup   install nothing

Everything else goes to dptrain, for example:

  experiments/quickstart.sh --compress none --epochs 2
  experiments/quickstart.sh --data-dir data/cifar-10-batches-bin --epochs 10
  build/bin/dptrain --help
TEXT
}

die() {
  echo "quickstart.sh: $*" >&2
  exit 2
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
ranks=4
setup=yes
codec=(--compress q8)
options=()
while [ $# -gt 0 ]; do
  case "$1" in
    --help) usage; exit 0 ;;
    --no-setup) setup=no ;;
    --ranks)
      [ $# -ge 2 ] || die "--ranks: needs a value, a whole number from 1 to 256"
      ranks=$2
      shift
      ;;
    --ranks=*) ranks=${1#--ranks=} ;;
    *)
      case "$1" in --compress | --compress=*) codec=() ;; esac
      options+=("$1")
      ;;
  esac
  shift
done
if ! [[ $ranks =~ ^[1-9][0-9]{0,2}$ ]] || [ "$ranks" -gt 256 ]; then
  die "--ranks $ranks: must be a whole number from 1 to 256"
fi

[ "$setup" = no ] || bash "$root/experiments/setup.sh"
bash "$root/experiments/build.sh" dptrain

# mpirun refuses to run as root, or with more ranks than cores, unless options allow it. Ranks on one machine need
# no network.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
command=(mpirun -np "$ranks" --oversubscribe --bind-to none
  "$root/build/bin/dptrain" "${codec[@]}" "${options[@]}")
echo
echo "+ ${command[*]}"
exec "${command[@]}"
