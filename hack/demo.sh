#!/usr/bin/env bash
# Builds and starts a cluster on this machine, and shows the agent at work on it (hack/e2e/demo).
set -euo pipefail
cd "$(dirname "$0")/.."
if ! hack/cluster/cluster check; then exit 1; fi
# node1 stays without the startup taint, as a system node group; the demo adds node2.
NODES=1 REGISTER_TAINTS="" hack/cluster/cluster up
make --no-print-directory cluster-image
cd hack/e2e
exec env CGO_ENABLED=0 go run -trimpath ./demo # the flags of the other builds, for their cache
