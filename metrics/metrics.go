// Package metrics holds the Prometheus series of the agent and the HTTP server for /metrics, /healthz and /readyz.
package metrics

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Recorder holds the series. All of them have the label node.
type Recorder struct {
	registry *prometheus.Registry
	verified atomic.Bool

	status       prometheus.Gauge
	completion   prometheus.Gauge
	verification prometheus.Gauge
	timedOut     prometheus.Gauge
	patchRetries prometheus.Counter
	durations    map[string]prometheus.Gauge
	// label check: the names of the checks, a closed set, present at zero from the start
	attempts *prometheus.CounterVec
	failures *prometheus.CounterVec
}

// Build identifies the program.
type Build struct{ Version, Commit string }

// New makes a Recorder for the named node and checks, with a registry of its own.
func New(node string, checks []string, build Build) *Recorder {
	r := &Recorder{registry: prometheus.NewRegistry(), durations: make(map[string]prometheus.Gauge)}
	factory := factory{prometheus.WrapRegistererWith(prometheus.Labels{"node": node}, r.registry)}

	r.status = factory.gauge("node_check_status",
		"1 when the node is verified, 0 when it is not.")
	for _, check := range checks {
		r.durations[check] = factory.gauge("node_check_"+check+"_duration_seconds",
			"Duration of the last attempt of the "+check+" check, in seconds.")
	}
	r.completion = factory.gauge("node_check_completion_timestamp",
		"Unix time of the last verification of the node, in seconds; 0 before the first.")
	r.verification = factory.gauge("node_check_verification_duration_seconds",
		"Duration of the last verification, from its start to the patched node, in seconds; 0 before the first.")
	r.timedOut = factory.gauge("node_check_timed_out",
		"1 while INITIAL_TIMEOUT has passed and the node is not verified.")
	r.patchRetries = factory.counter("node_check_patch_retries_total",
		"Retries of the patch, because the node had changed or the reply was lost.")
	r.attempts = factory.counters("node_check_attempts_total",
		"Attempts of a check.", checks)
	r.failures = factory.counters("node_check_failures_total",
		"Rounds in which a check failed: out of retries, or in the diagnosis after another failed check.", checks)

	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "node_check_build_info",
		Help: "1, with the version of the agent, its commit and the version of Go as labels.",
	}, []string{"version", "commit", "go_version"}) // one combination for each process
	factory.MustRegister(info)
	info.WithLabelValues(build.Version, build.Commit, runtime.Version()).Set(1)
	return r
}

type factory struct{ prometheus.Registerer }

func (f factory) gauge(name, help string) prometheus.Gauge {
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	f.MustRegister(gauge)
	return gauge
}

func (f factory) counter(name, help string) prometheus.Counter {
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	f.MustRegister(counter)
	return counter
}

func (f factory) counters(name, help string, checks []string) *prometheus.CounterVec {
	counters := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"check"})
	f.MustRegister(counters)
	for _, check := range checks {
		counters.WithLabelValues(check)
	}
	return counters
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

// Verified records that the node was verified at a time, and how long the verification took.
func (r *Recorder) Verified(at time.Time, took time.Duration) {
	r.completion.Set(float64(at.UnixNano()) / 1e9)
	r.verification.Set(took.Seconds())
	r.SetStatus(true)
}

// SetStatus sets whether the node is verified. It decides /readyz too.
func (r *Recorder) SetStatus(verified bool) {
	r.verified.Store(verified)
	r.status.Set(number(verified))
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
