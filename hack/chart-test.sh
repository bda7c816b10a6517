#!/usr/bin/env bash
# The chart: lint for the oldest, a middle and the newest Kubernetes, its unit tests, whether the controller knows the agent's pod
# template as the DaemonSet has it, what holds for every object, the length of the notes, and whether what is made from the chart
# is current.
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
if bin/tools/helm lint --quiet chart --kube-version 1.36.0 --set toleration=x >/dev/null 2>&1; then
  echo "helm lint accepts a key that the chart does not have" >&2
  exit 1
fi
bin/tools/helm-unittest --strict chart

# Both are indented alike.
for preset in hack/examples/*/values*.yaml; do
  after() { # FILE LINE
    bin/tools/helm template kube-node-ready chart --values "$preset" --set readinessProbe.enabled=true \
      --set controller.enabled=true --kube-version 1.36.0 --show-only "templates/$1" | sed "1,/^  $2\$/d"
  }
  diff -u <(after daemonset.yaml template:) <(after controller/configmap.yaml 'agent.yaml: |')
done

# What holds for every object, whatever is switched on.
render() { # VALUES
  bin/tools/helm template kube-node-ready chart --namespace unused --kube-version 1.36.0 \
    --set "$everything,nodeAuthorization.enabled=true,$1"
}
agents=startupTaint.add=true,controller.enabled=true,config.recheckInterval=1m,config.peers=true,controller.retaint.enabled=true
workers=controller.enabled=true,deploymentMode=controller
workers+=,controller.remediation.mode=delete,controller.remediation.deleteNodes=true
for mode in "$agents" "$workers"; do
  elsewhere=$(render "$mode,namespaceOverride=other")
  if grep unused <<<"$elsewhere"; then
    echo "namespaceOverride: these lines name the namespace of the release" >&2
    exit 1
  fi
  rightless=$(render "$mode,rbac.create=false")
  if grep -E '^kind: (Cluster)?Role(Binding)?$' <<<"$rightless"; then
    echo "rbac.create=false renders rights" >&2
    exit 1
  fi
  unquoted=$(render "$mode,fullnameOverride=off,serviceAccount.name=1e4,namespaceOverride=1e5")
  if grep -E '(: |- |\[)(off|1e[45])([],}]|$)' <<<"$unquoted"; then
    echo "YAML reads these names as numbers or as false: quote them" >&2
    exit 1
  fi
  objects=$(render "$mode" | grep -c '^kind: ')
  labelled=$(render "$mode,commonLabels.team=infra" | grep -c '^    team: infra$')
  if [ "$labelled" != "$objects" ]; then
    echo "commonLabels: $labelled of $objects objects have the label" >&2
    exit 1
  fi
done

# The notes are short for all values. Helm renders them only when it installs, so they are a file of a copy of the chart here.
notes=$(mktemp -d)
trap 'rm -rf "$notes"' EXIT
cp -r chart "$notes"
{ echo '{{- define "notes" }}'; cat chart/templates/NOTES.txt; echo '{{- end }}'; } >"$notes/chart/templates/_notes.tpl"
echo 'lines: {{ include "notes" . | trim | splitList "\n" | len }}' >"$notes/chart/templates/lines.yaml"
lines() { # ARG…
  bin/tools/helm template kube-node-ready "$notes/chart" --kube-version 1.36.0 --show-only templates/lines.yaml "$@" |
    sed -n 's/^lines: //p'
}
# Controller mode refuses these settings, which an example may have.
agentsOnly=config.onTimeout=keep,config.condition=auto,config.recheckInterval=,config.peers=false
agentsOnly+=,controller.retaint.enabled=false
failing=config.onTimeout=taint,controller.remediation.mode=delete
traps=prometheusRule.enabled=true,rbac.create=false,resources.limits.cpu=100m
echo "config: {require: [{label: a}]}" >"$notes/require.yaml" # a list in --set would be mixed with an example's
for values in /dev/null hack/examples/*/values.yaml; do
  for more in global.a=b "$agents,$traps,$failing" "$workers,$traps,startupTaint.add=true"; do
    case $more in *deploymentMode=controller*) more+=,$agentsOnly ;; esac
    count=$(lines --values "$values" --values "$notes/require.yaml" --set "$more")
    if [ "${count:-26}" -gt 25 ]; then
      echo "the notes have $count lines, and not at most 25: $values $more" >&2
      exit 1
    fi
  done
done

# The documented example as Helm reads it, where an unquoted on is true. (helm-unittest reads YAML 1.2.)
sed -n '/^## More than the network/,/^## /p' docs/how-it-decides.md | sed -n '/^```yaml$/,/^```$/{//!p}' |
  bin/tools/helm template kube-node-ready chart --values - --kube-version 1.36.0 | grep -q 'REQUIRE: .*"on\\":{' ||
  { echo "docs/how-it-decides.md: the example of config.require does not render" >&2; exit 1; }
hack/manifests/generate.sh verify
