#!/usr/bin/env bash
# The core tests on a real cluster of each version of Kubernetes that hack/tools pins, two side by side, and the table that
# docs/reference.md shows. ONLY="1.30 1.37" picks versions. hack/e2e/compatibility says which tests these are.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! hack/cluster/cluster check; then
  echo "compatibility: these tests need root on Linux, for a cluster with a real kubelet" >&2
  exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

minor() { sed -nE 's/^\tk8s.io\/kubernetes v([0-9]+\.[0-9]+)\..*/\1/p' "hack/tools/$1/go.mod"; }
tools=()
for module in hack/tools/kubernetes*; do
  tool=$(basename "$module")
  if [[ " ${ONLY:-$(minor "$tool")} " == *" $(minor "$tool") "* ]]; then tools+=("$tool"); fi
done
if ((${#tools[@]} == 0)); then
  echo "compatibility: hack/tools has no Kubernetes $ONLY" >&2
  exit 1
fi

hack/cluster/cluster build workload etcd coredns kwok kubernetes "${tools[@]}" # the tests use one kubectl for all
hack/cluster/cluster image
hack/cluster/cluster image --controller
(cd hack/e2e && go vet ./...) # compiles the tests, before two shards would
mkdir -p bin && go build -C hack/e2e -o "$PWD/bin/compatibility" ./compatibility
failed=0
source hack/shards.sh
images+=(.cluster/images/kube-node-ready-controller.tar)
for tool in "${tools[@]}"; do
  version=${tool#kubernetes}
  KUBERNETES=${version#-} start_shard "$(minor "$tool")" bin/compatibility run "$work/$(minor "$tool").json"
  if ((${#shards[@]} == 2)); then
    wait_shards || failed=1
    shards=()
  fi
done
wait_shards || failed=1
bin/compatibility print "$work"/*.json || failed=1
if [ $failed = 1 ]; then echo "compatibility: a cluster or a test failed: see above" >&2; fi
exit $failed
