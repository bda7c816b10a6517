# shellcheck shell=bash
# Takes the cluster down. `up` does so first, to remove what a killed run has left.

SYSCTLS="net.ipv4.ip_forward vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys kernel.keys.root_maxbytes net.netfilter.nf_conntrack_max"

BOOT_ID=/proc/sys/kernel/random/boot_id

# host_state prints the host settings that the cluster must not change, one a line.
host_state() {
	local name file
	for name in $SYSCTLS; do
		file=/proc/sys/${name//.//}
		if [[ -r $file ]]; then say "sysctl $name = $(<"$file")"; fi
	done
	nft list tables 2>/dev/null | sed 's/^/nft /' || true
}

remember_host() {
	host_state >"$RUN_DIR/host-before"
	printf '%s\n' "$HOST_LINK" >"$RUN_DIR/host-link"
	printf '%s\n' "$NET" >"$RUN_DIR/net"
	cat "$BOOT_ID" >"$RUN_DIR/boot"
}

# same_boot: after a restart of the machine, another cluster may have the network of this one.
same_boot() { cmp -s "$BOOT_ID" "$RUN_DIR/boot"; }

remember_namespaces() {
	local pid
	pid=$(init_pid control)
	readlink "/proc/$pid/ns/pid" "/proc/$pid/ns/net" >"$RUN_DIR/namespaces"
}

# remember_processes lists the processes in the cluster's namespaces before they are killed: the kernel reuses the numbers of
# namespaces, so a later search could find another cluster's.
remember_processes() {
	local link pid started
	[[ -s $RUN_DIR/namespaces ]] || return 0
	for link in /proc/[0-9]*/ns/pid /proc/[0-9]*/ns/net; do
		if grep -qxF "$(readlink "$link" 2>/dev/null || printf none)" "$RUN_DIR/namespaces"; then
			pid=${link#/proc/}
			pid=${pid%%/*}
			started=$(start_time "$pid") || continue
			say "$pid $started $(cat "/proc/$pid/comm" 2>/dev/null || true)"
		fi
	done | sort -u >"$RUN_DIR/processes"
}

# processes_left prints the processes of remember_processes that still run.
processes_left() {
	local pid started name
	[[ -s $RUN_DIR/processes ]] || return 0
	while read -r pid started name; do
		if [[ "$(start_time "$pid")" == "$started" ]]; then say "$pid ($name)"; fi
	done <"$RUN_DIR/processes"
}

routes_left() { if same_boot && [[ -s $RUN_DIR/net ]]; then ip -4 route show type unreachable to exact "$(<"$RUN_DIR/net").0/24" | awk '{print $2}'; fi; }

links_left() { if same_boot && [[ -s $RUN_DIR/host-link && -e /sys/class/net/$(<"$RUN_DIR/host-link") ]]; then cat "$RUN_DIR/host-link"; fi; }

mounts_left() { a=$CLUSTER_DIR/ awk 'BEGIN {a = ENVIRON["a"]; gsub(/ /, "\\040", a)} index($5 "/", a) == 1 {print $5}' /proc/self/mountinfo; }

no_process_left() { [[ -z $(processes_left) ]]; }

self_check() {
	local left="" item
	for item in $(mounts_left); do left+="  mount $item"$'\n'; done
	while IFS= read -r item; do if [[ -n $item ]]; then left+="  process $item"$'\n'; fi; done < <(processes_left)
	for item in $(links_left); do left+="  link $item"$'\n'; done
	for item in $(routes_left); do left+="  route unreachable $item"$'\n'; done
	for item in $(cgroup_left "$CGROUP"); do left+="  cgroup $item"$'\n'; done
	if [[ -s $RUN_DIR/host-before ]]; then
		item=$(host_state | diff "$RUN_DIR/host-before" - || true)
		if [[ -n $item ]]; then
			warn "host settings have changed since up (not by the cluster, which does not write them):"
			printf '%s\n' "$item" | sed 's/^/    /' >&2
		fi
	fi
	if [[ -n $left ]]; then
		printf '%s' "$left" >&2
		return 1
	fi
}

take_down() {
	local pid
	if pid=$(outer_pid); then
		remember_processes
		# No graceful stop: the data is temporary. The kernel kills every process inside before this one is gone.
		kill -KILL "$pid" 2>/dev/null || true
		wait_for 30 "the end of the cluster's init" ended "$pid" || true
	fi
	wait_for 30 "the end of the cluster's processes" no_process_left || true
	# The kernel would do this once the last connection in the namespace has ended.
	for pid in $(links_left); do ip link del "$pid" || true; done
	for pid in $(routes_left); do ip route del unreachable "$pid"; done
	cgroup_remove "$CGROUP" || true
	cgroup_restore
	if ! self_check; then
		printf 'cluster: the above is left; run down again; if it remains, it is a bug in hack/cluster\n' >&2
		return 1
	fi
	rm -rf "${CLUSTER_DIR:?}"/{nodes,etcd,pki,run,admin.kubeconfig,kube-*.kubeconfig}
}

anything_up() { [[ -e $RUN_DIR/init || -e $RUN_DIR/host-before || -d $CLUSTER_DIR/etcd || -d $CLUSTER_DIR/nodes || -n $(cgroup_left "$CGROUP") ]]; }

cmd_down() {
	if ((EUID != 0)); then die "down needs root, as up did" "sudo hack/cluster/cluster down"; fi
	if [[ ! -d $CLUSTER_DIR ]]; then
		say "nothing to take down"
		return
	fi
	lock
	if anything_up; then
		mkdir -p "$RUN_DIR" "$LOG_DIR"
		stage "taking the cluster down" take_down
		say "nothing is left: no process, mount, link, cgroup or nft table; logs stay in $LOG_DIR"
	else
		say "nothing to take down"
	fi
	if [[ ${1:-} == --all ]]; then
		rm -rf "${CLUSTER_DIR:?}"
		say "removed $CLUSTER_DIR"
	fi
}
