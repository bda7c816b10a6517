#!/usr/bin/env bash
# The main job, on a real cluster on this machine: hack/e2e/demo tells it.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! hack/cluster/cluster check; then exit 1; fi
# One node that is never gated, as a system node group is; the demo lets another one join.
NODES=1 REGISTER_TAINTS="" hack/cluster/cluster up
hack/cluster/cluster build helm
make --no-print-directory cluster-image
cd hack/e2e
exec go run ./demo
