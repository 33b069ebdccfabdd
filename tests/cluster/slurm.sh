#!/usr/bin/env bash
# Slurm on this machine alone. See --help. Commands in single quotes are expanded later.
# shellcheck disable=SC2016
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: tests/cluster/slurm.sh [--bin FOLDER] [CASE...]

Starts munged, slurmctld and two slurmd with files, ports and keys of their own, and
tries dptrain in this cluster of two nodes:

  srun     srun --mpi=pmix starts the ranks
  mpirun   mpirun in a job starts them on both nodes
  limit    experiments/cluster/slurm.sbatch: a job that reaches its time limit is put
           into the queue again and ends with the bits of an undisturbed run

Without a case all are tried, which takes about four minutes, mostly waiting. Needs the
packages slurmctld, slurmd, slurm-client, munge and python3-h5py, and root. Everything
that was started ends with this script, and nothing is left behind.

  --bin FOLDER   where dptrain and dptrun are (build/bin)
TEXT
}

die() {
  echo "slurm.sh: $*" >&2
  exit 1
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=$root/build/bin cases=()
while [ $# -gt 0 ]; do
  case "$1" in
    --help) usage; exit 0 ;;
    --bin) bin=$(realpath "$2"); shift ;;
    srun | mpirun | limit) cases+=("$1") ;;
    *) die "$1: unknown; known: --bin, --help, srun, mpirun, limit" ;;
  esac
  shift
done
[ ${#cases[@]} -gt 0 ] || cases=(srun mpirun limit)
for tool in munged slurmctld slurmd srun; do
  command -v "$tool" >/dev/null || die "needs $tool (apt-get install slurmctld slurmd slurm-client munge)"
done
[ "$(id -u)" -eq 0 ] || die "needs root"
[ -x "$bin/dptrain" ] || die "there is no $bin/dptrain; build it: experiments/build.sh dptrain dptrun"

# A process namespace of its own: all that is started ends with it.
if [ -z "${SLURM_TEST_FOLDER:-}" ]; then
  folder=$(mktemp -d /tmp/slurm.XXXXXX)
  trap 'rm -rf "$folder"' EXIT
  SLURM_TEST_FOLDER=$folder unshare --mount --pid --fork --kill-child --mount-proc "$0" --bin "$bin" "${cases[@]}"
  exit
fi
folder=$SLURM_TEST_FOLDER
mkdir -p "$folder"/{munge,state,log,work,tmp/one,tmp/two}
chmod 755 "$folder"

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
host=$(hostname -s)
cores=$(nproc)
head -c 128 /dev/urandom >"$folder/munge/key"
chmod 400 "$folder/munge/key"
cat >"$folder/slurm.conf" <<CONF
ClusterName=here
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(free_port)
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/state/%n
TmpFS=$folder/tmp/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/log/slurmctld
SlurmdLogFile=$folder/log/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=5
NodeName=one NodeHostname=$host NodeAddr=127.0.0.1 Port=$(free_port) CPUs=$cores
NodeName=two NodeHostname=$host NodeAddr=127.0.0.1 Port=$(free_port) CPUs=$cores
PartitionName=all Nodes=one,two Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$folder/slurm.conf
munged --key-file="$folder/munge/key" --socket="$folder/munge/socket" --pid-file="$folder/munge/pid" \
  --log-file="$folder/log/munged" --seed-file="$folder/munge/seed" --force 2>"$folder/log/munged.start" ||
  { cat "$folder/log/munged.start"; die "munged does not start"; }
slurmctld -c 2>"$folder/log/start" || { cat "$folder/log/start"; die "slurmctld does not start"; }
for node in one two; do
  slurmd -N $node 2>"$folder/log/start" || { cat "$folder/log/start"; die "slurmd does not start"; }
done
wait_for() { # SECONDS WHAT COMMAND...
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    [ $SECONDS -lt "$end" ] || { tail -n 20 "$folder"/log/*; die "waited in vain for $what"; }
    sleep 0.5
  done
}
nodes_are_idle() { [ "$(sinfo -h -o %D -t idle)" = 2 ]; }
wait_for 60 "two idle nodes" nodes_are_idle
sinfo

cd "$folder/work"
export PATH="$bin:$PATH" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
tiny=(--model resnet20 --batch-size 8 --limit-test 16 --threads 1 --autotune off --compress q8)
hashes() { # the replicas' hash and the training loss of every epoch
  /usr/bin/python3 -c 'import h5py, sys
for row in h5py.File(sys.argv[1])["epochs"]: print(row["epoch"], row["train_loss"], row["replica_hash"])' "$1"
}

of_srun() {
  echo "== srun --mpi=pmix"
  srun --mpi=pmix --nodes=2 --ntasks=2 --time=5 dptrain "${tiny[@]}" --limit-train 32 --epochs 1 --log srun.h5 >srun.out ||
    { tail -n 20 srun.out "$folder"/log/{one,two}; die "srun --mpi=pmix failed"; }
  grep -m 1 '2 ranks' srun.out
}

of_mpirun() {
  echo "== mpirun in a job"
  salloc --quiet --nodes=2 --ntasks=2 --time=5 mpirun --bind-to none dptrain "${tiny[@]}" --limit-train 32 --epochs 1 \
    --log mpirun.h5 >mpirun.out || { tail -n 20 mpirun.out; die "mpirun in a job failed"; }
  grep -m 1 '2 ranks' mpirun.out
}

state_of() { scontrol show job "$1" | grep -oE 'JobState=\w+' | cut -d= -f2; }
has_state() { [[ " $2 " == *" $(state_of "$1") "* ]]; }

of_limit() {
  echo "== a job that reaches its time limit"
  local job restarts epochs=400
  job=$(sbatch --parsable --time=1 --signal=B:USR1@40 --nodes=2 --ntasks-per-node=1 --export=ALL \
    "$root/experiments/cluster/slurm.sbatch" "${tiny[@]}" --limit-train 64 --epochs $epochs --checkpoint-every 20epoch)
  wait_for 120 "the start of the job" has_state "$job" RUNNING
  wait_for 120 "the job's return to the queue" has_state "$job" PENDING
  # Slurm lets such a job wait for two minutes. It gets all the time that it needs.
  scontrol update JobId="$job" TimeLimit=30 StartTime=now
  wait_for 120 "the job's second start" has_state "$job" "RUNNING COMPLETED"
  wait_for 600 "the end of the job" has_state "$job" "COMPLETED FAILED TIMEOUT CANCELLED NODE_FAIL"
  restarts=$(scontrol show job "$job" | grep -oE 'Restarts=[0-9]+' | cut -d= -f2)
  grep -E '^slurm.sbatch|continues|^dptrun' "dptrain-$job.out" || true
  [ "$(state_of "$job")" = COMPLETED ] || { tail -n 20 "dptrain-$job.out"; die "the job is $(state_of "$job")"; }
  [ "$restarts" = 1 ] || die "the job has been started again $restarts times"
  salloc --quiet --nodes=2 --ntasks=2 mpirun --bind-to none dptrain "${tiny[@]}" --limit-train 64 --epochs $epochs \
    --log undisturbed.h5 >undisturbed.out
  hashes "run-$job.h5" >disturbed
  hashes undisturbed.h5 >undisturbed
  [ "$(wc -l <undisturbed)" -eq $epochs ] || die "the undisturbed run has $(wc -l <undisturbed) epochs"
  diff disturbed undisturbed || die "the bits differ"
  echo "$epochs epochs with the same losses and hashes"
}

for case in "${cases[@]}"; do "of_$case"; done
echo "slurm.sh: ${cases[*]}: as expected"
