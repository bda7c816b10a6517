#!/usr/bin/env bash
# Does the simulation find bugs? Each patch in controller/internal/simulation/testdata/mutants either restores a past bug or removes one
# protection of re-taint or remediation. For each patch, this script runs the seeds 1, 2, 3, … on a patched copy, one process per core,
# until a seed fails or each process has used LIMIT seconds (300) of CPU time, so that other work on the machine changes nothing, and
# prints a row of a table. A seed that also fails on the unchanged tree is
# ignored. The exit code is 0 if at least 80 % of the mutants are found, or all of those that the arguments name. PROCESSES sets how many
# processes run side by side. Mutants that change nothing a user could notice have no patch: see the README.md in that folder.
# "hack/mutants.sh check" only checks that each patch applies and compiles.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
mutants=controller/internal/simulation/testdata/mutants
limit=${LIMIT:-300} processes=${PROCESSES:-$(nproc)}
tree=bin/mutants # always the same: Go's cache knows its packages
mkdir -p bin
exec 9>bin/mutants.lock
flock 9
work=$(mktemp -d)
trap 'jobs -p | xargs -r kill 2>/dev/null; wait; rm -rf "$work"' EXIT
rm -rf "$tree"
mkdir "$tree"
git ls-files -z -co --exclude-standard -- go.mod go.sum 'checks/*.go' 'internal/*.go' 'metrics/*.go' 'nodepatch/*.go' 'controller/*' |
  xargs -0 cp -a --parents -t "$tree" || exit

with_patch() { # NAME COMMAND…, in the tree with the patch
  git apply --directory="$tree" "$mutants/$1.patch" || return
  (cd "$tree" && "${@:2}")
  local result=$?
  git apply -R --directory="$tree" "$mutants/$1.patch" && return $result
}
compile() { go build ./checks/... ./internal/... ./nodepatch/... && go build -C controller ./internal/...; }
binary() { go test -C controller -c -o "$1" ./internal/simulation; } # FILE

all=()
for patch in "$mutants"/*.patch; do all+=("$(basename "$patch" .patch)"); done
if [ "${1:-}" = check ]; then
  failed=0
  for name in "${all[@]}"; do
    with_patch "$name" compile || { echo "mutants: $mutants/$name.patch does not apply or compile: correct it, or remove it and say why" >&2; failed=1; }
  done
  [ $failed = 0 ] && echo "${#all[@]} mutants apply and compile"
  exit $failed
fi

# The line "where: REGEXP" of a patch names the worlds that can show the mutant, by their options.
where_of() { sed -nE 's/^where: (.*)/\1/p' "$mutants/$1.patch" 2>/dev/null; }
try() { GOMAXPROCS=1 nice "$@" -test.run '^TestSeeds$' -test.timeout 0 -again 0; } # BINARY FLAG…
failed_seed() { sed -nE 's/^ *--- FAIL: TestSeeds\/([0-9]+).*/\1/p; s/^panic: seed ([0-9]+) hangs.*/\1/p' "$1" | head -n 1; }
rule_of() { sed -nE 's/.*: rule (.*): node [^:]*: .*/\1/p; s/^panic: (.*)/\1/p' "$1" | head -n 1; }

passes() { for _ in 1 2 3; do try "$work/bin/unchanged" -seed "$1" >/dev/null 2>&1 || return; done; } # SEED, on the unchanged tree

# The CPU time of a shell's children, in seconds, from the output of times: that must not run in a pipe.
cpu_used() { # FILE
  awk 'NR == 2 {split($1, user, /[ms]/); split($2, kernel, /[ms]/); print int(60 * (user[1] + kernel[1]) + user[2] + kernel[2])}' "$1"
}

search() ( # NAME FIRST: writes "SEED SECONDS RULE" into $work/found, else exit code 1
  where=$(where_of "$1")
  child='' left=$limit seed=$2 log=$work/$1.$2
  trap 'kill $child 2>/dev/null; exit 2' TERM
  while [ "$left" -gt 0 ]; do
    try "$work/bin/$1" -seed "$seed" -every "$processes" -where "$where" -cpu -for "${left}s" >"$log" 2>&1 &
    child=$!
    wait $child && break
    [ -d "$work" ] || break # the script may end before its last searches
    times >"$work/times.$2"
    used=$(cpu_used "$work/times.$2")
    seed=$(failed_seed "$log") seed=${seed:-0}
    if ! grep -q '^panic: seed .* hangs' "$log" && ! [ -e "$work/known/$seed" ] && passes "$seed"; then
      echo "$seed $used $(rule_of "$log")" >"$work/found"
      exit 0
    fi
    seed=$((seed + processes)) left=$((limit - used))
  done
  exit 1
)

mkdir "$work/bin" "$work/known"
(cd "$tree" && binary "$work/bin/unchanged") || exit
for ((i = 1; i <= processes; i++)); do
  try "$work/bin/unchanged" -seed $i -every "$processes" -cpu -for "${UNCHANGED:-60}s" -keep -test.v >"$work/unchanged.$i" 2>&1 &
done
wait
for seed in $(sed -nE 's/^ *--- FAIL: TestSeeds\/([0-9]+).*/\1/p' "$work"/unchanged.*); do
  touch "$work/known/$seed"
  echo "seed $seed fails on the unchanged tree: $(sed -nE "s/.*seed $seed, [^:]*: rule (.*)/\1/p" "$work"/unchanged.* | head -n 1)" >&2
done
echo "the unchanged tree: $(grep -c '^=== RUN.*/' <(cat "$work"/unchanged.*)) seeds, $(find "$work/known" -type f | wc -l) fail" >&2

found=0 names=("${@:-${all[@]}}")
printf '| %-40s | found | seed | CPU s | rule |\n|---|---|--:|--:|---|\n' mutant
for name in "${names[@]}"; do
  with_patch "$name" binary "$work/bin/$name" || { printf '| %-40s | does not apply or compile | | | |\n' "$name"; continue; }
  rm -f "$work/found"
  searches=()
  for ((i = 1; i <= processes; i++)); do
    search "$name" $i &
    searches+=($!)
  done
  for _ in "${searches[@]}"; do
    wait -n "${searches[@]}" 2>/dev/null
    [ -e "$work/found" ] && kill "${searches[@]}" 2>/dev/null
  done
  if [ -e "$work/found" ]; then
    found=$((found + 1))
    read -r seed seconds rule <"$work/found"
    printf '| %-40s | yes | %s | %s | %s |\n' "$name" "$seed" "$seconds" "$rule"
  else
    printf '| %-40s | no | %s | %s | |\n' "$name" "$(cat "$work/$name".* | sed -nE 's/.* ([0-9]+) seeds in .*/\1/p' | awk '{n += $1} END {print n}')" "$limit"
  fi
  rm -f "$work/bin/$name"
done
echo "$found of ${#names[@]} found" >&2
[ $# = 0 ] && enough=$(((${#names[@]} * 80 + 99) / 100))
[ $found -ge "${enough:-$#}" ]
