#!/usr/bin/env bash
# Random lives of one agent on one node (internal/agent/life_test.go), on all cores. A life that breaks a rule is printed with its
# story; -seed N -seeds 1 -story runs it again.
# hack/lives.sh FLAG…: -for 60s or -seeds 10000, and -seed N, the first one. By default, the commit determines the first seed, so
# that each commit tries others.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
first=$((16#$(git rev-parse HEAD 2>/dev/null | cut -c1-7 || echo 1)))
go test -c -o "$work/lives.test" ./internal/agent
cd internal/agent
code=0
"$work/lives.test" -test.run '^TestLives$' -test.v -test.timeout 0 -seed "$first" "$@" >"$work/lives.txt" 2>&1 || code=$?
grep -v '^=== \|--- PASS\|^PASS$' "$work/lives.txt" | sed 's/^ *life_test.go:[0-9]*: //' | head -n 500
exit $code
