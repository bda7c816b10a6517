#!/usr/bin/env bash
# The chart: lint for the oldest, a middle and the newest Kubernetes, its unit tests, and whether what is made from it is current.
set -euo pipefail
cd "$(dirname "$0")/.."
everything=podMonitor.enabled=true,serviceMonitor.enabled=true,prometheusRule.enabled=true,dashboard.enabled=true,networkPolicy.enabled=true
for version in 1.24.0 1.30.0 1.36.0; do
  bin/tools/helm lint --strict --quiet chart --kube-version "$version"
  bin/tools/helm lint --strict --quiet chart --kube-version "$version" --set "$everything"
done
bin/tools/helm-unittest --strict chart
hack/manifests/generate.sh verify
