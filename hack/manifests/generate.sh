#!/usr/bin/env bash
# Writes the files that are made from the chart, or, with "verify", says which of them are stale:
# chart/values.schema.json, chart/README.md, hack/manifests/kube-node-ready.yaml and two files beside it.
set -euo pipefail
cd "$(dirname "$0")/../.."
tools=${TOOLS:-$PWD/bin/tools} # where `make` puts helm and helm-docs

new=$(mktemp -d)
made=$(mktemp -d)
trap 'rm -rf "$new" "$made"' EXIT
mkdir -p "$new/chart" "$new/hack/manifests"

go run -C hack/chartschema . "$PWD"/chart/values{,.definitions}.yaml >"$new/chart/values.schema.json"

"$tools/helm-docs" --chart-search-root chart --sort-values-order file --log-level warning --dry-run >"$new/chart/README.md"
[ -s "$new/chart/README.md" ] # what helm-docs cannot read it skips, and exits 0

cp -r chart "$made/chart"
cp "$new/chart/values.schema.json" "$made/chart/"
# Nobody but Helm manages what Helm installed: the labels that say so are left out.
render() { # COMMENT ARG…
  echo "# Generated from chart/ by make manifests: change the chart. $1"
  "$tools/helm" template kube-node-ready "$made/chart" --namespace kube-system --kube-version 1.36.0 "${@:2}" |
    sed -e '/^ *app.kubernetes.io\/managed-by: Helm$/d' -e '/^ *helm.sh\/chart: /d'
}
render "Install with kubectl apply -f." --no-hooks --set nodeAuthorization.enabled=false >"$new/hack/manifests/kube-node-ready.yaml"
# By itself, because an API server before Kubernetes 1.30 does not know what is in it.
render "For Kubernetes 1.30 and newer, beside kube-node-ready.yaml." --set nodeAuthorization.enabled=true \
  --show-only templates/nodeauthorization.yaml >"$new/hack/manifests/kube-node-ready-policy.yaml"
# By itself, because not everybody wants it.
render "For Kubernetes 1.36 and newer, beside kube-node-ready.yaml: new nodes register with the startup taint." --set startupTaint.add=true \
  --show-only templates/startuptaint.yaml >"$new/hack/manifests/kube-node-ready-startup-taint.yaml"

case ${1:-update} in
update) cp -r "$new"/* . ;;
verify)
  stale=0
  for file in chart/values.schema.json chart/README.md hack/manifests/kube-node-ready{,-policy,-startup-taint}.yaml; do
    diff -u "$file" "$new/$file" || { echo "$file is stale: run make manifests" >&2; stale=1; }
  done
  exit $stale
  ;;
*) echo "usage: $0 [update|verify]" >&2; exit 2 ;;
esac
