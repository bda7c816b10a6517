#!/usr/bin/env bash
# Starts the throwaway cluster anew, measures what the agent costs on it, and stops it. KEEP=1 uses the cluster that is up and
# leaves it up. The arguments go to hack/bench: -only size,gate -runs 5 -nodes 10,100.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! hack/cluster/cluster check; then
  echo "bench: it needs root on Linux, for a cluster with a real kubelet" >&2
  exit 1
fi
if [ -z "${KEEP:-}" ]; then
  trap 'hack/cluster/cluster down' EXIT
  hack/cluster/cluster up
elif ! hack/cluster/cluster kubectl get --raw /readyz >/dev/null 2>&1; then
  hack/cluster/cluster up
fi
hack/cluster/cluster build kwok helm
hack/cluster/cluster image
hack/cluster/cluster image --controller
mkdir -p bin/bench
CGO_ENABLED=0 go build -C controller -trimpath -ldflags "-s -w" -o "$PWD/bin/kube-node-ready-controller" .
CGO_ENABLED=0 go build -C hack/bench -trimpath -ldflags "-s -w" -o "$PWD/bin/bench/" .
bin/bench/bench "$@"
