// Package condition is the vocabulary of the node's condition: its reasons, and what follows from each.
package condition

import (
	"math/bits"
	"slices"
	"strings"

	"github.com/imunhatep/kube-node-ready/checks"
)

// Reasons is a set of reasons of the node's condition. A condition lists them in this order, separated by commas.
type Reasons uint32

// The reasons of a condition that is False are a closed set; see Meanings.
const (
	NoPod         Reasons = 1 << iota // the DaemonSet controller has not created one
	Unschedulable                     // no room on the node
	ImagePull
	SandboxFailed // no network for the pod
	CrashLoop
	Silent // never started for another reason, or has not reported

	DNSFailed
	APIFailed
	NetworkFailed
	ServiceFailed
	PeersFailed    // none of the agents on other nodes answers; only after the release
	NodeFailed     // the Node does not show what REQUIRE demands
	TaintsOfOthers // the checks have not started because a foreign taint of WAIT_FOR_TAINTS is still on the node
	NotVerified    // no check has failed, but the checks are not done, or the node cannot be patched

	NotGated     // of a condition that is Unknown because the startup taint was removed
	NotRechecked // of a condition that is Unknown because no agent rechecks the node
	Verified     // of a condition that is True

	Other // a text that this version does not know. A caller that needs the text keeps it.
)

// names returns the names of all reasons but Other.
func names() [17]string {
	return [...]string{"NoPod", "Unschedulable", "ImagePull", "SandboxFailed", "CrashLoop", "Silent",
		"DNSFailed", "APIFailed", "NetworkFailed", "ServiceFailed", "PeersFailed", "NodeFailed", "TaintsOfOthers", "NotVerified",
		"NotGated", "NotRechecked", "Verified"}
}

// Parse reads the reason of a condition.
func Parse(text string) (r Reasons) {
	known := names()
	for name := range strings.SplitSeq(text, ",") {
		switch i := slices.Index(known[:], name); {
		case i >= 0:
			r |= 1 << i
		case text != "": // an empty text has no reason
			r |= Other
		}
	}
	return r
}

// OfChecks returns the reasons for failed checks: NotVerified if there are none, and TaintsOfOthers for ForeignTaints.
func OfChecks(failed []string) (r Reasons) {
	if slices.Contains(failed, ForeignTaints) {
		return TaintsOfOthers
	}
	for _, known := range Meanings() {
		if known.Check != "" && slices.Contains(failed, known.Check) {
			r |= known.Reason
		}
	}
	if r == 0 {
		return NotVerified
	}
	return r
}

// ForeignTaints stands in for the name of a check if the checks have not started; see TaintsOfOthers.
const ForeignTaints = "taints"

// Has reports whether the set has one of these reasons.
func (r Reasons) Has(of Reasons) bool { return r&of != 0 }

// First returns the first reason, or zero if there is none.
func (r Reasons) First() Reasons { return r & -r }

// String returns the reasons as a condition lists them, without Other.
func (r Reasons) String() string {
	var list []string
	for i, name := range names() {
		if r.Has(1 << i) {
			list = append(list, name)
		}
	}
	return strings.Join(list, ",")
}

// MarshalText makes logs show the names.
func (r Reasons) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Meaning is what follows from a reason of a condition that is False.
type Meaning struct {
	Reason Reasons
	Check  string // that has failed; may be empty
	// Controller means that the controller finds it, because an agent has not started or has not reported. Otherwise an agent or
	// a worker finds it.
	Controller bool
	// BySandbox means that the sandbox of a running agent's pod can be the cause. It cannot if only peers fail, because an agent
	// that reaches the DNS pods has a network.
	BySandbox bool
	// Curable means that another machine may not have it. Image, scheduler and configuration are the same there.
	Curable bool
}

// Meanings returns what follows from each reason of a condition that is False, in their order.
func Meanings() [14]Meaning { // an array, because each plan asks about each node
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

// Meaning returns what follows from the first of the reasons, or the zero Meaning if no condition that is False has it.
func (r Reasons) Meaning() Meaning {
	known := Meanings()
	if first := bits.TrailingZeros32(uint32(r)); first < len(known) {
		return known[first]
	}
	return Meaning{}
}

// IsAgents reports whether an agent has written these reasons. It has not if one of them is unknown, or the controller's.
func (r Reasons) IsAgents() bool {
	const others = NoPod | Unschedulable | ImagePull | SandboxFailed | CrashLoop | Silent | NotGated | NotRechecked | Other
	return r != 0 && !r.Has(others)
}
