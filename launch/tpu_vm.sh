#!/usr/bin/env bash
# Trains on TPU VMs that exist: gcloud runs padir on all hosts of a slice at once, and shows what they print.
#   TPU_NAME=... ZONE=... launch/tpu_vm.sh [--dry-run] GIN_FILE RUN_DIR [-- ARGUMENT ...]
#   TPU_NAME=... ZONE=... launch/tpu_vm.sh [--dry-run] --stop
#   TPU_NAME=my-v4-32 ZONE=us-central2-b launch/tpu_vm.sh runs/synthetic_ar.gin /mnt/runs/ar -- --data_dir=/mnt/data
# RUN_DIR and the data lie in a folder that all hosts mount; padir is installed on each of them.
# A terminal that is closed, or Ctrl-C, leaves the job running, and what it prints is in padir.log of each host's home
# folder: --stop tells it to save and end. A host that is still at work for the same user takes no second job. Nobody
# starts a job again that has failed or was preempted: give the same command.
# SUBCOMMAND=translate (after -- come --inputs, --output, --shards) or distill: RUN_DIR is then the model.
# Variables: TPU_NAME (the slice) or QUEUED_RESOURCE (one or several slices), ZONE, PADIR (the command; default padir).

can_stop=yes
# shellcheck source=launch/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [[ -n ${QUEUED_RESOURCE-} ]]; then
  # Hosts wait for one another: in batches, as gcloud goes about these by default, the first would wait for ever.
  hosts=(queued-resources ssh "$QUEUED_RESOURCE" --node=all --batch-size=all)
else
  needs TPU_NAME
  hosts=(tpu-vm ssh "$TPU_NAME")
fi
needs ZONE
# gcloud gives the command again when a connection breaks, while what it started first goes on: the lock, of whatever
# holds file 9 open, lasts as long as that, and says whom to stop. Only padir ends at SIGTERM: tee writes down its last
# words, whether or not anybody is still connected.
lock=.padir.lock
# shellcheck disable=SC2016 # the hosts' shell expands it
job='exec 9>>"$0"; flock --nonblock 9 || { echo "$0: held; a job is at work here, see padir.log" >&2; exit 1; }; '\
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
