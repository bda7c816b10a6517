// Package metrics exports the state of the fleet to Prometheus, from the leader only.
package metrics

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/config"
)

// window is how long a verified node keeps its series.
const window = time.Hour

// Collector counts what plans report as a step of the loop, and computes everything else at each scrape.
type Collector struct {
	// last returns the last plan, none where this process is not the leader. The error is why there is no newer one.
	last    func() (fleet.Plan, error)
	errors  func() uint64 // decisions that have failed
	program config.Program
	now     func() clock.Now
	series  map[string]*prometheus.Desc // see describe

	gate          prometheus.Histogram
	verifications *prometheus.CounterVec // label status: success, failed
	failedTaints  *prometheus.CounterVec // label change: added, removed

	mu       sync.Mutex
	breakers map[breakerKey]float64 // 1 while it holds
	statuses []fleet.Status         // of the last plan
	nodes    map[types.UID]history  // of those
}

// breakerKey is a rule that keeps the controller from an action: re-tainting nodes, or replacing them.
type breakerKey struct {
	rule   breaker.Rule
	action string
}

// New makes a Collector. It is a step of the loop that last and errors are from.
func New(last func() (fleet.Plan, error), errors func() uint64, program config.Program, now func() clock.Now) *Collector {
	c := &Collector{
		last: last, errors: errors, program: program, now: now, series: describe(),
		gate: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kube_node_ready_gate_seconds",
			Help: "Time from the creation of a node with the startup taint to its first verification, in seconds, " +
				"if this leader has seen both.",
			Buckets: []float64{.25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600},
		}),
		verifications: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kube_node_ready_verifications_total",
			Help: "Nodes that this leader has seen become verified (success) or fail (failed).",
		}, []string{"status"}),
		failedTaints: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kube_node_ready_failed_taints_total",
			Help: "Failed taints that this leader has added to verified nodes that failed their rechecks, or removed from them.",
		}, []string{"change"}),
		breakers: make(map[breakerKey]float64),
	}
	c.verifications.WithLabelValues("success")
	c.verifications.WithLabelValues("failed")
	c.failedTaints.WithLabelValues("added")
	c.failedTaints.WithLabelValues("removed")
	return c
}

// Act counts what the plan reports. It never fails.
func (c *Collector) Act(_ context.Context, plan fleet.Plan) (time.Duration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	nodes := make(map[types.UID]history, len(plan.Statuses))
	for _, status := range plan.Statuses {
		before, known := c.nodes[status.Node.UID]
		if !known {
			before = history{since: plan.At.Mark(), isNew: c.nodes != nil, wasGated: status.Gated, state: status.State}
		}
		after := c.count(before, status, plan.At)
		if after.hasSeries(status, plan.At) {
			after.tries = before.tries.observe(status)
		} else {
			after.tries = tries{}
		}
		nodes[status.Node.UID] = after
	}
	c.statuses, c.nodes = plan.Statuses, nodes
	return 0, nil
}

// history is what this leader has seen of a node.
type history struct {
	since    clock.Mark
	isNew    bool // since then: this process was the leader before
	wasGated bool // at first
	state    fleet.State
	verified clock.Mark // when it became verified last, zero: never
	tries    tries
}

// count counts a node's change of state.
func (c *Collector) count(h history, status fleet.Status, now clock.Now) history {
	switch {
	case h.state == status.State:
	case status.State == fleet.Verified:
		c.verifications.WithLabelValues("success").Inc()
		if h.isNew && h.wasGated && h.verified.IsZero() {
			c.gate.Observe(now.Since(h.since).Seconds())
		}
		h.verified = now.Mark()
	case status.State == fleet.Failed:
		c.verifications.WithLabelValues("failed").Inc()
	}
	h.state = status.State
	return h
}

// Breakers returns the function that tells which of some rules keep the controller from an action. A rule has no series before
// the first call.
func (c *Collector) Breakers(action string) func(rules []breaker.Rule, holding map[breaker.Rule]string) {
	return func(rules []breaker.Rule, holding map[breaker.Rule]string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, rule := range rules {
			key := breakerKey{rule, action}
			c.breakers[key] = 0
			if holding[rule] != "" {
				c.breakers[key] = 1
			}
		}
	}
}

// CountTaintAdded counts a failed taint that was added.
func (c *Collector) CountTaintAdded() { c.failedTaints.WithLabelValues("added").Inc() }

// CountTaintRemoved counts a failed taint that was removed.
func (c *Collector) CountTaintRemoved() { c.failedTaints.WithLabelValues("removed").Inc() }

// hasSeries reports whether a node has series of its own: while it is not verified, and for an hour after that.
func (h history) hasSeries(status fleet.Status, now clock.Now) bool {
	return status.IsPending() || !h.verified.IsZero() && now.Since(h.verified) < window
}

// tries counts how often checks were started again on a node that is not verified.
type tries struct {
	pod      types.UID // the last one, "" before the first and after a verification
	restarts int32     // of its containers
	retries  int32
}

func (t tries) observe(status fleet.Status) tries {
	if status.State == fleet.Verified {
		return tries{retries: t.retries}
	}
	if status.Pod == nil {
		return t
	}
	var restarts int32
	for _, container := range fleet.Containers(status.Pod) {
		restarts += container.RestartCount
	}
	switch {
	case t.pod == "": // what was before is not known
	case t.pod != status.Pod.UID:
		t.retries += 1 + restarts
	default:
		t.retries += max(0, restarts-t.restarts)
	}
	t.pod, t.restarts = status.Pod.UID, restarts
	return t
}
