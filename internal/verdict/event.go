package verdict

import (
	"slices"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/condition"
)

// Reasons of the Events about a node.
const (
	NodeVerified    = "NodeVerified"
	NodeNotVerified = "NodeNotVerified"
	NodeTimedOut    = "NodeVerificationTimedOut"
	NodeOpened      = "NodeOpened" // without a verdict: ON_TIMEOUT=open
	RecheckFailed   = "NodeRecheckFailed"
	NodeRecovered   = "NodeRecovered"
)

// AllChecksPass is how an Event and the condition say so.
const AllChecksPass = "DNS, API, network and service discovery work"

// NotChecked is the value of the failed taint that an agent adds if no check has failed; see condition.NotVerified.
const NotChecked = "unverified"

// IsFailureValue reports whether a failed taint with this value is an agent's: it says what has failed. The value of the
// controller's is the name of a release, and no release may have one of these names, or be called peers. The chart has
// the same list.
func IsFailureValue(value string) bool {
	return slices.Contains(append(checks.Names(), condition.ForeignTaints, NotChecked), value)
}
