# shellcheck shell=bash
# What the machine needs, and how it is installed.

# PROGRAM:DEBIAN-PACKAGE
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

# namespaces_refused prints what the kernel refuses, or nothing. It tries each feature in temporary namespaces.
namespaces_refused() {
	local out dir
	if ! out=$(unshare --fork --kill-child --pid --net --uts --mount --mount-proc true 2>&1); then
		say "the kernel refuses namespaces (unshare: ${out##*$'\n'}); a container needs --privileged"
		return
	fi
	if have ip && ! out=$(unshare --net sh -ec 'ip link add br0 type bridge; ip link add v0 type veth peer name v1' 2>&1); then
		say "the kernel refuses a bridge or veth pair (ip: ${out##*$'\n'})"
	fi
	if have nft && ! out=$(unshare --net nft add table ip knr 2>&1); then
		say "the kernel has no nftables (nft: ${out##*$'\n'})"
	fi
	dir=$(mktemp -d)
	if ! out=$(unshare --mount sh -ec "mount -t tmpfs tmpfs '$dir'; cd '$dir'; mkdir l u w m; mount -t overlay -o lowerdir=l,upperdir=u,workdir=w overlay m" 2>&1); then
		say "the kernel refuses an overlay mount (${out##*$'\n'})"
	fi
	rmdir "$dir"
	cgroup_trial
}

# preconditions prints what is missing, one a line. It prints nothing where `up` can run.
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
	/run/* | *" /run/"* | /var/run/* | *" /var/run/"*) say "the folder is under /run, over which each node mounts a tmpfs; set CLUSTER_DIR, or move the clone" ;;
	esac
	if ((EUID == 0)) && have unshare; then namespaces_refused; fi
}

cmd_check() {
	local problems
	problems=$(preconditions)
	if [[ -n $problems ]]; then
		say "a throwaway cluster cannot run here:"
		say "  - ${problems//$'\n'/$'\n'  - }"
		return 1
	fi
	say "a throwaway cluster can run here"
}

require_host() {
	local problems
	problems=$(preconditions)
	if [[ -n $problems ]]; then
		die "a throwaway cluster cannot run here:"$'\n'"  - ${problems//$'\n'/$'\n'  - }"
	fi
}

# install_packages PACKAGE…: without recommended packages, and without starting services: the cluster runs its own containerd.
install_packages() {
	local policy=/usr/sbin/policy-rc.d made="" lock
	note "($*)"
	# The two clusters of the tests may both find that packages are missing.
	exec {lock}>/run/lock/kube-node-ready-packages
	flock "$lock"
	# A file left by a killed run is replaced.
	if [[ ! -e $policy ]] || grep -q 'made by kube-node-ready' "$policy"; then
		made=$policy
		# shellcheck disable=SC2064
		trap "rm -f '$policy'" EXIT
		printf '#!/bin/sh\n# made by kube-node-ready hack/cluster while it installs packages\nexit 101\n' >"$policy"
		chmod +x "$policy"
	fi
	export DEBIAN_FRONTEND=noninteractive
	local install=(apt-get -o DPkg::Lock::Timeout=300 install -y -q --no-install-recommends "$@")
	if ! "${install[@]}"; then
		# The usual cause is old or missing package lists. Updating them every time would be slow.
		apt-get update -q
		"${install[@]}"
	fi
	if [[ -n $made ]]; then rm -f "$made"; trap - EXIT; fi
	exec {lock}>&-
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

# cmd_packages PROGRAM:PACKAGE…: for tests that need more than the cluster does.
cmd_packages() { ensure_programs "$@"; }
