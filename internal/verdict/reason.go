package verdict

import (
	"slices"
	"strings"

	"github.com/imunhatep/kube-node-ready/checks"
)

// Reasons that the agent writes to the node's condition, a closed set. Several failed checks are joined by commas.
const (
	Verified       = "Verified" // the only one of a condition that is True
	DNSFailed      = "DNSFailed"
	APIFailed      = "APIFailed"
	NetworkFailed  = "NetworkFailed"
	ServiceFailed  = "ServiceFailed"
	PeersFailed    = "PeersFailed"    // none of the agents on other nodes answers; only after the release
	NodeFailed     = "NodeFailed"     // the Node does not show what REQUIRE demands
	TaintsOfOthers = "TaintsOfOthers" // the checks have not started: a foreign taint of WAIT_FOR_TAINTS is still on
	NotVerified    = "NotVerified"    // no check has failed: the checks are not done, or the node cannot be patched
)

// Reasons of the Events about a node.
const (
	NodeVerified    = "NodeVerified"
	NodeNotVerified = "NodeNotVerified"
	NodeTimedOut    = "NodeVerificationTimedOut"
	RecheckFailed   = "NodeRecheckFailed"
	NodeRecovered   = "NodeRecovered"
)

// AllChecksPass is how an Event and the condition say so.
const AllChecksPass = "DNS, API, network and service discovery work"

// Reason names the failed checks in their order: DNSFailed, or DNSFailed,ServiceFailed. Without any it is NotVerified.
func Reason(failed []string) string {
	var list []string
	for _, known := range []struct{ check, reason string }{
		{checks.DNSName, DNSFailed}, {checks.APIName, APIFailed},
		{checks.NetworkName, NetworkFailed}, {checks.ServiceName, ServiceFailed},
		{checks.PeersName, PeersFailed}, {checks.NodeName, NodeFailed},
	} {
		if slices.Contains(failed, known.check) {
			list = append(list, known.reason)
		}
	}
	if len(list) == 0 {
		return NotVerified
	}
	return strings.Join(list, ",")
}

// IsAgents reports whether the agent has written this reason to a condition.
func IsAgents(reason string) bool {
	first, _, _ := strings.Cut(reason, ",")
	return slices.Contains([]string{Verified, DNSFailed, APIFailed, NetworkFailed, ServiceFailed, PeersFailed, NodeFailed,
		TaintsOfOthers, NotVerified}, first)
}
