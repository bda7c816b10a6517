#!/usr/bin/env bash
# The long version of the tests that break things around the agent, and the fuzz targets for FUZZTIME each (60s). Prints one table
# of all of them; exit 1 where anything was lost or failed. RUN=regexp picks tests (and leaves the fuzz targets out).
set -uo pipefail
cd "$(dirname "$0")/.." || exit
if ! hack/cluster/cluster check; then
  echo "faults: these tests need root on Linux, for a cluster with a real kubelet" >&2
  exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export E2E=long
failed=0

hack/cluster/cluster build && hack/cluster/cluster build kwok && hack/cluster/cluster image && hack/cluster/cluster image --controller || exit 1
faults() { # PACKAGE…
  cd hack/e2e && FAULTS_TABLE=$work/faults-$1.json ../../bin/tools/gotestsum --format standard-verbose --packages="${*/#/./}" -- \
    -count=1 -timeout 90m -p 1 -parallel 8 -run "${RUN:-^TestFault}"
}
source hack/shards.sh
images+=(.cluster/images/kube-node-ready-controller.tar)
total=$(tests_in hack/e2e "${RUN:-^TestFault}" ./faults ./faultsnet ./workers)
run_shards() {
  start_shard faults faults faults
  start_shard faultsnet faults faultsnet workers
  wait_shards
}
run_shards | progress "$total"
[ "${PIPESTATUS[0]}" = 0 ] || failed=1
export FAULTS_TABLE=$work/table.json
cat "$work"/faults-*.json >"$FAULTS_TABLE"

fuzz() { # DIRECTORY TARGET OUTCOME
  local execs failure=false
  echo "== $2, ${FUZZTIME:-60s}"
  (cd "$1" && go test -run '^$' -fuzz "^$2\$" -fuzztime "${FUZZTIME:-60s}" .) | tee "$work/fuzz"
  [ "${PIPESTATUS[0]}" = 0 ] || failure=true failed=1
  execs=$(sed -n 's/.*execs: \([0-9]*\).*/\1/p' "$work/fuzz" | tail -n 1)
  [ "${execs:-0}" -gt 0 ] || failure=true failed=1 # no such target
  printf '{"Fault":"fuzz: %s","Rounds":%d,"Outcome":"%s","Failed":%s}\n' "$2" "${execs:-0}" "$3" "$failure" >>"$FAULTS_TABLE"
}
if [ -z "${RUN:-}" ]; then
  echo "== simulation, ten minutes of new seeds"
  hack/simulation.sh 600 "$(date +%s)" || failed=1
  echo "== lives of one agent, two minutes of new seeds"
  hack/lives.sh -for 120s -seed "$(date +%s)" || failed=1
  fuzz internal/config FuzzConfig "any flags and variables: parsed, or refused with each problem named"
  fuzz hack/fuzz FuzzPatch "whatever others do to the Node: nothing foreign changes, or the patch is refused"
fi

go -C hack/e2e run ./faults/print "$FAULTS_TABLE" || failed=1
exit "$failed"
