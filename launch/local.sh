#!/usr/bin/env bash
# Trains with N processes on this machine, which meet at 127.0.0.1: for tests, and to see what a pod would do.
#   launch/local.sh [--dry-run] N GIN_FILE RUN_DIR [-- ARGUMENT ...]
#   launch/local.sh 2 runs/synthetic_ar.gin runs/ar -- --data_dir=runs/data
# Each process has one CPU device, or D with XLA_FLAGS=--xla_force_host_platform_device_count=D in the environment.
# When one fails, the others have five seconds to say why, and are killed. SIGTERM and SIGINT reach all of them; told by
# SIGTERM, they save and exit with status 75.
# SUBCOMMAND=translate (after -- come --inputs, --output, --shards) or distill: RUN_DIR is then the model.
# Variables: PADIR (the command; default padir), PORT (where process 0 listens; default 8476).
expected_words=3
# shellcheck source=launch/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
n=${words[0]}
[[ $n =~ ^[1-9][0-9]*$ ]] || usage "N=$n is not a number of processes"

pids=()
for ((i = 0; i < n; i++)); do
  process=(env JAX_PLATFORMS=cpu "PADIR_COORDINATOR=127.0.0.1:${PORT:-8476}" "PADIR_NUM_PROCESSES=$n"
    "PADIR_PROCESS_ID=$i" "${command[@]}")
  if [[ $dry_run ]]; then
    echo "$(quoted "${process[@]}") &"
  else
    "${process[@]}" &
    pids+=("$!")
  fi
done
[[ ! $dry_run ]] || exit 0

stop() { # with the status of process 0, which says why it stopped
  kill -TERM "${pids[@]}" 2>/dev/null || true
  local status=0
  wait "${pids[0]}" || status=$?
  wait
  exit "$status"
}
trap stop TERM INT

for ((i = 0; i < n; i++)); do
  wait -n || { status=$?; sleep 5; kill -KILL "${pids[@]}" 2>/dev/null || true; wait; exit "$status"; }
done
