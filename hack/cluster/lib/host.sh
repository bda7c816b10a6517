# shellcheck shell=bash
# What the machine must have, and how it gets it.

ELSEWHERE="any cluster works instead of this one: set KUBECONFIG to it and apply hack/manifests/kube-node-ready.yaml"

# Program, and the Debian package that brings it.
PROGRAMS="ip:iproute2 nft:nftables iptables:iptables conntrack:conntrack ethtool:ethtool unshare:util-linux nsenter:util-linux
setsid:util-linux flock:util-linux mount:mount pgrep:procps openssl:openssl containerd:containerd ctr:containerd runc:runc
/usr/lib/cni/ptp:containernetworking-plugins /usr/lib/cni/host-local:containernetworking-plugins
/usr/lib/cni/portmap:containernetworking-plugins"
IMAGE_PROGRAMS="buildah:buildah busybox:busybox-static"

have() { if [[ $1 == /* ]]; then [[ -x $1 ]]; else command -v "$1" >/dev/null 2>&1; fi; }

# missing_packages PROGRAM:PACKAGE…
missing_packages() {
	local pair
	for pair in "$@"; do
		if ! have "${pair%%:*}"; then printf '%s\n' "${pair#*:}"; fi
	done | sort -u
}

# namespaces_refused prints why the kernel will not do what the cluster needs, or nothing.
# It tries the real thing, in namespaces that vanish with the trial.
namespaces_refused() {
	local out dir
	if ! out=$(unshare --fork --kill-child --pid --net --uts --mount --mount-proc true 2>&1); then
		say "namespaces are refused here (unshare: ${out##*$'\n'}); a container needs --privileged"
		return
	fi
	if have ip && ! out=$(unshare --net sh -ec 'ip link add br0 type bridge; ip link add v0 type veth peer name v1' 2>&1); then
		say "the kernel makes no bridge or veth pair (ip: ${out##*$'\n'})"
	fi
	if have nft && ! out=$(unshare --net nft add table ip knr 2>&1); then
		say "the kernel has no nftables (nft: ${out##*$'\n'})"
	fi
	dir=$(mktemp -d)
	if ! out=$(unshare --mount sh -ec "mount -t tmpfs tmpfs '$dir'; cd '$dir'; mkdir l u w m; mount -t overlay -o lowerdir=l,upperdir=u,workdir=w overlay m" 2>&1); then
		say "the kernel mounts no overlay (${out##*$'\n'})"
	fi
	rmdir "$dir"
	cgroup_trial
}

# preconditions prints what is missing, one line each; nothing printed means that `up` can run.
preconditions() {
	local missing
	if [[ $(uname -s) != Linux ]]; then
		say "this is $(uname -s); a real kubelet needs Linux"
		return
	fi
	if ! have go; then say "the go command (1.26 or newer) is missing: it builds etcd, Kubernetes and CoreDNS"; fi
	# shellcheck disable=SC2086
	missing=$(missing_packages $PROGRAMS)
	if ((EUID != 0)); then say "you are not root: namespaces, mounts and cgroups need it"; fi
	if [[ -n $missing ]] && { ((EUID != 0)) || ! have apt-get; }; then
		say "programs of these Debian packages are missing: ${missing//$'\n'/ }$(have apt-get || printf ' (and there is no apt-get to install them)')"
	fi
	case "$CLUSTER_DIR/ $ROOT/" in
	/run/* | *" /run/"* | /var/run/* | *" /var/run/"*) say "the folder lies under /run, which the nodes cover with their own; set CLUSTER_DIR, or move the clone" ;;
	esac
	if ((EUID == 0)) && have unshare; then namespaces_refused; fi
}

cmd_check() {
	local problems
	problems=$(preconditions)
	if [[ -n $problems ]]; then
		say "a throwaway cluster cannot run here:"
		say "  - ${problems//$'\n'/$'\n'  - }"
		say "$ELSEWHERE"
		return 1
	fi
	say "a throwaway cluster can run here"
}

require_host() {
	local problems
	problems=$(preconditions)
	if [[ -n $problems ]]; then
		die "a throwaway cluster cannot run here:"$'\n'"  - ${problems//$'\n'/$'\n'  - }" "$ELSEWHERE"
	fi
}

# install_packages PACKAGE…: nothing recommended, and no service started: the cluster runs its own containerd, and the host's is none of our business.
install_packages() {
	local policy=/usr/sbin/policy-rc.d made=""
	note "($*)"
	# One that a killed run of ours has left counts as none.
	if [[ ! -e $policy ]] || grep -q 'made by kube-node-ready' "$policy"; then
		made=$policy
		# shellcheck disable=SC2064
		trap "rm -f '$policy'" EXIT
		printf '#!/bin/sh\n# made by kube-node-ready hack/cluster while it installs packages\nexit 101\n' >"$policy"
		chmod +x "$policy"
	fi
	export DEBIAN_FRONTEND=noninteractive
	if ! apt-get install -y -q --no-install-recommends "$@"; then
		# Package lists that are old or absent are the usual cause, and cost too much to fetch each time.
		apt-get update -q
		apt-get install -y -q --no-install-recommends "$@"
	fi
	if [[ -n $made ]]; then rm -f "$made"; trap - EXIT; fi
}

ensure_programs() {
	local missing
	missing=$(missing_packages "$@")
	if [[ -n $missing ]]; then
		if ((EUID != 0)) || ! have apt-get; then
			die "programs of these Debian packages are missing: ${missing//$'\n'/ }" "install them, as root where apt-get exists"
		fi
		# shellcheck disable=SC2086
		stage "Debian packages" install_packages $missing
	fi
}
