package verdict

import (
	"slices"
	"strings"

	"github.com/imunhatep/kube-node-ready/checks"
)

// Reasons of the node's condition, a closed set: see Meanings. Several failed checks are joined by commas.
const (
	Verified = "Verified" // the only one of a condition that is True

	DNSFailed      = "DNSFailed"
	APIFailed      = "APIFailed"
	NetworkFailed  = "NetworkFailed"
	ServiceFailed  = "ServiceFailed"
	PeersFailed    = "PeersFailed"    // none of the agents on other nodes answers; only after the release
	NodeFailed     = "NodeFailed"     // the Node does not show what REQUIRE demands
	TaintsOfOthers = "TaintsOfOthers" // the checks have not started: a foreign taint of WAIT_FOR_TAINTS is still on
	NotVerified    = "NotVerified"    // no check has failed: the checks are not done, or the node cannot be patched

	NoPod         = "NoPod"         // the DaemonSet controller has made none
	Unschedulable = "Unschedulable" // no room on the node
	ImagePull     = "ImagePull"
	SandboxFailed = "SandboxFailed" // no network for the pod
	CrashLoop     = "CrashLoop"
	Silent        = "Silent" // never started for another reason, or never spoke
)

// Meaning is what follows from a reason of a condition that is False.
type Meaning struct {
	Reason string
	Check  string // that has failed, "": none
	// Controller means that the controller finds it, of an agent that does not start or does not speak.
	// Else an agent or a worker does.
	Controller bool
	// BySandbox means that the sandbox of a running agent's pod can be the cause. It is not where only peers fail: an agent that
	// reaches the DNS pods has a network.
	BySandbox bool
	// Curable means that another machine may not have it. Image, scheduler and configuration are the same there.
	Curable bool
}

// Meanings returns all reasons of a condition that is False. Failed checks are in their order.
func Meanings() [14]Meaning { // no slice: it is asked about each node in each plan
	return [...]Meaning{
		{Reason: NoPod, Controller: true},
		{Reason: Unschedulable, Controller: true},
		{Reason: ImagePull, Controller: true},
		{Reason: SandboxFailed, Controller: true, Curable: true},
		{Reason: CrashLoop, Controller: true},
		{Reason: Silent, Controller: true, BySandbox: true, Curable: true},
		{Reason: DNSFailed, Check: checks.DNSName, BySandbox: true, Curable: true},
		{Reason: APIFailed, Check: checks.APIName, BySandbox: true, Curable: true},
		{Reason: NetworkFailed, Check: checks.NetworkName, BySandbox: true, Curable: true},
		{Reason: ServiceFailed, Check: checks.ServiceName, BySandbox: true, Curable: true},
		{Reason: PeersFailed, Check: checks.PeersName, Curable: true},
		{Reason: NodeFailed, Check: checks.NodeName},
		{Reason: TaintsOfOthers},
		{Reason: NotVerified},
	}
}

// MeaningOf returns what follows from the first of the reasons of a condition, the zero Meaning if it is none of them.
func MeaningOf(reasons string) Meaning {
	first, _, _ := strings.Cut(reasons, ",")
	for _, known := range Meanings() {
		if known.Reason == first {
			return known
		}
	}
	return Meaning{}
}

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

// Values of the failed taint that an agent adds, beside the names of checks.
const (
	ForeignTaints = "taints"     // the checks have not started: see TaintsOfOthers
	NotChecked    = "unverified" // no check has failed: see NotVerified
)

// IsFailureValue reports whether a failed taint with this value is an agent's: it says what has failed. The value of the
// controller's is the name of a release, and no release may have one of these names, or be called peers. The chart has
// the same list.
func IsFailureValue(value string) bool {
	return slices.Contains(append(checks.Names(), ForeignTaints, NotChecked), value)
}

// Reason names the failed checks in their order: DNSFailed, or DNSFailed,ServiceFailed. Without any it is NotVerified, and with
// ForeignTaints it is TaintsOfOthers.
func Reason(failed []string) string {
	if slices.Contains(failed, ForeignTaints) {
		return TaintsOfOthers
	}
	var list []string
	for _, known := range Meanings() {
		if known.Check != "" && slices.Contains(failed, known.Check) {
			list = append(list, known.Reason)
		}
	}
	if len(list) == 0 {
		return NotVerified
	}
	return strings.Join(list, ",")
}

// IsAgents reports whether the agent has written this reason to a condition.
func IsAgents(reason string) bool {
	is := MeaningOf(reason)
	return reason == Verified || is.Reason != "" && !is.Controller
}
