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
# The table of hack/README.md has the targets of the Makefile, all of them and no other.
diff <(sed -nE 's/^([a-z0-9-]+):.*## .*/\1/p' Makefile | grep -vx help | sort) <(sed -nE 's/^\| `make ([a-z0-9-]+)`.*/\1/p' hack/README.md | sort) || {
  echo "hack/README.md: targets of the Makefile (<) and of the table (>) differ" >&2
  failed=1
}
hack/make-references.sh || failed=1
for module in $(git ls-files -co --exclude-standard '*go.mod' | grep -v '^hack/tools/'); do
  dir=$(dirname "$module")
  echo "lint $dir"
  (cd "$dir" && go vet ./... && "$root/bin/tools/golangci-lint" run --allow-parallel-runners --config "$root/.golangci.yml" ./...) || failed=1
done
exit $failed
