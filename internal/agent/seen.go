package agent

import (
	"time"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// seen is one Node as the agent has seen it. A Node of another uid begins empty.
type seen struct {
	node *nodepatch.Node // as last read, nil before
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
	if s.node != nil && s.node.UID != node.UID {
		*s = seen{replaced: true}
	}
	s.node, s.at = node, at
}
