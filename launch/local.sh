#!/usr/bin/env bash
# Trains with N processes on the CPUs of this machine, for tests and to try out a job of several processes.
#   launch/local.sh [--dry-run] N GIN_FILE RUN_DIR [-- ARGUMENT ...]
#   launch/local.sh 2 runs/synthetic_ar.gin runs/ar -- --data_dir=runs/data
# Each process has one CPU device. XLA_FLAGS=--xla_force_host_platform_device_count=D gives each of them D devices.
# When a process fails, the others are killed after five seconds. SIGTERM and SIGINT stop all processes: they save a
# checkpoint and exit with status 75.
# To translate or distil instead, set SUBCOMMAND=translate or SUBCOMMAND=distill. RUN_DIR is then the model, and the
# arguments of that command (such as --inputs, --output and --shards, which translate needs) follow --.
# Variables: PADIR (the command; default padir), PORT (on which process 0 listens; default 8476).
expected_words=3
# shellcheck source=launch/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
n=${words[0]}
[[ $n =~ ^[1-9][0-9]*$ ]] || usage "N=$n must be the number of processes, at least 1"

pids=()
stop() { # stops all processes, those just started, too, and exits with the status of process 0
  local status=0 running
  mapfile -t running < <(jobs -p)
  ((${#running[@]})) || exit 143
  kill -TERM "${running[@]}" 2>/dev/null || true
  wait "${pids[0]:-${running[0]}}" || status=$?
  wait
  exit "$status"
}
[[ $dry_run ]] || trap stop TERM INT

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

for ((i = 0; i < n; i++)); do
  # Within five seconds the other processes can still print their own errors.
  wait -n || { status=$?; sleep 5; kill -KILL "${pids[@]}" 2>/dev/null || true; wait; exit "$status"; }
done
