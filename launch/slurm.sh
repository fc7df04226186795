#!/usr/bin/env bash
# Trains on GPU nodes of a Slurm cluster, one process a GPU: submits a job and returns.
#   NODES=... GPUS=... launch/slurm.sh [--dry-run] GIN_FILE RUN_DIR [-- ARGUMENT ...]
#   NODES=4 GPUS=8 SBATCH_TIMELIMIT=1-0 launch/slurm.sh runs/synthetic_ar.gin /shared/runs/ar -- --data_dir=/shared/data
# RUN_DIR and the data lie in a folder that all nodes mount. Two minutes before the time limit every process gets
# SIGTERM. A job that came to its limit, was preempted or lost a node is queued again, and goes on at its newest
# checkpoint; scancel ends it.
# SUBCOMMAND=translate (after -- come --inputs, --output, --shards) or distill: RUN_DIR is then the model.
# Variables: NODES, GPUS (on each), PADIR (the command; default padir), and sbatch's own, such as SBATCH_PARTITION.

# shellcheck source=launch/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
needs NODES GPUS

# Each task sees all GPUs of its node and JAX gives it the one of its number: so no --gpus-per-task. Tasks that were told
# to stop end one after the other, training with status 75, other work, which goes on where it was, by the signal (143):
# the first must not have the others killed. scancel ends this script, too, before it could queue the job again.
run=(srun --kill-on-bad-exit=0 --wait=120 "${command[@]}")
# shellcheck disable=SC2016 # the job's shell expands it
again='case $status in 75 | 143) scontrol requeue $SLURM_JOB_ID ;; esac'
submit=(sbatch --job-name=padir "--nodes=$NODES" "--ntasks-per-node=$GPUS" "--gpus-per-node=$GPUS"
  --requeue --open-mode=append --signal=TERM@120
  "--wrap=$(quoted "${run[@]}"); status=\$?; $again; exit \$status")

if [[ $dry_run ]]; then
  quoted "${submit[@]}"
else
  exec "${submit[@]}"
fi
