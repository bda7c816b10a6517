# shellcheck shell=bash
# Output for people: one line for each stage with its duration, a live line for the running stage (a line every 20 s where there is no
# terminal), errors with a remedy.

say() { printf '%s\n' "$*"; }

warn() { printf 'cluster: warning: %s\n' "$*" >&2; }

# die MESSAGE [REMEDY]
die() {
	printf 'cluster: %s\n' "$1" >&2
	if [[ -n ${2:-} ]]; then printf '  remedy: %s\n' "$2" >&2; fi
	exit 1
}

now_ms() { local t=${EPOCHREALTIME/[.,]/}; printf '%s' "${t%???}"; }

seconds() { printf '%d.%d s' "$(($1 / 1000))" "$(($1 % 1000 / 100))"; }

# note TEXT: progress of the running stage, shown after its title.
note() { if [[ -n ${STAGE_NOTE:-} ]]; then printf '%s' "$*" >"$STAGE_NOTE"; fi; }

# stage TITLE FUNCTION ARG…: runs the function in a subshell (so that set -e works in it); its output goes to a log, which is shown
# only when it fails.
stage() {
	local title=$1 began shown="" log status=0 last=0 elapsed line dots=0
	shift
	began=$(now_ms)
	mkdir -p "$LOG_DIR" "$RUN_DIR"
	log="$LOG_DIR/up-$1.log"
	STAGE_NOTE="$LOG_DIR/note"
	: >"$STAGE_NOTE"
	# A separate process group, so that an interrupt also ends the compiler.
	set -m
	(
		set -e
		"$@"
	) >"$log" 2>&1 </dev/null &
	STAGE_PID=$!
	set +m
	while kill -0 "$STAGE_PID" 2>/dev/null; do
		sleep 0.1
		elapsed=$(($(now_ms) - began))
		if [[ -t 1 ]]; then
			line="  … $title $(<"$STAGE_NOTE") $((elapsed / 1000)) s"
			line=${line:0:$((${COLUMNS:-100} - 1))}
			if [[ $line != "$shown" ]]; then printf '\r\033[K%s' "$line"; fi
			shown=$line
		elif ((elapsed - last >= 20000)); then
			last=$elapsed
			say "  … $title $(<"$STAGE_NOTE") $((elapsed / 1000)) s"
		fi
	done
	wait "$STAGE_PID" || status=$?
	STAGE_PID=""
	if [[ -t 1 ]]; then printf '\r\033[K'; fi
	elapsed=$(($(now_ms) - began))
	if ((status != 0)); then
		say "  ✗ $title: failed after $(seconds $elapsed)"
		tail -n 25 "$log" | sed 's/^/    /' >&2
		printf 'cluster: "%s" failed; its output: %s; component logs: %s\n' "$title" "$log" "$LOG_DIR" >&2
		exit 1
	fi
	dots=$((52 - ${#title}))
	printf '  ✓ %s %*s %s\n' "$title" $((dots > 0 ? dots : 1)) "" "$(seconds $elapsed)"
}

# wait_for SECONDS WHAT COMMAND…: polls until the command succeeds. It ends when the main script is gone, so that a killed `up`
# leaves no shell behind that keeps building the cluster.
wait_for() {
	local limit=$1 what=$2 began
	shift 2
	began=$(now_ms)
	until "$@" >/dev/null 2>&1; do
		if [[ ! -d /proc/$$ ]]; then exit 1; fi
		if (($(now_ms) - began > limit * 1000)); then
			printf 'cluster: timeout after %s s waiting for %s; last output:\n' "$limit" "$what" >&2
			"$@" >&2 || true
			return 1
		fi
		sleep 0.1
	done
}
