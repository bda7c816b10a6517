#!/usr/bin/env bash
# The simulation (controller/internal/simulation): the seeds that have found something, then further seeds for some time, one process
# a core. A seed that fails is printed with its story; `-run TestSeeds -seed N` runs it again.
# hack/simulation.sh SECONDS [FIRST SEED]: without a seed the commit gives it, so that each commit tries others.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
first=${2:-$((16#$(git rev-parse HEAD 2>/dev/null | cut -c1-7 || echo 1)))}
cores=$(nproc)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go test -C controller -c -o "$work/simulation.test" ./internal/simulation
cd controller/internal/simulation
GOMAXPROCS=1 "$work/simulation.test" -test.run TestRegressions -test.v
pids=()
for ((i = 0; i < cores; i++)); do
  GOMAXPROCS=1 GOTRACEBACK=all "$work/simulation.test" -test.run TestSeeds -test.v -test.timeout $((seconds + 900))s \
    -seed $((first + i)) -every "$cores" -for "${seconds}s" >"$work/$i.txt" 2>&1 &
  pids+=($!)
done
code=0
for pid in "${pids[@]}"; do wait "$pid" || code=1; done
if [ $code != 0 ]; then grep -hv '^=== RUN\|--- PASS' "$work"/*.txt | head -n 400; fi
grep -h ' seeds in ' "$work"/*.txt | sed 's/^ *simulation_test.go:[0-9]*: /simulation: /'
exit $code
