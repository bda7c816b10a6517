#!/usr/bin/env bash
# Fails if a committed text names a make target that the Makefile does not have. It looks for `make TARGET` in backticks, at the start
# of a line, after a variable, and after "run", "by" or "of": "make sure" in prose is none.
set -euo pipefail
cd "$(dirname "$0")/.."
targets=$(sed -n 's/^\([a-z0-9-]*\):.*/\1/p' Makefile)
before='`|^ *|- run: |[A-Z]=[^ ]* |(^|[^[:alpha:]])(run|by|of|down):? '
reference="($before)make( --?[a-z-]+| [A-Z]+=[^ \`]*)* [a-z][a-z0-9-]*"
failed=0
while read -r file; do
  while read -r target; do
    if ! grep -qxF -- "$target" <<<"$targets"; then
      echo "$file: the Makefile has no target \"$target\"" >&2
      failed=1
    fi
    # A reference that is wrapped after "make" is joined with its next line, without that line's comment marker.
  done < <(sed -E ':a; /`make *$/{N; s/ *\n *(#|\/\/)? */ /; ba}' "$file" | grep -oE "$reference" | sed 's/.* //' | sort -u)
done < <(git grep --untracked -lIw make -- ':!LICENSE' ':!*go.sum')
exit "$failed"
