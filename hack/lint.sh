#!/usr/bin/env bash
# gofmt, go vet and golangci-lint in every module of the repository that holds code; make targets that no longer exist.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

unformatted=$(git ls-files -co --exclude-standard '*.go' | xargs gofmt -l)
if [ -n "$unformatted" ]; then
  printf 'not formatted (gofmt -w):\n%s\n' "$unformatted" >&2
  exit 1
fi
failed=0
hack/make-references.sh || failed=1
for module in $(git ls-files -co --exclude-standard '*go.mod' | grep -v '^hack/tools/'); do
  dir=$(dirname "$module")
  echo "lint $dir"
  (cd "$dir" && go vet ./... && "$root/bin/tools/golangci-lint" run --allow-parallel-runners --config "$root/.golangci.yml" ./...) || failed=1
done
exit $failed
