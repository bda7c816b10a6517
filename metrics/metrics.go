// Package metrics holds the Prometheus series of the agent and the HTTP server for /metrics, /healthz and /readyz.
package metrics

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Recorder holds the series. All of them have the label node.
type Recorder struct {
	registry *prometheus.Registry
	verified atomic.Bool

	status, completion, verification, timedOut, opened prometheus.Gauge

	patchRetries prometheus.Counter
	durations    map[string]prometheus.Gauge
	recheck      *prometheus.GaugeVec // without labels, and without a series before a recheck
	// labels zone and own_zone: those of the peers of the last round, at most 8; result: reached or failed
	peers, peerDuration *prometheus.GaugeVec
	// label check: the names of the checks, a closed set, present at zero from the start
	attempts *prometheus.CounterVec
	failures *prometheus.CounterVec
}

// New makes a Recorder for the named node and checks, with a registry of its own. Version and commit are the program's.
func New(node string, checks []string, version, commit string) *Recorder {
	r := &Recorder{registry: prometheus.NewRegistry(), durations: make(map[string]prometheus.Gauge)}
	factory := promauto.With(prometheus.WrapRegistererWith(prometheus.Labels{"node": node}, r.registry))
	gauge := func(name, help string) prometheus.Gauge {
		return factory.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	r.status = gauge("node_check_status", "1 when the node is verified, 0 when it is not.")
	r.completion = gauge("node_check_completion_timestamp",
		"Unix time of the last verification of the node, in seconds; 0 before the first.")
	r.verification = gauge("node_check_verification_duration_seconds",
		"Duration of the last verification, from its start to the patched node, in seconds; 0 before the first.")
	r.timedOut = gauge("node_check_timed_out", "1 while INITIAL_TIMEOUT has passed and the node is not verified.")
	r.opened = gauge("node_check_opened", "1 while the node is open but not verified (ON_TIMEOUT=open).")
	r.recheck = factory.NewGaugeVec(prometheus.GaugeOpts{Name: "node_check_recheck_status",
		Help: "1 while a released node passes its rechecks; 0 from FAILURE_THRESHOLD failures in a row until RECOVERY_THRESHOLD " +
			"passes in a row; absent without RECHECK_INTERVAL."}, nil)
	r.peers = factory.NewGaugeVec(prometheus.GaugeOpts{Name: "node_check_peers",
		Help: "Agents on other nodes that the last recheck connected to, by zone and result."}, []string{"zone", "own_zone", "result"})
	r.peerDuration = factory.NewGaugeVec(prometheus.GaugeOpts{Name: "node_check_peer_duration_seconds",
		Help: "Mean duration of the connections that succeeded, by zone, in seconds."}, []string{"zone", "own_zone"})
	r.patchRetries = factory.NewCounter(prometheus.CounterOpts{Name: "node_check_patch_retries_total",
		Help: "Retries of the patch, because the node had changed or the reply was lost."})
	r.attempts = factory.NewCounterVec(prometheus.CounterOpts{Name: "node_check_attempts_total",
		Help: "Attempts of a check."}, []string{"check"})
	r.failures = factory.NewCounterVec(prometheus.CounterOpts{Name: "node_check_failures_total",
		Help: "Rounds in which a check failed: after its last retry, or in the diagnosis after another failure."}, []string{"check"})
	for _, check := range checks {
		r.attempts.WithLabelValues(check)
		r.failures.WithLabelValues(check)
		r.durations[check] = gauge("node_check_"+check+"_duration_seconds",
			"Duration of the last attempt of the "+check+" check, in seconds.")
	}
	info := factory.NewGaugeVec(prometheus.GaugeOpts{Name: "node_check_build_info",
		Help: "1, with the version of the agent, its commit and the version of Go as labels.",
	}, []string{"version", "commit", "go_version"}) // one combination for each process
	info.WithLabelValues(version, commit, runtime.Version()).Set(1)
	return r
}

// Attempt counts one attempt of a check and records its duration.
func (r *Recorder) Attempt(check string, took time.Duration) {
	r.attempts.WithLabelValues(check).Inc()
	if gauge, ok := r.durations[check]; ok {
		gauge.Set(took.Seconds())
	}
}

// Failure counts a check that failed a round.
func (r *Recorder) Failure(check string) { r.failures.WithLabelValues(check).Inc() }

// PatchRetry counts a retry of the patch.
func (r *Recorder) PatchRetry() { r.patchRetries.Inc() }

// TimedOut sets whether INITIAL_TIMEOUT has passed and the node is not verified.
func (r *Recorder) TimedOut(yes bool) { r.timedOut.Set(number(yes)) }

// Opened sets whether the node is open but not verified.
func (r *Recorder) Opened(yes bool) { r.opened.Set(number(yes)) }

// Zone is what a round found of the agents in one zone.
type Zone struct {
	Reached, Failed int
	Took            time.Duration // of those reached together
}

// Peers records the connections of a round to agents on other nodes, by their zone. Those of the round before are forgotten.
func (r *Recorder) Peers(ownZone string, zones map[string]Zone) {
	r.peers.Reset()
	r.peerDuration.Reset()
	for name, zone := range zones {
		r.peers.WithLabelValues(name, ownZone, "reached").Set(float64(zone.Reached))
		r.peers.WithLabelValues(name, ownZone, "failed").Set(float64(zone.Failed))
		if zone.Reached > 0 {
			r.peerDuration.WithLabelValues(name, ownZone).Set(zone.Took.Seconds() / float64(zone.Reached))
		}
	}
}

// Verified records that the node was verified at a time, and how long the verification took.
func (r *Recorder) Verified(at time.Time, took time.Duration) {
	r.completion.Set(float64(at.UnixNano()) / 1e9)
	r.verification.Set(took.Seconds())
	r.SetStatus(true)
}

// SetStatus sets whether the node is verified. It decides /readyz too.
func (r *Recorder) SetStatus(verified bool) {
	r.recheck.Reset()
	r.Peers("", nil)
	r.set(verified)
}

// SetRecheckStatus sets whether a released node passes its rechecks. It is the node's status and decides /readyz, too.
func (r *Recorder) SetRecheckStatus(passes bool) {
	r.recheck.WithLabelValues().Set(number(passes))
	r.set(passes)
}

func (r *Recorder) set(verified bool) {
	r.verified.Store(verified)
	r.status.Set(number(verified))
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
