package metrics

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// describe returns the series that are computed at a scrape, by their name without its prefix. Those with the label node are
// there for nodes that are not verified, or have become verified within the last hour.
func describe() map[string]*prometheus.Desc {
	found := make(map[string]*prometheus.Desc)
	series := func(name, help string, labels ...string) {
		found[name] = prometheus.NewDesc("kube_node_ready_"+name, help, labels, nil)
	}
	series("nodes", "Nodes by state, and by reason if the state is Failed.", "state", "reason")
	series("breaker", "1 while a rule withholds every re-taint or deletion, or if halted, the deletions of a NodePool.", "reason")
	series("retainted_nodes", "Nodes with the failed taint that the controller adds to verified nodes.")
	series("recheck_failed_nodes", "Verified nodes whose condition is False, by its first reason.", "reason")
	series("verification_status", "1, with the state of the node.", "node", "status")
	series("verification_duration_seconds", "Duration of the last verification of a verified node, in seconds.", "node")
	series("retry_attempts_total",
		"Agents or workers that were started again on a node that was not verified: new pods and restarts.", "node")
	series("worker_pods", "Pods that verify nodes, agents or workers, by phase.", "status")
	series("controller_healthy", "1 while the leader can read its caches, 0 while it cannot.")
	series("controller_reconcile_errors_total", "Decisions about the fleet that failed, or whose writes failed.")
	series("build_info", "1, with the version of the controller, its commit and its build date as labels.",
		"version", "commit_hash", "build_date")
	return found
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	c.gate.Describe(out)
	c.verifications.Describe(out)
	c.failedTaints.Describe(out)
	for _, desc := range c.series {
		out <- desc
	}
}

// Collect implements prometheus.Collector: nothing where this process is not the leader.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	plan, err := c.last()
	s := scrape{out: out, series: c.series}
	switch {
	case err != nil: // the loop logs it
		s.gauge("controller_healthy", 0)
		return
	case plan.At.IsZero():
		return
	}
	s.gauge("controller_healthy", 1)
	s.gauge("build_info", 1, c.program.Version, c.program.Commit, c.program.BuildDate)
	s.counter("controller_reconcile_errors_total", float64(c.errors()))
	c.gate.Collect(out)
	c.verifications.Collect(out)
	c.failedTaints.Collect(out)
	s.fleet(plan)
	s.rechecks(plan)
	s.workerPods(plan)

	c.mu.Lock()
	defer c.mu.Unlock()
	breakers := make(map[breaker.Rule]float64) // by rule: 1 if it holds for at least one action
	for key, value := range c.breakers {
		breakers[key.rule] = max(breakers[key.rule], value)
	}
	for rule, value := range breakers {
		s.gauge("breaker", value, string(rule))
	}
	for _, status := range c.statuses {
		if seen := c.nodes[status.Node.UID]; seen.hasSeries(status, c.now()) {
			s.node(status, seen.tries.retries)
		}
	}
}

// scrape writes the series of one scrape.
type scrape struct {
	series map[string]*prometheus.Desc
	out    chan<- prometheus.Metric
}

func (s scrape) gauge(name string, value float64, labels ...string) {
	s.out <- prometheus.MustNewConstMetric(s.series[name], prometheus.GaugeValue, value, labels...)
}

func (s scrape) counter(name string, value float64, labels ...string) {
	s.out <- prometheus.MustNewConstMetric(s.series[name], prometheus.CounterValue, value, labels...)
}

// fleet counts the nodes. All states and reasons are there, those of no node at zero.
func (s scrape) fleet(plan fleet.Plan) {
	type key struct {
		state  fleet.State
		reason condition.Reasons
	}
	counts := make(map[key]int)
	for _, state := range fleet.States() {
		if state != fleet.Failed {
			counts[key{state: state}] = 0
		}
	}
	for _, known := range condition.Meanings() {
		counts[key{fleet.Failed, known.Reason}] = 0
	}
	for _, status := range plan.Statuses {
		at := key{state: status.State}
		if status.State == fleet.Failed {
			at.reason = status.Reason
		}
		counts[at]++
	}
	for at, count := range counts {
		s.gauge("nodes", float64(count), string(at.state), at.reason.String())
	}
}

// rechecks counts the verified nodes that fail, and those that are re-tainted. All reasons of verified nodes are there.
func (s scrape) rechecks(plan fleet.Plan) {
	retainted, failed := 0, map[condition.Reasons]int{condition.Silent: 0, condition.SandboxFailed: 0}
	for _, known := range condition.Meanings() {
		if known.Check != "" {
			failed[known.Reason] = 0
		}
	}
	for _, status := range plan.Statuses {
		if status.Retainted {
			retainted++
		}
		if status.Recheck.Failed {
			failed[status.Recheck.Reason]++
		}
	}
	s.gauge("retainted_nodes", float64(retainted))
	for reason, count := range failed {
		s.gauge("recheck_failed_nodes", float64(count), reason.String())
	}
}

func (s scrape) workerPods(plan fleet.Plan) {
	phases := map[corev1.PodPhase]int{corev1.PodPending: 0, corev1.PodRunning: 0, corev1.PodSucceeded: 0, corev1.PodFailed: 0}
	for _, status := range plan.Statuses {
		if status.Pod != nil && status.Pod.Status.Phase != "" {
			phases[status.Pod.Status.Phase]++
		}
	}
	for phase, count := range phases {
		s.gauge("worker_pods", float64(count), strings.ToLower(string(phase)))
	}
}

// node writes the series of one node.
func (s scrape) node(status fleet.Status, retries int32) {
	name := status.Node.Name
	s.gauge("verification_status", 1, name, statusLabel(status.State))
	s.counter("retry_attempts_total", float64(retries), name)
	if took, known := verificationDuration(status.Node); known && status.State == fleet.Verified {
		s.gauge("verification_duration_seconds", took.Seconds(), name)
	}
}

// statusLabel names a state in lower case: the name of the series and its labels are a contract.
func statusLabel(state fleet.State) string {
	if state == fleet.InProgress {
		return "in_progress"
	}
	return strings.ToLower(string(state))
}

// verificationDuration reads how long the last verification took from the annotation that the release has left.
func verificationDuration(node *corev1.Node) (took time.Duration, known bool) {
	released, err := record.Parse(node.Annotations[nodepatch.Annotation])
	if err != nil {
		return 0, false
	}
	took, err = time.ParseDuration(released.Duration)
	return took, err == nil
}
