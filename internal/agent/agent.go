// Package agent is the life of one run: verify the node, release it, and hold until the pod is deleted, or recheck it.
package agent

import (
	"context"
	"os"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
	"github.com/imunhatep/kube-node-ready/metrics"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const (
	annotation = nodepatch.Annotation
	// patchAttempts is the time limit of all attempts of one patch together, in CHECK_TIMEOUTs.
	patchAttempts = 10
)

// Agent has what lives as long as the process. Each verification is a value of its own.
type Agent struct {
	cfg     config.Config
	version string
	log     *logrus.Entry
	metrics *metrics.Recorder
	client  *kube.Client
	api     nodepatch.Client
	patcher *nodepatch.Patcher
	events  *kube.Events
	checks  func(checks.API) []checks.Check
	// reportInterval is the time until the next attempt to report a timeout, ±20 %.
	reportInterval time.Duration
	refresh        time.Duration // of a condition that stays False
	look           time.Duration // between two reads of the node, where rounds are further apart
	proof          *proof        // of the last verification; nil once a check has failed since
}

// proof is what this process has proven.
type proof struct {
	node    *nodepatch.Node // as it was read before the release
	request nodepatch.Request
}

// New returns the agent of the node that cfg names. The environment must have a client.
func New(cfg config.Config, e kube.Environment, recorder *metrics.Recorder, log *logrus.Entry, version string) *Agent {
	a := &Agent{cfg: cfg, version: version, log: log, metrics: recorder, client: e.Client, reportInterval: reportInterval,
		refresh: refreshInterval, look: lookInterval}
	if cfg.Once {
		a.cfg.RecheckInterval = 0 // it ends with the verdict
	}
	a.api = nodepatch.Client{REST: e.Client.Core, Name: cfg.NodeName}
	pod, _ := os.Hostname() // the name of the pod
	a.events = kube.NewEvents(e.Client.Core, cfg.NodeName, cfg.PodNamespace+"/"+pod, cfg.CheckTimeout, log)
	a.patcher = &nodepatch.Patcher{
		Node:     a.api,
		Timeout:  cfg.CheckTimeout,
		Deadline: patchAttempts * cfg.CheckTimeout,
		Retried: func(err error) {
			recorder.PatchRetry()
			log.WithError(err).Warn("patch not applied, will retry with the current node")
		},
	}
	a.checks = func(api checks.API) []checks.Check { return newChecks(cfg, e, clusterDomain(), api) }
	return a
}

// Run verifies the node and holds or rechecks it, and verifies again when the node is found unverified, until ctx ends.
// Then it serves the final metrics for METRICS_LINGER, or until secondSignal is closed. With --once it returns with the
// verdict. It reports whether the node is verified.
func (a *Agent) Run(ctx context.Context, secondSignal <-chan struct{}) (verified bool) {
	for {
		v := a.newVerification()
		if v.readFirst(ctx) {
			a.log.Info("node is already verified")
			if a.cfg.RecheckInterval == 0 {
				a.metrics.SetStatus(true)
				if v.marker.ShowsFailed(v.node) { // written by a container that has ended since
					v.markVerified(ctx)
				}
			}
		} else if !v.verify(ctx) {
			if !a.cfg.Once {
				a.removeTaintAgain()
			}
			return false
		}
		if a.cfg.Once {
			return true
		}
		stay := a.hold
		if a.cfg.RecheckInterval > 0 {
			stay = v.newRecheck().run
		}
		if !stay(ctx) {
			a.shutDown(secondSignal)
			return true
		}
		a.metrics.SetStatus(false)
	}
}

func newRunner(cfg config.Config, observer checks.Observer) checks.Runner {
	backOff := checks.Exponential
	if cfg.RetryBackoff == config.BackoffLinear {
		backOff = checks.Linear
	}
	return checks.Runner{Timeout: cfg.CheckTimeout, MaxRetries: cfg.MaxRetries, NewBackOff: backOff, Observer: observer}
}

// LongestRound returns the longest that a round can take.
func LongestRound(cfg config.Config) time.Duration {
	runner := newRunner(cfg, nil)
	return runner.Longest(len(checks.Names()))
}

// NewRequest describes the verified node, except for the annotation's value. The controller describes it alike.
func NewRequest(cfg config.Config) nodepatch.Request {
	return nodepatch.Request{
		TaintKey: cfg.TaintKey, FailedTaintKey: cfg.FailedTaintKey, AlsoRemove: cfg.AlsoRemoveTaints,
		Label: cfg.VerifiedLabel, LabelValue: cfg.VerifiedLabelValue, Annotation: annotation,
	}
}

// heldRequest describes the node while the agent holds or rechecks it.
func (a *Agent) heldRequest() nodepatch.Request {
	if a.cfg.RecheckInterval > 0 {
		return NewRequest(a.cfg).Released() // the failed taint of the controller begins no verification
	}
	return NewRequest(a.cfg)
}

// annotationValue says when and how the node was verified, and which taints its release removes.
func (v *verification) annotationValue(now time.Time) func(removed []nodepatch.Taint) string {
	return func(removed []nodepatch.Taint) string {
		return verdict.Record{Time: now.UTC().Format(time.RFC3339), Duration: formatDuration(now.Sub(v.start)),
			Attempts: v.attempts, Removed: nodepatch.FormatTaints(removed), Version: v.version}.String()
	}
}
