#!/usr/bin/env bash
# Runs the tests of hack/e2e on test clusters, which are started for them and stopped after them. Two shards run side by
# side, each with a cluster of its own. The tests of faults, of rechecks and of Karpenter run in their short version (hack/faults.sh and
# `make e2e-karpenter` run the long ones: E2E=long).
# KEEP=1 runs all on the cluster that is up (or starts it) and leaves it up; RUN=regexp picks tests; PACKAGES= picks packages.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! hack/cluster/cluster check; then
  echo "e2e: these tests need root on Linux, for a cluster with a real kubelet" >&2
  exit 1
fi

gotests() { # SHARD PACKAGE…
  (cd hack/e2e && ../../bin/tools/gotestsum --format standard-verbose ${JSONFILE:+--jsonfile "${JSONFILE%.json}-$1.json"} \
    --packages="${*:2}" -- -count=1 -timeout 60m -p 1 ${RUN:+-run "$RUN"})
}

wanted() { [[ -z ${PACKAGES:-} || $PACKAGES == *$1* ]]; }
# A Prometheus (Debian's cannot discover pods), and the operator that configures it.
if wanted charttest || wanted recheck; then hack/cluster/cluster build prometheus; fi
if wanted charttest; then hack/cluster/cluster build operator; fi
if wanted karpenter; then hack/cluster/cluster build karpenter; fi
if wanted charttest || wanted karpenter || wanted workers || wanted recheck; then hack/cluster/cluster build kwok; fi
if wanted plugin; then make --no-print-directory plugin; fi
# What a release consists of, for this architecture, unless RELEASE_DIR names the folder of a dry run (dist/1); and a registry.
source hack/shards.sh
if wanted release && [ "$(tests_in hack/e2e "${RUN:-.}" ./release)" != 0 ]; then
  hack/cluster/cluster packages docker-registry:docker-registry skopeo:skopeo
  if [ -z "${RELEASE_DIR:-}" ]; then
    export RELEASE_DIR=$PWD/.cluster/release
    rm -rf "$RELEASE_DIR"
    PLATFORMS=linux/$(go env GOARCH) hack/release.sh build "$RELEASE_DIR"
  fi
fi
controller_wanted() { wanted controller || wanted karpenter || wanted workers || wanted recheck; }
build_images() {
  hack/cluster/cluster image
  if controller_wanted; then hack/cluster/cluster image --controller; fi
}
if [ -n "${KEEP:-}" ]; then
  hack/cluster/cluster kubectl get --raw /readyz >/dev/null 2>&1 || hack/cluster/cluster up
  build_images
  # shellcheck disable=SC2086
  gotests kept ${PACKAGES:-./...}
  exit
fi

hack/cluster/cluster build
build_images
first=". ./charttest ./workers ./recheck"
# Whatever else there is, so that a new package is not left out.
second=$(cd hack/e2e && go list -f '{{if .TestGoFiles}}.{{slice .ImportPath (len .Module.Path)}}{{end}}{{if .XTestGoFiles}}.{{slice .ImportPath (len .Module.Path)}}{{end}}' ./... | grep -vxE '\.|\./(charttest|workers|recheck)')
if [ -n "${PACKAGES:-}" ]; then first=$PACKAGES second=""; fi
# The binary of each test is compiled before, not by both shards at once.
(cd hack/e2e && go vet ./...)
if controller_wanted; then images+=(.cluster/images/kube-node-ready-controller.tar); fi
# shellcheck disable=SC2086
total=$(tests_in hack/e2e "${RUN:-.}" $first $second)
run_shards() {
  # shellcheck disable=SC2086
  start_shard a gotests a $first
  # shellcheck disable=SC2086
  if [ -n "$second" ]; then start_shard b gotests b $second; fi
  wait_shards
}
run_shards | progress "$total"
