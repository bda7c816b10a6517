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
	TaintsOfOthers = "TaintsOfOthers" // the checks have not started: a foreign taint of WAIT_FOR_TAINTS is still on
	NotVerified    = "NotVerified"    // no check has failed: the checks are not done, or the node cannot be patched
)

// Reason names the failed checks in their order: DNSFailed, or DNSFailed,ServiceFailed. Without any it is NotVerified.
func Reason(failed []string) string {
	reasons := map[string]string{checks.DNSName: DNSFailed, checks.APIName: APIFailed,
		checks.NetworkName: NetworkFailed, checks.ServiceName: ServiceFailed}
	var list []string
	for _, check := range checks.Names() {
		if slices.Contains(failed, check) {
			list = append(list, reasons[check])
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
	return slices.Contains([]string{Verified, DNSFailed, APIFailed, NetworkFailed, ServiceFailed, TaintsOfOthers, NotVerified}, first)
}
