# shellcheck shell=bash
# A sandbox is a set of namespaces (PID, network, mount, UTS) with its own init: one is called "control", the others by their node's
# name. The nodes' PID namespaces are children of control's. Killing an init kills every process of its sandbox; the kernel then
# removes the mounts, links, addresses, nft tables and network settings. No other cleanup is needed.

# start_time PID: in clock ticks since boot. Together with the PID it identifies a process even after the PID is reused.
start_time() {
	local stat
	stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
	# The command name in parentheses may contain spaces and parentheses.
	stat=${stat##*) }
	# shellcheck disable=SC2086
	set -- $stat
	# A zombie has ended.
	[[ $1 != Z ]] || return 1
	printf '%s' "${20}"
}

ended() { ! start_time "$1" >/dev/null; }

# outer_pid prints the host PID of control's `unshare`, whose end ends the cluster, if it still is the process that was started.
outer_pid() {
	local pid started
	[[ -s $RUN_DIR/init ]] || return 1
	read -r pid started <"$RUN_DIR/init" || return 1
	[[ -n $pid && "$(start_time "$pid")" == "$started" ]] || return 1
	printf '%s' "$pid"
}

# inner_pid PID NUMBER prints the host PID of the child of PID that has the PID NUMBER in its own namespace.
inner_pid() {
	local pid
	for pid in $(pgrep -P "$1"); do
		if ended "$pid"; then continue; fi
		if awk -v want="$2" '/^NSpid:/ {found = $NF == want} END {exit !found}' "/proc/$pid/status" 2>/dev/null; then
			printf '%s' "$pid"
			return
		fi
	done
	return 1
}

# init_pid SANDBOX prints the host PID of its process 1.
init_pid() {
	local pid
	pid=$(outer_pid) || return 1
	pid=$(inner_pid "$pid" 1) || return 1
	if [[ $1 != control ]]; then
		[[ -f $RUN_DIR/$1.outer ]] || return 1
		pid=$(inner_pid "$pid" "$(<"$RUN_DIR/$1.outer")") || return 1
		pid=$(inner_pid "$pid" 1) || return 1
	fi
	printf '%s' "$pid"
}

require_sandbox() {
	init_pid "$1" >/dev/null && return
	if init_pid control >/dev/null; then
		die "there is no node called $1" "hack/cluster/cluster add-node $1; existing nodes: $(node_names | tr '\n' ' ')"
	fi
	if [[ -e $RUN_DIR/init ]]; then die "the cluster has ended without down: its init was killed" "hack/cluster/cluster up starts a new one, down removes the leftovers"; fi
	die "the cluster is not up" "hack/cluster/cluster up"
}

# CLEAN is the environment of every process in a sandbox: without the caller's proxies and credentials.
CLEAN=(env -i "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" HOME=/root LANG=C.UTF-8)

# in_sandbox SANDBOX COMMAND…
in_sandbox() {
	local pid
	pid=$(init_pid "$1") || die "$1 is not running" "hack/cluster/cluster up"
	shift
	nsenter --target "$pid" --mount --net --pid --uts -- "$@"
}

# in_net SANDBOX COMMAND…: only in its network namespace.
in_net() {
	local pid
	pid=$(init_pid "$1") || die "$1 is not running" "hack/cluster/cluster up"
	shift
	nsenter --target "$pid" --net -- "$@"
}

# start_control: the process writes its own PID and start time, so that the record is right even if this script is killed.
start_control() {
	rm -f "$RUN_DIR/init" "$RUN_DIR/control.ready"
	"${CLEAN[@]}" setsid -f bash -c '
		stat=$(cat /proc/$$/stat); stat=${stat##*) }; set -- "$1" "$2" "$3" $stat
		echo "$$ ${23}" >"$1"
		exec unshare --fork --kill-child --pid --net --uts --mount --mount-proc --propagation private -- bash "$2" "$3"
	' control "$RUN_DIR/init" "$HERE/sandbox-init" "$CLUSTER_DIR" </dev/null >"$LOG_DIR/control-init.log" 2>&1 9>&-
	wait_for 10 "the control plane's namespaces" test -f "$RUN_DIR/control.ready"
	remember_namespaces
}

# start_node_sandbox NAME
start_node_sandbox() {
	rm -f "$RUN_DIR/$1.outer" "$RUN_DIR/$1.ready"
	in_sandbox control "${CLEAN[@]}" setsid -f bash -c '
		echo $$ >"$1"
		exec unshare --fork --kill-child --pid --net --uts --mount --mount-proc --propagation private -- bash "$2" "$3" "$4"
	' node "$RUN_DIR/$1.outer" "$HERE/sandbox-init" "$CLUSTER_DIR" "$1" </dev/null >"$LOG_DIR/$1-init.log" 2>&1 9>&-
	wait_for 10 "the namespaces of $1" test -f "$RUN_DIR/$1.ready"
}

# stop_node_sandbox NAME: kills the node's init and waits for the end of its processes.
stop_node_sandbox() {
	local pid
	pid=$(init_pid "$1") || return 0
	kill -KILL "$pid" 2>/dev/null || true
	wait_for 20 "the end of $1's processes" ended "$pid"
	rm -f "$RUN_DIR/$1".*
}

# --- components ---

component_log() { if [[ $1 == control ]]; then printf '%s' "$LOG_DIR/$2.log"; else printf '%s' "$LOG_DIR/$1-$2.log"; fi; }

# spawn SANDBOX NAME COMMAND…: starts a component that outlives this script (setsid -f makes it a child of the sandbox's init).
spawn() {
	local sandbox=$1 name=$2 pidfile="$RUN_DIR/$1.$2.pid"
	shift 2
	rm -f "$pidfile"
	in_sandbox "$sandbox" "${CLEAN[@]}" setsid -f bash -c 'echo $$ >"$1.new"; mv "$1.new" "$1"; shift; exec "$@"' "$name" "$pidfile" "$@" \
		</dev/null >>"$(component_log "$sandbox" "$name")" 2>&1 9>&-
	wait_for 5 "$name to start" test -s "$pidfile"
}

# component_pid SANDBOX NAME prints its host PID.
component_pid() {
	local pid
	[[ -s $RUN_DIR/$1.$2.pid ]] || return 1
	pid=$(init_pid "$1") || return 1
	inner_pid "$pid" "$(<"$RUN_DIR/$1.$2.pid")"
}

component_state() {
	local pid
	if ! pid=$(component_pid "$1" "$2"); then
		say "stopped"
		return
	fi
	case $(sed 's/.*) \(.\).*/\1/' "/proc/$pid/stat" 2>/dev/null) in
	T | t) say "paused (SIGSTOP)" ;;
	Z | "") say "stopped" ;;
	*) say "running" ;;
	esac
}

# stop_component SANDBOX NAME: SIGTERM, and SIGKILL after 10 s.
stop_component() {
	local pid i
	pid=$(component_pid "$1" "$2") || return 0
	kill -TERM "$pid" 2>/dev/null || true
	kill -CONT "$pid" 2>/dev/null || true
	for ((i = 0; i < 100; i++)); do
		if ended "$pid"; then return; fi
		sleep 0.1
	done
	kill -KILL "$pid" 2>/dev/null || true
	wait_for 10 "the end of $2" ended "$pid"
}
