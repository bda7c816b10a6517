# shellcheck shell=bash
# For scripts in the root of the repository: shards run side by side, each with a test cluster of its own, because most of the
# time a test waits for its cluster.

shards=()
images=(.cluster/images/kube-node-ready.tar)

# start_shard NAME COMMAND…: the cluster is started, given the images, and stopped after the command.
start_shard() {
  (
    set -o pipefail
    export CLUSTER_DIR=$PWD/.cluster/$1
    {
      state=0
      hack/cluster/cluster up && hack/cluster/cluster load "${images[@]}" && ("${@:2}") || state=$?
      hack/cluster/cluster down || state=1
      exit "$state"
    } 2>&1 | sed -u "s/^/[$1] /"
  ) &
  shards+=($!)
}

# wait_shards fails where a shard has failed.
wait_shards() {
  local pid state=0
  for pid in "${shards[@]}"; do wait "$pid" || state=$?; done
  return "$state"
}

# progress TOTAL: prints what go test -v prints, and how many of its top-level tests have ended and how many have failed: a
# live line on a terminal, else a line every 20 s.
progress() {
  local total=$1 line done=0 failed=0 said=0 live="" state began=$SECONDS
  while IFS= read -r line; do
    printf '%s%s\n' "$live" "$line"
    case $line in
    *"] --- "*": Test"*/*) ;; # part of a test
    *"] --- PASS: "* | *"] --- SKIP: "*) done=$((done + 1)) ;;
    *"] --- FAIL: "*) done=$((done + 1)) failed=$((failed + 1)) ;;
    esac
    state="-- $done of $total tests, $failed failed, $((SECONDS - began)) s"
    if [ -t 1 ]; then
      printf '%s' "$state"
      live=$'\r\033[K'
    elif ((SECONDS - said >= 20)); then
      said=$SECONDS
      printf '%s\n' "$state"
    fi
  done
  printf '%s' "$live"
}

# tests_in DIRECTORY REGEXP PACKAGE…: how many top-level tests there are. (go test -list would want the cluster that TestMain does.)
tests_in() {
  (cd "$1" && for package in "${@:3}"; do cat "$package"/*_test.go; done) | sed -nE 's/^func (Test[A-Za-z0-9_]+)\(.*/\1/p' | grep -v '^TestMain$' | grep -cE "$2" || true
}
