#!/usr/bin/env bash
# Trains on TPU slices of a GKE cluster with one pod per host: creates a JobSet and returns.
#   NAME=VALUE ... launch/gke.sh [--dry-run] GIN_FILE RUN_DIR [-- ARGUMENT ...]
#   JOBSET=ar IMAGE=registry/padir ACCELERATOR=tpu-v6e-slice TOPOLOGY=4x4 SLICES=2 SERVICE_ACCOUNT=trainer \
#     launch/gke.sh runs/synthetic_ar.gin gs://my-bucket/ar -- --data_dir=gs://my-bucket/data
# RUN_DIR and the data are in a bucket (padir needs its gcs extra), or on a volume that all pods mount.
# When a host fails or is preempted, all slices restart and resume from the newest checkpoint. If padir rejects its
# arguments (status 2), the job ends, and the log has the error message. Before you give the command again, delete the
# old JobSet: kubectl delete jobset NAME.
# To translate or distil instead, set SUBCOMMAND=translate or SUBCOMMAND=distill. RUN_DIR is then the model, and the
# arguments of that command (such as --inputs, --output and --shards, which translate needs) follow --.
# Variables: JOBSET (its name), IMAGE (a container image with padir), ACCELERATOR and TOPOLOGY (labels of the slices'
#   node pools), CHIPS (per host; default 4), SLICES (their number; default 1), RESTARTS (at most; default 100),
#   SERVICE_ACCOUNT (the Kubernetes service account by which pods use the bucket; by default they use it as the node pool
#   does), CLAIM (a ReadWriteMany volume claim, unless the job writes to a gs:// address), MOUNT (where the volume is
#   mounted; default /runs), PADIR (the command; default padir).

# shellcheck source=launch/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
needs JOBSET IMAGE ACCELERATOR TOPOLOGY
# What the job writes must outlive the pods' own disks.
if [[ -z ${CLAIM-} ]]; then
  written=$run_dir option='RUN_DIR'
  if [[ $subcommand != train ]]; then
    written='' option=--output
    [[ $subcommand == translate ]] || option=--output_dir
    before=''
    for argument; do
      [[ $argument != "$option="* ]] || written=${argument#*=}
      [[ $before != "$option" ]] || written=$argument
      before=$argument
    done
  fi
  [[ $written == gs://* ]] || usage "unless $option is a gs:// address, set CLAIM"
fi
[[ $TOPOLOGY =~ ^[1-9][0-9]*(x[1-9][0-9]*)+$ ]] || usage "TOPOLOGY=$TOPOLOGY must have the form 4x4 or 2x2x4"
chips=$((${TOPOLOGY//x/ * })) per_host=${CHIPS:-4}
((chips % per_host == 0)) || usage "$TOPOLOGY has $chips chips, which is not a multiple of CHIPS=$per_host"
hosts=$((chips / per_host))

# Lines of the manifest that only some jobs have.
mount='' volume=''
if [[ -n ${SERVICE_ACCOUNT-} ]]; then
  # GKE gives a service account's rights (Workload Identity) only to pods that have a network of their own.
  identity="serviceAccountName: '$SERVICE_ACCOUNT'"
else
  # The network of the host is the faster one between slices.
  identity='hostNetwork: true
              dnsPolicy: ClusterFirstWithHostNet'
fi
if [[ -n ${CLAIM-} ]]; then
  mount="
                  volumeMounts:
                    - name: runs
                      mountPath: ${MOUNT:-/runs}"
  volume="
              volumes:
                - name: runs
                  persistentVolumeClaim:
                    claimName: '$CLAIM'"
fi

jobset() {
  cat <<YAML
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: '$JOBSET'
  annotations:
    # A slice is a node pool: each job below gets one of its own, for all of its pods.
    alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool
spec:
  failurePolicy:
    maxRestarts: ${RESTARTS:-100}
    rules:
      - name: refused
        action: FailJobSet
        onJobFailureReasons: [PodFailurePolicy]
  replicatedJobs:
    - name: slice
      replicas: ${SLICES:-1}
      template:
        spec:
          parallelism: $hosts
          completions: $hosts
          backoffLimit: 0
          podFailurePolicy:
            rules:
              - action: FailJob
                onExitCodes:
                  containerName: padir
                  operator: In
                  values: [2]
          template:
            spec:
              restartPolicy: Never
              $identity
              # Time to save a checkpoint after SIGTERM.
              terminationGracePeriodSeconds: 120
              nodeSelector:
                cloud.google.com/gke-tpu-accelerator: $ACCELERATOR
                cloud.google.com/gke-tpu-topology: $TOPOLOGY
              containers:
                - name: padir
                  image: $IMAGE
                  command:
$(printf "                    - '%s'\n" "${command[@]//\'/\'\'}")
                  resources:
                    limits:
                      google.com/tpu: $per_host$mount$volume
YAML
}

if [[ $dry_run ]]; then
  echo "kubectl create -f - <<'YAML'"
  jobset
  echo YAML
else
  jobset | kubectl create -f - || {
    status=$?
    echo "$0: if an old JobSet $JOBSET still exists, delete it first: kubectl delete jobset '$JOBSET'" >&2
    exit "$status"
  }
fi
