# shellcheck shell=bash
# Commands that inspect the cluster, and that signal, stop and start its components.

# sandbox_of COMPONENT [NODE] prints the sandbox it runs in, which must be up.
sandbox_of() {
	local sandbox=control
	if [[ " $NODE_COMPONENTS " == *" ${1:-} "* ]]; then
		sandbox=${2:-$(node_names | head -n 1)}
	elif [[ " $CONTROL_COMPONENTS " != *" ${1:-} "* ]]; then
		die "$command needs a component, not \"${1:-}\"" "one of: $CONTROL_COMPONENTS, and on a node: $NODE_COMPONENTS"
	fi
	require_sandbox "${sandbox:=node1}"
	say "$sandbox"
}

cmd_pid() {
	local sandbox
	sandbox=$(sandbox_of "$@")
	component_pid "$sandbox" "$1" ||
		die "$1 is not running in $sandbox" "hack/cluster/cluster restart $1 $sandbox; its log: $(component_log "$sandbox" "$1")"
	echo
}

cmd_signal() {
	local pid
	if (($# < 2)); then die "signal needs a signal and a component" "hack/cluster/cluster signal STOP kube-apiserver, signal KILL kubelet node1"; fi
	pid=$(cmd_pid "${@:2}")
	kill "-${1#SIG}" "$pid"
}

cmd_start() {
	local sandbox
	sandbox=$(sandbox_of "$@")
	if component_pid "$sandbox" "$1" >/dev/null; then die "$1 is already running in $sandbox" "hack/cluster/cluster restart $1 $sandbox"; fi
	if [[ $sandbox == control ]]; then "start_${1//-/_}"; else "start_${1//-/_}" "$sandbox"; fi
	if [[ $1 == kube-apiserver ]]; then wait_for 60 "the API server" api_ready; fi
}

cmd_stop() {
	local sandbox
	sandbox=$(sandbox_of "$@")
	stop_component "$sandbox" "$1"
}

cmd_restart() {
	cmd_stop "$@"
	cmd_start "$@"
}

cmd_status() {
	local sandbox name pid
	if ! init_pid control >/dev/null; then
		say "down (folder $CLUSTER_DIR)"
		if [[ -e $RUN_DIR/init ]]; then say "  it has ended without down: its init was killed; up starts a new one, down removes the leftovers"; fi
		return 1
	fi
	for sandbox in control $(node_names); do
		for name in $(if [[ $sandbox == control ]]; then echo "$CONTROL_COMPONENTS"; else echo "$NODE_COMPONENTS"; fi); do
			pid=$(component_pid "$sandbox" "$name" || printf -- -)
			printf '%-10s %-24s %-8s %s\n' "$sandbox" "$name" "$pid" "$(component_state "$sandbox" "$name")"
		done
	done
	say "kubeconfig $CLUSTER_DIR/admin.kubeconfig"
	component_pid control kube-apiserver >/dev/null && kubectl get nodes --request-timeout=5s -o 'custom-columns=NODE:.metadata.name,TAINTS:.spec.taints[*].key,VERIFIED:.metadata.labels.node-ready/verified,READY:.status.conditions[?(@.type=="Ready")].status,VERSION:.status.nodeInfo.kubeletVersion'
}

cmd_enter() {
	local sandbox=${1:-}
	if [[ -z $sandbox ]]; then die "enter needs a sandbox ("control" or a node)" "hack/cluster/cluster enter node1 nft list ruleset"; fi
	shift
	require_sandbox "$sandbox"
	if (($# == 0)); then set -- bash; fi
	# TERM is kept.
	in_sandbox "$sandbox" "${CLEAN[@]}" TERM="${TERM:-dumb}" "$@"
}

cmd_kubectl() {
	local pair
	require_sandbox control
	for pair in HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy; do unset "$pair"; done
	KUBECONFIG=$CLUSTER_DIR/admin.kubeconfig exec "$KUBERNETES_BIN/kubectl" --cache-dir "$RUN_DIR/kubectl-cache" "$@"
}

# find_pod NAMESPACE NAME prints the node of a pod and the node's PID of its pause container. It asks containerd, because a test may
# have stopped the API server.
find_pod() {
	local node id pid
	for node in $(node_names); do
		init_pid "$node" >/dev/null || continue
		for id in $(ctr_on "$node" containers list -q "labels.\"io.kubernetes.pod.namespace\"==\"$1\",labels.\"io.kubernetes.pod.name\"==\"$2\",labels.\"io.cri-containerd.kind\"==sandbox"); do
			pid=$(ctr_on "$node" tasks list | awk -v id="$id" '$1 == id && $3 == "RUNNING" {print $2}')
			if [[ -n $pid ]]; then
				say "$node $pid"
				return
			fi
		done
	done
	die "no node runs a pod $1/$2" "hack/cluster/cluster kubectl get pods -A -o wide"
}

cmd_enter_pod() {
	local found
	if (($# < 2)); then die "enter-pod needs a namespace, a pod and a command" "hack/cluster/cluster enter-pod kube-system coredns-x nft list ruleset"; fi
	require_sandbox control
	found=$(find_pod "$1" "$2")
	shift 2
	if (($# == 0)); then set -- bash; fi
	in_sandbox "${found% *}" nsenter --target "${found#* }" --net -- "${CLEAN[@]}" TERM="${TERM:-dumb}" "$@"
}

cmd_pod_pid() {
	local found want pid
	if (($# != 2)); then die "pod-pid needs a namespace and a pod" "hack/cluster/cluster pod-pid kube-system coredns-x"; fi
	require_sandbox control
	found=$(find_pod "$1" "$2")
	# The number of a namespace is the same on the node and on the host.
	want=$(in_sandbox "${found% *}" readlink "/proc/${found#* }/ns/net")
	for pid in /proc/[0-9]*; do
		if [[ "$(readlink "$pid/ns/net" 2>/dev/null)" == "$want" ]] && awk -v n="${found#* }" '/^NSpid:/ {f = ($(NF-1) == n)} END {exit !f}' "$pid/status" 2>/dev/null; then
			say "${pid#/proc/}"
			return
		fi
	done
	die "the pod has just ended"
}
