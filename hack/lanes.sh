# shellcheck shell=bash
# For scripts in the root of the repository: lanes run side by side, each with a throwaway cluster of its own, because most of the
# time a test waits for its cluster.

lanes=()

# start_lane NAME COMMAND…: the cluster is started, given the agent's image, and stopped after the command.
start_lane() {
  (
    set -o pipefail
    export CLUSTER_DIR=$PWD/.cluster/$1
    {
      state=0
      hack/cluster/cluster up && hack/cluster/cluster load .cluster/images/kube-node-ready.tar && ("${@:2}") || state=$?
      hack/cluster/cluster down || state=1
      exit "$state"
    } 2>&1 | sed -u "s/^/[$1] /"
  ) &
  lanes+=($!)
}

# wait_lanes fails where a lane has failed.
wait_lanes() {
  local pid state=0
  for pid in "${lanes[@]}"; do wait "$pid" || state=$?; done
  return "$state"
}
