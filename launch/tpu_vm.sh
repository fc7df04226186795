#!/usr/bin/env bash
# Trains on existing TPU VMs: gcloud runs padir on all hosts of a slice at once and shows their output.
#   TPU_NAME=... ZONE=... launch/tpu_vm.sh [--dry-run] GIN_FILE RUN_DIR [-- ARGUMENT ...]
#   TPU_NAME=... ZONE=... launch/tpu_vm.sh [--dry-run] --stop
#   TPU_NAME=my-v4-32 ZONE=us-central2-b launch/tpu_vm.sh runs/synthetic_ar.gin gs://my-bucket/ar -- \
#     --data_dir=gs://my-bucket/data
# RUN_DIR and the data are in a bucket, or in a folder that all hosts mount. padir must be installed on each host, with
# its gcs extra for a bucket.
# The job keeps running after Ctrl-C or when the terminal is closed. Its output is in padir.log in the home folder of
# each host. --stop makes the job save a checkpoint and end. A host that still runs a job of the same user refuses a
# second one. A job that failed or was preempted is not restarted: give the same command again to resume it.
# To translate or distil instead, set SUBCOMMAND=translate or SUBCOMMAND=distill. RUN_DIR is then the model, and the
# arguments of that command (such as --inputs, --output and --shards, which translate needs) follow --.
# Variables: TPU_NAME (a slice) or QUEUED_RESOURCE (one or more slices), ZONE, PADIR (the command; default padir).

can_stop=yes
# shellcheck source=launch/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [[ -n ${QUEUED_RESOURCE-} ]]; then
  # All hosts must start together: gcloud's default batches would make the first hosts wait forever for the others.
  hosts=(queued-resources ssh "$QUEUED_RESOURCE" --node=all --batch-size=all)
else
  needs TPU_NAME
  hosts=(tpu-vm ssh "$TPU_NAME")
fi
needs ZONE
# gcloud repeats the command when a connection breaks, although the first one still runs: the lock (file 9) prevents a
# second job, and --stop signals whatever holds it.
lock=.padir.lock
# Of the lock's holders only padir ends at SIGTERM. bash and tee ignore it, and tee survives a lost connection, so that
# padir.log is complete.
# shellcheck disable=SC2016 # the hosts' shell expands it
job='exec 9>>"$0"; flock --nonblock 9 || { echo "$0: locked; a job is already running, see padir.log" >&2; exit 1; }; '\
'trap : TERM; set -o pipefail; "$@" 2>&1 | (trap "" TERM; exec tee --append --output-error=warn-nopipe padir.log)'
if [[ $stop ]]; then
  remote=(fuser --kill -TERM "$lock")
else
  remote=(bash -c "$job" "$lock" "${command[@]}")
fi
ssh=(gcloud compute tpus "${hosts[@]}" "--zone=$ZONE" --worker=all "--command=$(quoted "${remote[@]}")")

if [[ $dry_run ]]; then
  quoted "${ssh[@]}"
else
  exec "${ssh[@]}"
fi
