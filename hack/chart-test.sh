#!/usr/bin/env bash
# The chart: lint for the oldest, a middle and the newest Kubernetes, its unit tests, whether the controller knows the agent's pod
# template as the DaemonSet has it, and whether what is made from the chart is current.
set -euo pipefail
cd "$(dirname "$0")/.."
everything=podMonitor.enabled=true,serviceMonitor.enabled=true,prometheusRule.enabled=true,dashboard.enabled=true,networkPolicy.enabled=true
for version in 1.24.0 1.30.0 1.36.0; do
  bin/tools/helm lint --strict --quiet chart --kube-version "$version"
  bin/tools/helm lint --strict --quiet chart --kube-version "$version" --set "$everything"
  bin/tools/helm lint --strict --quiet chart --kube-version "$version" --set "$everything,controller.enabled=true"
  bin/tools/helm lint --strict --quiet chart --kube-version "$version" \
    --set "$everything,controller.enabled=true,config.recheckInterval=1m,config.peers=true,controller.retaint.enabled=true"
  bin/tools/helm lint --strict --quiet chart --kube-version "$version" \
    --set "$everything,controller.enabled=true,deploymentMode=controller,controller.remediation.mode=delete,controller.remediation.deleteNodes=true"
done
bin/tools/helm lint --strict --quiet chart --kube-version 1.36.0 --set startupTaint.add=true
bin/tools/helm-unittest --strict chart

# Both are indented alike.
for preset in hack/examples/*/values*.yaml; do
  after() { # FILE LINE
    bin/tools/helm template kube-node-ready chart --values "$preset" --set readinessProbe.enabled=true \
      --set controller.enabled=true --kube-version 1.36.0 --show-only "templates/$1" | sed "1,/^  $2\$/d"
  }
  diff -u <(after daemonset.yaml template:) <(after controller/configmap.yaml 'agent.yaml: |')
done

# The README's example as Helm reads it, where an unquoted on is true. (helm-unittest reads YAML 1.2.)
sed -n '/^## More than the network/,/^## /p' chart/README.md | sed -n '/^```yaml$/,/^```$/{//!p}' |
  bin/tools/helm template kube-node-ready chart --values - --kube-version 1.36.0 | grep -q 'REQUIRE: .*"on\\":{' ||
  { echo "chart/README.md: the example of config.require does not render" >&2; exit 1; }
hack/manifests/generate.sh verify
