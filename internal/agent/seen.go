package agent

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// seen is one Node as the agent has seen it. A Node of another uid begins empty.
type seen struct {
	uid  types.UID       // "" before the first read
	node *nodepatch.Node // as last read, nil before, and after forget
	at   time.Time       // when; zero for a read from the API server's cache, on which no patch is built
	// reusable is the report of a read just before the checks. The api check would send the same request, and reuses it:
	// that saves one of five requests on every new node. nil once it is used.
	reusable   *checks.Report
	startupDue time.Time // until when a late startup taint may be added; zero before it is known
	// foreign means that a foreign taint was seen: the release starts from a fresh read.
	foreign bool
	// replaced means that the Node was deleted and created again: nothing that was verified before counts.
	replaced bool
}

// keep takes a Node as it was read at a time, zero from the cache.
func (s *seen) keep(node *nodepatch.Node, at time.Time) {
	if s.uid != "" && s.uid != node.UID {
		*s = seen{replaced: true}
	}
	s.uid, s.node, s.at = node.UID, node, at
}

// forget drops what was read, because it is old. Another Node that is read next is known by its uid.
func (s *seen) forget() { s.node, s.at, s.reusable, s.foreign = nil, time.Time{}, nil, true }
