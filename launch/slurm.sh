#!/usr/bin/env bash
# Trains on GPU nodes of a Slurm cluster with one process per GPU: submits a job and returns.
#   NODES=... GPUS=... launch/slurm.sh [--dry-run] GIN_FILE RUN_DIR [-- ARGUMENT ...]
#   NODES=4 GPUS=8 SBATCH_TIMELIMIT=1-0 launch/slurm.sh runs/synthetic_ar.gin /shared/runs/ar -- --data_dir=/shared/data
# RUN_DIR and the data are in a folder that all nodes mount, or in a bucket (gs://…; padir then needs its gcs extra).
# Two minutes before the time limit every process gets SIGTERM and saves a checkpoint. A job that is preempted has as long
# as the partition's GraceTime allows. A job that reached its time limit, was preempted or lost a node is queued again,
# unless the site forbids it, and resumes from its newest checkpoint. scancel ends it for good.
# To translate or distil instead, set SUBCOMMAND=translate or SUBCOMMAND=distill. RUN_DIR is then the model, and the
# arguments of that command (such as --inputs, --output and --shards, which translate needs) follow --.
# Variables: NODES, GPUS (per node), CPUS (for each GPU; default 8), PADIR (the command; default padir), and those of
#   sbatch, such as SBATCH_PARTITION.

# shellcheck source=launch/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
needs NODES GPUS
cpus=${CPUS:-8}

# No --gpus-per-task: JAX picks a task's GPU by the task's number on the node, so each task must see all GPUs of it.
# --kill-on-bad-exit=0: stopped tasks exit one after another with an error status, and each needs time to save.
# srun is told of the CPUs as well: some versions of Slurm do not pass on what sbatch was asked for.
run=(srun --kill-on-bad-exit=0 --wait=120 "--cpus-per-task=$cpus" "${command[@]}")
# A stopped training exits with 75; other commands end by SIGTERM (143). Both can resume, so the job is queued again.
# scancel also ends this script, so a cancelled job is not queued again.
# shellcheck disable=SC2016 # the job's shell expands it
again='case $status in 75 | 143) scontrol requeue $SLURM_JOB_ID ;; esac'
submit=(sbatch --job-name=padir "--nodes=$NODES" "--ntasks-per-node=$GPUS" "--gpus-per-node=$GPUS" "--cpus-per-task=$cpus"
  --requeue --open-mode=append --signal=TERM@120
  "--wrap=$(quoted "${run[@]}"); status=\$?; $again; exit \$status")

if [[ $dry_run ]]; then
  quoted "${submit[@]}"
else
  exec "${submit[@]}"
fi
