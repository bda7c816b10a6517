# shellcheck shell=bash
# A node: containerd, kubelet and kube-proxy in one sandbox.

NODE_COMPONENTS="containerd kubelet kube-proxy"

node_names() {
	local dir
	for dir in "$CLUSTER_DIR"/nodes/*/; do
		if [[ -f ${dir}index ]]; then basename "$dir"; fi
	done
}

node_index() { cat "$CLUSTER_DIR/nodes/$1/index"; }

# claim_index NAME: assigns the lowest free number.
claim_index() {
	local n name taken=" "
	for name in $(node_names); do taken+="$(node_index "$name") "; done
	for n in {1..200}; do
		if [[ $taken != *" $n "* ]]; then
			mkdir -p "$CLUSTER_DIR/nodes/$1"
			printf '%s' "$n" >"$CLUSTER_DIR/nodes/$1/index"
			return
		fi
	done
	die "the limit of 200 nodes is reached"
}

# taints_as_yaml TEXT: "key=value:Effect,key:Effect" as the YAML list of kubelet's configuration.
taints_as_yaml() {
	local taint key value effect list=""
	for taint in ${1//,/ }; do
		effect=${taint##*:}
		key=${taint%:*}
		value=""
		if [[ $key == *=* ]]; then value=${key#*=} key=${key%%=*}; fi
		case $effect in
		NoSchedule | PreferNoSchedule | NoExecute) ;;
		*) die "REGISTER_TAINTS: the effect of \"$taint\" must be NoSchedule, PreferNoSchedule or NoExecute" "write key=value:Effect, several with commas" ;;
		esac
		list+="{key: \"$key\", value: \"$value\", effect: $effect}, "
	done
	printf '[%s]' "${list%, }"
}

configure_node() {
	local name=$1 index=$2 dir="$CLUSTER_DIR/nodes/$1" taints snapshotter=overlayfs file
	taints=$(taints_as_yaml "$REGISTER_TAINTS")
	# overlay does not work on overlay, the usual disk of a CI job's container.
	if [[ $(stat -f -c %T "$dir") == overlayfs ]]; then snapshotter=native; fi
	certificate "$name" "system:node:$name" system:nodes "DNS:$name,IP:$NET.$((10 + index))"
	kubeconfig "$dir/kubelet.kubeconfig" "$name"
	# Pods with dnsPolicy Default get a name server that never answers.
	printf 'nameserver %s.253\n' "$NET" >"$dir/resolv.conf"
	mkdir -p "$dir/net.d"
	for file in containerd.toml kubelet.yaml kube-proxy.yaml cni.conflist; do
		sed -e "s|@NODE@|$name|g" -e "s|@INDEX@|$index|g" -e "s|@DIR@|$dir|g" -e "s|@PKI@|$PKI|g" -e "s|@CGROUP@|/$CGROUP/$name|g" \
			-e "s|@DNS_ADDRESS@|$DNS_ADDRESS|g" -e "s|@DOMAIN@|$DOMAIN|g" -e "s|@POD_NETWORK@|$POD_NETWORK|g" \
			-e "s|@TAINTS@|$taints|g" -e "s|@PROXY_GATES@|$(proxy_gates)|g" -e "s|@SNAPSHOTTER@|$snapshotter|g" -e "s|@CLUSTER_DIR@|$CLUSTER_DIR|g" \
			"$HERE/config/$file" >"$dir/$file"
	done
	mv "$dir/cni.conflist" "$dir/net.d/10-ptp.conflist"
}

# proxy_gates prints the feature gates of kube-proxy: nftables is alpha in 1.30, and on in every newer version.
proxy_gates() { if [[ $KUBERNETES == 1.30 ]]; then say "NFTablesProxyMode: true"; fi; }

start_containerd() { spawn "$1" containerd containerd --config "$CLUSTER_DIR/nodes/$1/containerd.toml"; }

start_kubelet() {
	spawn "$1" kubelet "$KUBERNETES_BIN/kubelet" --v=2 --config="$CLUSTER_DIR/nodes/$1/kubelet.yaml" \
		--kubeconfig="$CLUSTER_DIR/nodes/$1/kubelet.kubeconfig" \
		--hostname-override="$1" --node-ip="$NET.$((10 + $(node_index "$1")))" --node-labels="$LABELS"
}

start_kube_proxy() { spawn "$1" kube-proxy "$KUBERNETES_BIN/kube-proxy" --v=2 --config="$CLUSTER_DIR/nodes/$1/kube-proxy.yaml"; }

ctr_on() {
	local node=$1
	shift
	in_sandbox "$node" "${CLEAN[@]}" ctr --namespace k8s.io "$@"
}

# prepare_node NAME: everything except kube-proxy and kubelet.
prepare_node() {
	local name=$1 index image
	if [[ ! -f $CLUSTER_DIR/nodes/$name/index ]]; then claim_index "$name"; fi
	index=$(node_index "$name")
	cgroup_make "$CGROUP/$name"
	configure_node "$name" "$index"
	start_node_sandbox "$name"
	network_node "$name" "$index"
	start_containerd "$name"
	wait_for 20 "containerd on $name" ctr_on "$name" version
	for image in "$IMAGE_DIR"/*.tar; do ctr_on "$name" images import "$image"; done
}

register_node() {
	start_kube_proxy "$1"
	start_kubelet "$1"
}

# node_ready NAME: the condition is True, and the controller manager has removed its not-ready taint.
node_ready() {
	local status
	status=$(kubectl get node "$1" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status} {.spec.taints[*].key}' 2>&1)
	printf '%s\n' "$status"
	[[ $status == True* && $status != *node.kubernetes.io/not-ready* ]]
}

wait_node() { wait_for 90 "node $1 to be Ready" node_ready "$1"; }

cmd_add_node() {
	local name=${1:-}
	[[ $name =~ ^[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?$ && $name != control ]] ||
		die "add-node needs a node name: lower-case letters, digits and dashes, not \"control\"" "hack/cluster/cluster add-node node2"
	require_sandbox control
	lock
	if init_pid "$name" >/dev/null; then die "node $name already exists" "hack/cluster/cluster delete-node $name"; fi
	stage "node $name: namespaces, containerd, images" prepare_node "$name"
	if [[ ${PROXY:-} == late ]]; then
		stage "node $name: kubelet" start_kubelet "$name"
	else
		stage "node $name: kube-proxy, kubelet" register_node "$name"
	fi
	if [[ ${WAIT:-1} == 1 ]]; then stage "node $name Ready" wait_node "$name"; fi
}

remove_node() {
	local name=$1 index sandbox
	index=$(node_index "$name")
	stop_component "$name" kubelet
	kubectl delete node "$name" --ignore-not-found --wait=false
	# The pod garbage collector would need a minute.
	kubectl delete pods --all-namespaces --field-selector "spec.nodeName=$name" --grace-period=0 --force --wait=false
	stop_node_sandbox "$name"
	in_net control ip route del "10.244.$index.0/24" || true
	for sandbox in $(node_names); do
		if [[ $sandbox != "$name" ]] && init_pid "$sandbox" >/dev/null; then in_net "$sandbox" ip route del "10.244.$index.0/24" || true; fi
	done
	cgroup_remove "$CGROUP/$name"
	rm -rf "$CLUSTER_DIR/nodes/${name:?}"
}

cmd_delete_node() {
	local name=${1:-}
	if [[ -z $name ]]; then die "delete-node needs a node name" "one of: $(node_names | tr '\n' ' ')"; fi
	require_sandbox control
	lock
	if [[ ! -f $CLUSTER_DIR/nodes/$name/index ]]; then die "there is no node called $name" "one of: $(node_names | tr '\n' ' ')"; fi
	stage "node $name stopped and deleted" remove_node "$name"
}
