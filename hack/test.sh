#!/usr/bin/env bash
# What a change must not break, one kind of test after another (make test); with "all" it runs that first, and then every other test of
# the repository (make test-all). It goes on after a kind that fails, and its exit code says whether all passed. In the end it prints the
# slowest tests, and how many ran.
set -uo pipefail
cd "$(dirname "$0")/.."
results=${RESULTS:-$(mktemp -d)} # of make test, within make test-all
if [ -z "${RESULTS:-}" ]; then trap 'rm -rf "$results"' EXIT; fi
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

end_to_end() { # core or rest
  if hack/cluster/cluster check >"$results/check.txt" 2>&1; then
    kind "end to end, $1" env E2E="$1" JSONFILE="$results/e2e-$1.json" hack/e2e.sh
  else
    left_out="; the tests on a real node were left out: $(sed -n "s/^  - //p" "$results/check.txt" | head -n 1)"
  fi
}

core() {
  make --no-print-directory build "$tools"/{gotestsum,helm,helm-docs,helm-unittest} || exit 1
  kind "unit" gotest unit .
  kind "unit, controller" gotest controller controller -skip '^TestRegressions$' # simulation.sh runs it
  kind "simulation" hack/simulation.sh 30
  kind "chart schema" gotest schema hack/chartschema
  kind "chart" charts
  end_to_end core
}

rest() {
  RESULTS=$results make --no-print-directory test || failed+=("make test")
  make --no-print-directory "$tools"/{golangci-lint,actionlint} || exit 1
  kind "lint" hack/lint.sh
  kind "workflows" "$tools/actionlint"
  kind "unit with the race detector" gotest race . -race
  kind "unit with the race detector, controller" gotest race-controller controller -race
  kind "patch fuzz corpus" gotest fuzz hack/fuzz
  kind "size and pictures" gotest bench hack/bench
  kind "documents" gotest docs hack/docs -count=1 # Go does not see that files of another module have changed
  kind "examples" gotest examples hack/exampletest -count=1
  kind "arm64" cross
  end_to_end rest
}

case ${1:-} in
all) rest ;;
*) core ;;
esac

count() { cat "$results"/*.json | grep '"Test":' | grep -c "\"Action\":\"$1\"" || true; }
chart_count() { sed -n "s/^Tests:.* \([0-9]*\) $1.*/\1/p" "$results/chart.txt" | tail -n 1 | grep . || echo 0; }
printf '\nthe slowest tests, in seconds:\n'
cat "$results"/*.json | "$tools/gotestsum" tool slowest --num 20 --threshold 1s
if [ ${#failed[@]} -gt 0 ]; then
  # Each failed test again, with the last lines that it has printed: thousands of lines stand between them above.
  cat "$results"/*.json | sed -n 's/.*"Action":"fail",\("Package":"[^"]*","Test":"[^"]*"\).*/\1/p' | sort -u | while read -r test; do
    printf '\n--- FAIL: %s\n' "$(sed 's/"Package":"\(.*\)","Test":"\(.*\)"/\1 \2/' <<<"$test")"
    grep -hF "\"Action\":\"output\",$test" "$results"/*.json | tail -n 40 | sed 's/.*"Output":"//; s/\(\\n\)*"}$//; s/\\t/  /g; s/\\"/"/g'
  done
  printf '\nfailed: %s\n' "${failed[*]}"
fi
if [ -n "$left_out" ]; then echo "note${left_out}"; fi
failures=$(($(count fail) + $(chart_count failed)))
echo "$(($(count pass) + $(chart_count passed))) passed, $failures failed, $(count skip) skipped"
if [ -n "$left_out" ]; then echo "(without the tests on a real node: they need root on Linux)"; fi
[ ${#failed[@]} -eq 0 ]
