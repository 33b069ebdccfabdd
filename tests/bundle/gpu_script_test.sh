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
check 'NVIDIA A100-SXM4-80GB' 26000.0 '' '*104 % of the estimate *half of about 25000 *ok'
check 'NVIDIA L4' 9000.0 '' '*NVIDIA L4 *9000.0 images/s *-'
check 'NVIDIA L4' 9000.0 8000.0 "*9000.0 images/s, 1.12 x PyTorch *PyTorch's 8000.0 *ok"
check "$h100" '' '' '*no images/s *FAILED'
exit $((failures > 0))
