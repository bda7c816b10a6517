// Package oneround makes a single round of checks: as a worker for the controller, or as a dry run that prints a report.
package oneround

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/round"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
)

const (
	// terminationLog is where kubelet reads a container's termination message.
	terminationLog = "/dev/termination-log"
	// unusedAfter is when a worker gives up that nobody has deleted since it passed: nobody uses its verdict.
	unusedAfter = time.Minute
)

// Worker verifies a node for the controller: one round of the agent's checks, without a credential and without a change of
// the Node. The controller creates a pod for it, reads the verdict and releases the node.
type Worker struct {
	cfg     config.Config
	version string
	log     *logrus.Entry
	// Checks returns the checks of the round.
	Checks func(kube.Environment) []checks.Check
	// TerminationLog is the path of the file that the verdict is written to.
	TerminationLog string
	decided        chan struct{} // closed when the round ends
	verified       bool          // valid from then on
}

// NewWorker returns the worker of the node that cfg names.
func NewWorker(cfg config.Config, log *logrus.Entry, version string) *Worker {
	w := &Worker{cfg: cfg, version: version, log: log, TerminationLog: terminationLog, decided: make(chan struct{})}
	w.Checks = func(e kube.Environment) []checks.Check {
		return checklist.New(cfg, e)(checks.API{Get: w.get(e.Client)}, checklist.Options{})
	}
	return w
}

// Run makes the round and reports whether it has passed. Then it waits for ctx to end: the controller deletes a worker that
// passed. After a failure, or if ctx ends before the verdict, it returns at once. The environment must have a client.
func (w *Worker) Run(ctx context.Context, e kube.Environment) bool {
	result, err := w.round(ctx, e)
	if err != nil {
		close(w.decided)
		w.log.Info("shutting down before the verdict")
		return false
	}
	log := w.log.WithField("took", result.Duration)
	if err := result.Write(w.TerminationLog); err != nil {
		log.WithError(err).Warn("cannot write the verdict: the controller still sees the readiness and the exit code")
	}
	w.verified = result.Verified
	close(w.decided)
	if !w.verified {
		log.WithField("reason", "failed: "+strings.Join(result.Failed, ", ")).Error("node not verified")
		return false
	}
	log.Info("all checks pass: waiting for the controller to release the node")
	if round.Sleep(ctx, unusedAfter) {
		log.WithField("after", unusedAfter.String()).Warn("the controller has not used the verdict: exiting")
	}
	return true
}

// round runs the checks once, with their retries. An error means that ctx ended before the verdict.
func (w *Worker) round(ctx context.Context, e kube.Environment) (verdict.Verdict, error) {
	start := time.Now()
	runner := checklist.Runner(w.cfg, func(attempt checks.Attempt) { round.LogAttempt(w.log, attempt) })
	results, err := runner.Round(ctx, w.Checks(e))
	if err != nil {
		return verdict.Verdict{}, err
	}
	failed := round.FailureOf(results)
	v := verdict.Verdict{Node: w.cfg.NodeName, Verified: len(failed.Checks) == 0, Failed: failed.Checks, Message: failed.Error(),
		Attempts: make(map[string]int), Duration: round.FormatDuration(time.Since(start)), Version: w.version}
	for _, result := range results {
		v.Attempts[result.Check] = result.Number
	}
	return v, nil
}

// get returns the request of the api check. An answer under the cluster's CA proves the path to the API server, also one
// that refuses an anonymous client. A status of 500 and above is a failure.
func (w *Worker) get(client *kube.Client) func(context.Context) (checks.Report, error) {
	return func(ctx context.Context) (report checks.Report, err error) {
		client.CloseIdleConnections()
		status := 0
		report.Warnings, err = checks.WithLargeHeader(func(value string) (err error) {
			status, err = client.NodeStatus(kube.WithLargeHeader(ctx, value), w.cfg.NodeName)
			return err
		})
		if status > 0 && status < http.StatusInternalServerError {
			report.Detail = fmt.Sprintf("the API server answers an anonymous request: status %d", status)
			return report, nil
		}
		return report, err
	}
}

// Handler serves /healthz and /readyz. /readyz does not answer before the verdict is known, so that kubelet and the controller
// see it at once: 200 if the round has passed, else 503.
func (w *Worker) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(out http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(out, "ok") })
	mux.HandleFunc("GET /readyz", func(out http.ResponseWriter, request *http.Request) {
		select {
		case <-request.Context().Done():
		case <-w.decided:
			if !w.verified {
				http.Error(out, "not verified", http.StatusServiceUnavailable)
				return
			}
			_, _ = fmt.Fprintln(out, verdict.Answer(w.cfg.VerdictKey))
		}
	})
	return mux
}
