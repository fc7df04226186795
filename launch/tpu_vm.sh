#!/usr/bin/env bash
# Trains on TPU VMs that exist: gcloud runs padir on all hosts of a slice at once, and shows what they print.
#   TPU_NAME=... ZONE=... launch/tpu_vm.sh [--dry-run] GIN_FILE RUN_DIR [-- ARGUMENT ...]
#   TPU_NAME=my-v4-32 ZONE=us-central2-b launch/tpu_vm.sh runs/synthetic_ar.gin /mnt/runs/ar -- --data_dir=/mnt/data
# RUN_DIR and the data lie in a folder that all hosts mount; padir is installed on each of them.
# SUBCOMMAND=translate (after -- come --inputs, --output, --shards) or distill: RUN_DIR is then the model.
# Variables: TPU_NAME (the slice) or QUEUED_RESOURCE (one or several slices), ZONE, PADIR (the command; default padir).

# shellcheck source=launch/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

if [[ -n ${QUEUED_RESOURCE-} ]]; then
  hosts=(queued-resources ssh "$QUEUED_RESOURCE" --node=all)
else
  needs TPU_NAME
  hosts=(tpu-vm ssh "$TPU_NAME")
fi
needs ZONE
# Hosts wait for one another: in batches, as gcloud goes about it by default, the first ones would wait for ever.
ssh=(gcloud compute tpus "${hosts[@]}" "--zone=$ZONE" --worker=all --batch-size=all
  "--command=$(quoted "${command[@]}")")

if [[ $dry_run ]]; then
  quoted "${ssh[@]}"
else
  exec "${ssh[@]}"
fi
