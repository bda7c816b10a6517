#!/usr/bin/env bash
# Runs the tests of hack/e2e on test clusters, which are started for them and stopped after them. Two shards run side by
# side, each with a cluster of its own. The tests of faults, of rechecks and of Karpenter run in their short version (hack/faults.sh and
# `make e2e-karpenter` run the long ones: E2E=long).
# E2E=core runs what `make test` runs: without kwok, Prometheus, a registry and the slowest faults. E2E=rest runs what is left out.
# KEEP=1 runs all on the cluster that is up (or starts it) and leaves it up; RUN=regexp picks tests; PACKAGES= picks packages.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/shards.sh

if ! hack/cluster/cluster check; then
  echo "e2e: these tests need root on Linux, for a cluster with a real kubelet" >&2
  exit 1
fi

# The tests in the packages of make test that need kwok, Prometheus or a registry, or a minute for one fault.
large='^(TestFaultManyNodes|TestFaultReleaseRace|TestFailingNodes|TestHalfAZoneFails|TestFlappingNode|TestDashboard|TestInstall.*|TestBlocks|'
large+='TestTwoReleases|'
large+='TestFreshSandbox|TestNoRetaintWithoutAPIServer|TestNoRetaintWithoutDNS|TestFaultWorker|TestOtherCA)$'
mixed="./controller ./workers ./recheck ./release"
a="" b=""
case ${E2E:-} in
core)
  large=${large/|TestBlocks/} # with the chart's defaults
  a=". ./controller ./release" b="./workers ./recheck"
  ;;
rest) a="./charttest $mixed" ;;
*) a=". ./charttest ./workers ./recheck" ;;
esac
if [ -z "$b" ]; then # whatever else there is, so that a new package is not left out
  b=$(cd hack/e2e && go list -f '{{if .TestGoFiles}}.{{slice .ImportPath (len .Module.Path)}}{{end}}{{if .XTestGoFiles}}.{{slice .ImportPath (len .Module.Path)}}{{end}}' ./... |
    grep -vxF -f <(printf '%s\n' $a $([ "${E2E:-}" != rest ] || echo .)))
fi
if [ -n "${PACKAGES:-}" ]; then a=$PACKAGES b=""; fi

# tests SHARD FLAGS PACKAGE…
tests() {
  # shellcheck disable=SC2086
  (cd hack/e2e && ../../bin/tools/gotestsum --format standard-verbose ${JSONFILE:+--jsonfile "${JSONFILE%.json}-$1.json"} \
    --packages="${*:3}" -- -count=1 -timeout 60m -p 1 ${RUN:+-run "$RUN"} $2)
}

# gotests SHARD PACKAGE…: of the packages of make test, core leaves out the large tests, and rest runs no others.
gotests() {
  local package some=() whole=() code=0
  case ${E2E:-} in
  core) tests "$1" "-skip $large" "${@:2}" ;;
  rest)
    for package in "${@:2}"; do
      case " $mixed " in *" $package "*) some+=("$package") ;; *) whole+=("$package") ;; esac
    done
    if [ ${#some[@]} -gt 0 ]; then tests "$1-large" "-run $large" "${some[@]}" || code=$?; fi
    if [ ${#whole[@]} -gt 0 ]; then tests "$1" "" "${whole[@]}" || code=$?; fi
    return "$code"
    ;;
  *) tests "$1" "" "${@:2}" ;;
  esac
}

wanted() { [[ " $a $b " == *$1* ]]; }
if [ "${E2E:-}" != core ]; then
  # A Prometheus (Debian's cannot discover pods), and the operator that configures it.
  if wanted charttest || wanted recheck; then hack/cluster/cluster build prometheus; fi
  if wanted charttest; then hack/cluster/cluster build operator; fi
  if wanted karpenter; then hack/cluster/cluster build karpenter; fi
  if wanted charttest || wanted karpenter || wanted workers || wanted recheck; then hack/cluster/cluster build kwok; fi
fi
if wanted plugin; then make --no-print-directory plugin; fi
# What a release consists of, for this architecture, unless RELEASE_DIR names the folder of a dry run (dist/1); and a registry.
if wanted release && [ "$(tests_in hack/e2e "${RUN:-.}" ./release)" != 0 ]; then
  if [ "${E2E:-}" != core ]; then hack/cluster/cluster packages docker-registry:docker-registry skopeo:skopeo; fi
  hack/cluster/cluster packages jq:jq
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
  gotests kept $a $b
  exit
fi

hack/cluster/cluster build
build_images
# The binary of each test is compiled before, not by both shards at once.
# shellcheck disable=SC2086
(cd hack/e2e && go vet $a $b)
if controller_wanted; then images+=(.cluster/images/kube-node-ready-controller.tar); fi
# shellcheck disable=SC2086
total=$(tests_in hack/e2e "${RUN:-.}" $a $b)
# shellcheck disable=SC2086
case ${E2E:-} in
core) total=$((total - $(tests_in hack/e2e "$large" $mixed))) ;;
rest) total=$((total - $(tests_in hack/e2e . $mixed) + $(tests_in hack/e2e "$large" $mixed))) ;;
esac
run_shards() {
  # shellcheck disable=SC2086
  start_shard a gotests a $a
  # shellcheck disable=SC2086
  if [ -n "$b" ]; then start_shard b gotests b $b; fi
  wait_shards
}
run_shards | progress "$total"
