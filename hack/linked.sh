#!/usr/bin/env bash
# What is linked into the agent, by module and by package, in kB of code and data (`go tool nm`), and the imports by which a module
# comes in. On top of that the binary holds Go's tables of functions and types, about as much again, which go with the code.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
make --no-print-directory agent BIN="$work/agent" LDFLAGS= >/dev/null # with its symbols
go version -m "$work/agent" | sed -n 's/.*-tags=//p' >"$work/tags"
CGO_ENABLED=0 go list -tags "$(cat "$work/tags")" -deps -f '{{.ImportPath}} {{with .Module}}{{.Path}}{{else}}std{{end}}' . >"$work/packages"
# Zeroed memory takes no room in the file: symbols of kind B, and one of 32 MB that crypto has among the data.
go tool nm -size "$work/agent" | awk '
  FNR == NR { module[$1] = $2; next }
  $3 ~ /^[TtRrDd]$/ && $2 < 8000000 {
    name = $4
    sub(/^type:[.a-z]*[*]*/, "", name); sub(/^go:.*|^\$.*/, "(go)", name)
    last = match(name, /[^\/]*$/); tail = substr(name, last)
    sub(/[.(\[{].*/, "", tail)
    package = substr(name, 1, last - 1) tail
    gsub(/%2e/, ".", package)
    if (!(package in module)) { package = "(shared)"; module[package] = "(shared)" }
    size[package] += $2
  }
  END { for (p in size) print p, module[p], size[p] }' "$work/packages" - >"$work/sizes"

echo "by module, kB of code and data:"
awk '{s[$2] += $3} END {for (m in s) printf "%8.0f  %s\n", s[m]/1000, m}' "$work/sizes" | sort -rn | while read -r size module; do
  why=""
  if [[ $module == *.*/* && $module != github.com/imunhatep/* ]]; then
    why=$(go mod why -m "$module" | sed 1d | awk '{printf "%s%s", (NR > 1 ? " → " : ""), $1}' | sed 's,github.com/imunhatep/kube-node-ready,.,g')
  fi
  printf '%8s  %-44s %s\n' "$size" "$module" "$why"
done
echo
echo "the ${TOP:-25} largest packages:"
sort -k3 -rn "$work/sizes" | awk -v top="${TOP:-25}" 'NR <= top {printf "%8.0f  %s\n", $3/1000, $1}'
