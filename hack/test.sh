#!/usr/bin/env bash
# Every test of the repository, one kind after another, and the count of those that ran at the end. It goes on after a kind that
# fails, and its exit code says whether all passed.
set -uo pipefail
cd "$(dirname "$0")/.."
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
tools=$PWD/bin/tools
failed=()
left_out=""

kind() { # NAME COMMAND…
  local name=$1 began=$SECONDS
  shift
  printf '\n== %s\n' "$name"
  if "$@"; then
    printf -- '-- %s passed (%d s)\n' "$name" $((SECONDS - began))
  else
    failed+=("$name")
    printf -- '-- %s FAILED (%d s)\n' "$name" $((SECONDS - began))
  fi
}

gotest() { # NAME DIRECTORY ARG…
  (cd "$2" && "$tools/gotestsum" --format pkgname --jsonfile "$results/$1.json" -- "${@:3}" ./...)
}

charts() {
  hack/chart-test.sh | tee "$results/chart.txt"
  return "${PIPESTATUS[0]}"
}

# The binary for the other architecture is built, and its ELF header says what it is for.
cross() {
  local machine
  CGO_ENABLED=0 GOOS=linux GOARCH=arm64 go build -trimpath -o "$results/arm64" . &&
    machine=$(od -An -tx1 -j18 -N2 "$results/arm64") &&
    [ "$machine" = " b7 00" ] && echo "ELF machine is EM_AARCH64 (b7 00)"
}

make --no-print-directory build "$tools"/{gotestsum,helm,helm-docs,helm-unittest,golangci-lint,actionlint} || exit 1

kind "lint" hack/lint.sh
kind "workflows" "$tools/actionlint"
kind "unit" gotest unit . -race
kind "unit, controller" gotest controller controller -race
kind "simulation" hack/simulation.sh 60
kind "a large outage" gotest outage controller/internal/worker -run TestRecoversFromALargeOutage # not with -race: golang/go#78156
kind "patch fuzz corpus" gotest fuzz hack/fuzz
kind "size and plot" gotest bench hack/bench
kind "documents" gotest docs hack/docs -count=1 # Go does not see that files of another module have changed
kind "chart schema" gotest schema hack/chartschema
kind "chart" charts
kind "examples" gotest examples hack/exampletest -count=1
kind "arm64" cross
if hack/cluster/cluster check >"$results/check.txt" 2>&1; then
  kind "end to end" env JSONFILE="$results/e2e.json" hack/e2e.sh
else
  left_out="; the tests on a real node were left out: $(sed -n "s/^  - //p" "$results/check.txt" | head -n 1)"
fi

count() { cat "$results"/*.json | grep '"Test":' | grep -c "\"Action\":\"$1\"" || true; }
chart_count() { sed -n "s/^Tests:.* \([0-9]*\) $1.*/\1/p" "$results/chart.txt" | tail -n 1 | grep . || echo 0; }
echo
if [ ${#failed[@]} -gt 0 ]; then echo "failed: ${failed[*]}"; fi
if [ -n "$left_out" ]; then echo "note${left_out}"; fi
failures=$(($(count fail) + $(chart_count failed)))
echo "$(($(count pass) + $(chart_count passed))) passed, $failures failed, $(count skip) skipped"
if [ -n "$left_out" ]; then echo "(without the tests on a real node: they need root on Linux)"; fi
[ ${#failed[@]} -eq 0 ]
