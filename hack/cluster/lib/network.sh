# shellcheck shell=bash
# Addresses: one /24 of 198.18.0.0/15 (reserved for tests, RFC 2544) for each cluster on this machine:
#   .1     control plane, on the bridge br0 of its namespace
#   .10+N  node N
#   .253   a gateway that does not exist
#   .254   the host, so that kubectl works from it

POD_NETWORK=10.244.0.0/16 # node N: 10.244.N.0/24
SERVICE_NETWORK=10.96.0.0/16
API_SERVICE_ADDRESS=10.96.0.1
DNS_ADDRESS=10.96.0.10
DOMAIN=cluster.local

# claim_network sets NET to the first unused 198.18.N. The unreachable route is the claim: of two clusters that start at the same time
# only one can add it. Its metric is below that of the link's route, and it outlives the link: requests to a dead cluster must not
# leave the machine.
claim_network() {
	local n
	for n in {0..254}; do
		NET=198.18.$n
		if [[ -z $(ip -4 route show table all to root "$NET.0/24" 2>/dev/null) && ! -e /sys/class/net/knr$n ]] &&
			ip route add unreachable "$NET.0/24" metric 4096 2>/dev/null; then
			return
		fi
	done
	die "all of 198.18.0.0/16 is in use on this machine" "take down the clusters that run here: hack/cluster/cluster down in each clone"
}

# nowhere SANDBOX DEVICE: a default route to a neighbour that never answers. Addresses outside the cluster time out, as behind a
# firewall, and ClusterIPs have a route, which kube-proxy needs.
nowhere() {
	in_net "$1" ip neigh replace "$NET.253" lladdr 02:00:00:00:00:fd dev "$2" nud permanent
	in_net "$1" ip route replace default via "$NET.253" dev "$2"
}

network_control() {
	local pid
	pid=$(init_pid control)
	ip link add "$HOST_LINK" type veth peer name host0 netns "$pid"
	# A fixed address: a bridge otherwise takes that of a port and changes it when the port's node is deleted; the API server is then
	# unreachable until the neighbour tables expire.
	in_net control ip link add br0 address 02:00:00:00:00:01 type bridge
	in_net control ip link set host0 master br0
	in_net control ip address add "$API_ADDRESS/24" dev br0
	in_net control ip link set host0 up
	in_net control ip link set br0 up
	nowhere control br0
	# No IPv6 on the host's end, which would announce itself to the nodes.
	if [[ -e /proc/sys/net/ipv6/conf/$HOST_LINK/disable_ipv6 ]]; then echo 1 >"/proc/sys/net/ipv6/conf/$HOST_LINK/disable_ipv6"; fi
	ip address add "$NET.254/24" dev "$HOST_LINK"
	ip link set "$HOST_LINK" up
}

# network_node NAME INDEX
network_node() {
	local pid name index
	pid=$(init_pid "$1")
	in_net control ip link add "veth$2" type veth peer name eth0 address "02:00:00:00:01:$(printf %02x "$2")" netns "$pid"
	in_net control ip link set "veth$2" master br0
	in_net control ip link set "veth$2" up
	in_net "$1" ip address add "$NET.$((10 + $2))/24" dev eth0
	in_net "$1" ip link set eth0 up
	nowhere "$1" eth0
	# Pods are reached by their own addresses: no masquerading between nodes.
	in_net control ip route replace "10.244.$2.0/24" via "$NET.$((10 + $2))"
	for name in $(node_names); do
		if [[ $name == "$1" ]]; then continue; fi
		index=$(node_index "$name")
		if init_pid "$name" >/dev/null; then
			in_net "$name" ip route replace "10.244.$2.0/24" via "$NET.$((10 + $2))"
			in_net "$1" ip route replace "10.244.$index.0/24" via "$NET.$((10 + index))"
		fi
	done
}
